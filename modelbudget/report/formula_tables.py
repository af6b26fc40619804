"""Tables of one point: the formula of each component with its predicted and measured numbers."""

import inspect

import polars as pl
from markupsafe import Markup, escape

from modelbudget.architecture.evaluators import symbols
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.terms import Term, Terms
from modelbudget.common.number_format import percent
from modelbudget.compare.comparison import FORMULA
from modelbudget.components.groups import group_of
from modelbudget.families import families
from modelbudget.predict.formula import formula
from modelbudget.report import tables
from modelbudget.report.chart_specs import variable_of_group
from modelbudget.report.component_order import sort_key
from modelbudget.report.page_results import SweepResult
from modelbudget.report.sections.module_trees import could_not_be_built


def formulas(point: dict, quantity: str = "parameters", varying=()) -> Terms:
    """Return the terms of a quantity as SymPy expressions, for a row of points.parquet.

    Sizes become symbols. Fields that decide which parts the model has, and categorical run
    settings, have their values, unless they are in `varying`.
    """
    family = families()[point["family"]]
    a, r = (symbols.of_values(record, point, varying) for record in (family, RunConfig))
    terms, _ = formula(family, quantity, a, r)
    return {
        name: Term(symbols.answered(term.each, point), symbols.answered(term.instances, point))
        for name, term in terms.items()
    }


def component_table(
    point: dict, comparison: pl.DataFrame, caption: str, with_numbers: bool = False
) -> Markup | None:
    """Return the table of a point's components with parameters, in the order of `component_order`.

    `comparison` has the rows of this point. Several components have a row of totals. `with_numbers`
    adds each formula with its numbers. None without components.
    """
    by_component = {
        row["component"]: row for row in comparison.filter(quantity="parameters").to_dicts()
    }
    if not by_component:
        return None
    known = any(row["prediction"] == FORMULA for row in by_component.values())
    terms = formulas(point) if known else {}
    order = [name for name in dict.fromkeys([*terms, *by_component]) if name in by_component]
    rows = [by_component[name] for name in sorted(order, key=sort_key)]
    totals = {side: sum(row[side] or 0 for row in rows) for side in ("predicted", "measured")}
    values, whole = point if with_numbers else None, totals["measured"]
    shown = [
        {
            "component": component_name(row["component"], row["shared_with"]),
            "formula": _formula(terms.get(row["component"]), row["predicted"], values),
            "predicted": row["predicted"],
            "measured": row["measured"],
            "share": percent((row["measured"] or 0) / whole) if whole else None,
        }
        for row in rows
    ]
    red = [row["agrees"] is False for row in rows]  # None where it was not compared
    if len(rows) > 1:
        shown.append({"component": "all", "formula": ""} | totals | {"share": "100 %"})
        red.append(any(red))
    is_total = [row["component"] == "all" for row in shown]
    return tables.table(shown, caption, ("predicted", "measured", "share"), red, is_total)


def _formula(term: Term | None, predicted: int | None, values: dict | None) -> Markup:
    """Return a formula, and the same with its numbers where they are given."""
    if term is None or not predicted:
        return Markup("")
    text = symbols.to_mathml(term)
    if values:
        text += f'<span class="substituted">= {symbols.to_mathml(term, values)}</span>'
    return Markup(text)


def component_name(component: str, shared_with: str | None = None) -> Markup:
    """Return a component with the colour of its group, and the component that owns its tensor."""
    colour = variable_of_group(group_of(component))
    owner = f" <small>tied to {escape(shared_with)}</small>" if shared_with else ""
    return Markup(f'<code class="name swatch {colour}">{escape(component)}</code>{owner}')


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
            caption = f"Components of {point['label']}"
            rows = sweep.comparison.filter(point=point["point"])
            table = component_table(point, rows, caption, with_numbers=True)
        description = inspect.getdoc(families()[point["family"]]) or ""
        steps.append(
            {
                "id": f"{sweep.name}-{number}",
                "label": point["label"],
                "total": point["total"],
                "description": description.partition("\n")[0],
                "module": module if isinstance(module, str) else could_not_be_built(module),
                "table": table,
                **_walkthrough(walkthroughs.get(point["architecture"], {})),
            }
        )
    return steps


def _walkthrough(walkthrough: dict) -> dict:
    """Return shapes of parts that have none in them, a real size and torch's modules, if any."""
    parts = walkthrough.get("shapes", ())
    shapes = [
        part
        for part in parts
        if not part["name"] or not any(of["name"].startswith(f"{part['name']}.") for of in parts)
    ]
    return {"real": None, "torch": None} | walkthrough | {"shapes": shapes}
