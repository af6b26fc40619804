"""Small models one by one: module as torch prints it, shapes, and the count of its components."""

import inspect
from collections import Counter

import polars as pl
from markupsafe import Markup

from modelbudget.families import families
from modelbudget.report import formula_tables
from modelbudget.report.charts.format import count, signed, value_of
from modelbudget.report.module_tree_html import could_not_be_built
from modelbudget.report.page_results import SweepResult


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
    rows = points.iter_rows(named=True)
    return [
        _step(sweep, number, point, printed[digest])
        | _walkthrough(walkthroughs.get(digest, {}), point["total"])
        for number, point in enumerate(rows, start=1)
        for digest in [point["architecture"]]
    ]


def _step(sweep: SweepResult, number: int, point: dict, module: str | dict) -> dict:
    measured = point["total"] is not None
    return {
        "id": f"{sweep.name}-{number}",
        "label": point["label"],
        "count": count(point["total"]) if measured else "not measured",
        "description": (inspect.getdoc(families()[point["family"]]) or "").partition("\n")[0],
        "module": module if isinstance(module, str) else could_not_be_built(module),
        "table": _table(sweep, point) if measured else None,
    }


def _walkthrough(walkthrough: dict, total: int | None) -> dict:
    """Return the shapes, the real size and torch's modules; empty where the model failed."""
    if not walkthrough or "failure" in walkthrough:
        return {"shapes": None, "real": None, "torch": None}
    model, *parts = walkthrough["shapes"]
    inner = [part["name"] for part in parts]
    leaves = [one for one in parts if not any(name.startswith(f"{one['name']}.") for name in inner)]
    return {
        "shapes": {
            "input": _shapes(model["inputs"]),
            "output": _shapes(model["outputs"]),
            "parts": [
                {"name": leave["name"], "kind": leave["kind"], "input": _shapes(leave["inputs"]),
                 "output": _shapes(leave["outputs"])}
                for leave in leaves
            ],
        },
        "real": {
            "fields": ", ".join(value_of(*size) for size in walkthrough["real"]["fields"].items()),
            "parameters": count(walkthrough["real"]["parameters"]),
        },
        "torch": [_of_torch(call, total) for call in walkthrough["torch"]] if total else None,
    }  # fmt: skip


def _of_torch(module: dict, total: int) -> dict:
    difference = module["parameters"] - total
    return {
        "call": module["call"],
        "why": module["why"],
        "parameters": count(module["parameters"]),
        "difference": signed(difference) if difference else "equal",
        "tensors": [(name, _shape(shape)) for name, shape in module["tensors"]],
    }


def _shapes(shapes: list[list[int]]) -> str:
    """Format shapes, equal ones once with their number: `3 of 2 × 1 × 3 × 5`."""
    numbers = Counter(map(_shape, shapes))
    return ", ".join(f"{n} of {shape}" if n > 1 else shape for shape, n in numbers.items())


def _shape(shape: list[int]) -> str:
    return " × ".join(map(count, shape))


def _table(sweep: SweepResult, point: dict) -> Markup:
    rows = formula_tables.component_rows(point, sweep.of_point(point), with_numbers=True)
    return formula_tables.component_table(rows, f"Components of {point['label']}")
