"""Small models one by one: module as torch prints it, shapes, and the count of its components."""

import inspect
from collections import Counter

import polars as pl

from modelbudget.families import families
from modelbudget.report import formula_tables
from modelbudget.report.charts.format import count, value_of
from modelbudget.report.page_results import SweepResult
from modelbudget.report.sections.module_trees import could_not_be_built


def steps(
    sweep: SweepResult,
    totals: pl.DataFrame,
    printed: dict[str, str | dict],
    walkthroughs: dict[str, dict],
) -> list[dict]:
    """Return one step for each point, with its module as text.

    A point that was measured (it is in `totals`) has a table of components with their numbers.
    `walkthroughs` has shapes, a real size and torch's own modules, by digest of the architecture.
    """
    points = sweep.points.join(
        totals.select("point", "total"), on="point", how="left", maintain_order="left"
    )
    steps = []
    for number, point in enumerate(points.iter_rows(named=True), start=1):
        module, table = printed[point["architecture"]], None
        if point["total"] is not None:
            rows = sweep.of_point(point)
            caption = f"Components of {point['label']}"
            table = formula_tables.component_table(point, rows, caption, with_numbers=True)
        description = inspect.getdoc(families()[point["family"]]) or ""
        step = {
            "id": f"{sweep.name}-{number}",
            "label": point["label"],
            "total": point["total"],
            "description": description.partition("\n")[0],
            "module": module if isinstance(module, str) else could_not_be_built(module),
            "table": table,
        }
        steps.append(step | _walkthrough(walkthroughs.get(point["architecture"], {})))
    return steps


def _walkthrough(walkthrough: dict) -> dict:
    """Return the shapes, the real size and torch's modules; empty where the model failed."""
    if not walkthrough or "failure" in walkthrough:
        return {"shapes": None, "real": None, "torch": None}
    names = [part["name"] for part in walkthrough["shapes"][1:]]
    shapes = [
        part | {"inputs": _shapes(part["inputs"]), "outputs": _shapes(part["outputs"])}
        for part in walkthrough["shapes"]
        if not part["name"] or not any(name.startswith(f"{part['name']}.") for name in names)
    ]
    real = walkthrough["real"]
    return {
        "shapes": shapes,
        "real": real | {"fields": ", ".join(value_of(*size) for size in real["fields"].items())},
        "torch": walkthrough["torch"],
    }


def _shapes(shapes: list[list[int]]) -> str:
    """Format shapes, equal ones once with their number: `3 of 2 × 1 × 3 × 5`."""
    numbers = Counter(" × ".join(map(count, shape)) for shape in shapes)
    return ", ".join(f"{n} of {shape}" if n > 1 else shape for shape, n in numbers.items())
