"""The section of a sweep: question, facts, charts, and tables with formulas."""

import polars as pl
from markupsafe import Markup

from modelbudget.architecture.evaluators import symbols
from modelbudget.catalogue.accelerators import accelerators
from modelbudget.common.number_format import count
from modelbudget.common.paths import ACCELERATORS
from modelbudget.compare.failures import by_reason
from modelbudget.components.groups import group_of
from modelbudget.report import formula_tables, tables
from modelbudget.report.chart_specs import Charts
from modelbudget.report.charts.chart_tables import amounts_of_points, evenly_spaced
from modelbudget.report.fit_tables import fits_section, layouts_section, solve_section
from modelbudget.report.formula_tables import steps
from modelbudget.report.implementation_tables import implementations_section
from modelbudget.report.page_data import PAGE
from modelbudget.report.page_results import PredictedResult, SweepResult, ordered
from modelbudget.report.recipe import precision
from modelbudget.report.section import FIRST, Page, Section
from modelbudget.report.verdict import sentence
from modelbudget.report.zoo_tables import zoo_section
from modelbudget.sweeps.quantity_names import OF_RUN

PRINTED, WALKTHROUGHS = "module_trees/modules.json", "module_trees/walkthroughs.json"
MOST_FAILED = 50


def _contents(page: Page) -> list[dict]:
    """Return a section for each sweep, in their order, measured and predicted ones."""
    shown: set[str] = set()
    # Without a story the page opens with its sweeps.
    place = {"is_open": False} if page.has_story else {"is_open": True, "place": FIRST}
    return [
        place
        | (
            predicted_section(sweep, page.charts)
            if isinstance(sweep, PredictedResult)
            else _measured(page, sweep, shown)
        )
        for sweep in ordered([*page.sweeps, *page.results.predicted])
    ]


def _measured(page: Page, sweep: SweepResult, shown: set[str]) -> dict:
    """Return what the template shows of a sweep that is measured.

    If torch's print of every point is there, the page shows all of them step by step, and otherwise
    one example. `shown` has the groups of components of earlier tables.
    """
    printed, walkthroughs = (page.results.parts.get(file, {}) for file in (PRINTED, WALKTHROUGHS))
    verdict, totals, whose = (page.verdicts[sweep.name], _largest(sweep), _whose(sweep))
    act, specs = page.drawn.get(sweep.name), sweep.charts()
    drawn = [
        page.charts.add(f"{sweep.name}-{name}", spec, "; ".join(whose))
        for name, spec in (() if act else specs.items())
    ]
    agreed = sentence(verdict.agreed, verdict.compared, verdict.near)
    zoo = zoo_section(sweep.zoo, sweep.name)
    solved = solve_section(sweep.frontier, sweep.summary)
    step_by_step = not totals.is_empty() and set(sweep.points["architecture"]) <= printed.keys()
    return {
        "id": sweep.name,
        "short": sweep.summary["title"],
        "summary": sweep.summary,
        "whose": whose,
        "verdict": verdict,
        "failed": by_reason(sweep.comparison),
        "most_failed": MOST_FAILED,
        "zoo": zoo,
        "charts": drawn,
        "act": act,
        "n_charts": len(specs),
        "solved": solved,
        "answer": (zoo or solved or {}).get("answer")
        or (_answer(sweep, drawn) if drawn else agreed),
        "measured": set(verdict.models) != {"not measured"},
        "steps": steps(sweep, totals, printed, walkthroughs) if step_by_step else None,
        "implementations": implementations_section(sweep),
        "fits": fits_section(sweep),
        "layouts": layouts_section(sweep.layouts, accelerators(ACCELERATORS)),
        "example": None if step_by_step else _example(sweep, totals, page.known, shown),
        "points": None if page.has_story else points_table(sweep),
    }


def _answer(sweep: SweepResult, drawn: list[dict]) -> str:
    """Return the titles of the charts that answer the question, or of the first chart.

    A title about a peak has the precision that it depends on.
    """
    if number := len(sweep.summary["answered_by"]):
        return ". ".join(chart["title"] for chart in drawn[:number])
    precisions = {precision(point) for point in sweep.points.iter_rows(named=True)}
    is_peak = drawn[0]["id"].endswith("peak-parts")
    return drawn[0]["title"] + (
        f" ({', '.join(precisions)})" if is_peak and len(precisions) == 1 else ""
    )


def _whose(sweep: SweepResult) -> list[str]:
    """Return whose implementations the memory, caches and FLOPs of the section are about."""
    if not OF_RUN & set(sweep.summary["measure"]["quantities"]):
        return []
    implementations = sweep.points.select("family", "implementation").unique(maintain_order=True)
    return list(dict.fromkeys(implementer(*row) for row in implementations.rows()))


def _example(
    sweep: SweepResult, totals: pl.DataFrame, known: dict[str, str], shown: set[str]
) -> dict | None:
    """Return the example of a sweep: its largest published model, or else its largest point.

    None if all groups of its components are `shown`: the result files have the numbers of every
    model.
    """
    if totals.is_empty() or sweep.zoo is not None:  # the list of all models has their numbers
        return None
    named = totals.filter(pl.col("architecture").is_in(list(known)))
    choice = totals if named.is_empty() else named
    point = choice.sort("total", maintain_order=True, descending=True).row(0, named=True)
    name = known.get(point["architecture"], point["label"])
    label = point["label"] if point["label"].startswith(name) else f"{name} ({point['label']})"
    rows = sweep.comparison.filter(point=point["point"])
    table = formula_tables.component_table(point, rows, f"Components of {label}")
    counted = rows.filter(pl.col("measured") > 0, quantity="parameters")
    groups = {group_of(name) for name in counted["component"]}
    if table is None or groups <= shown:
        return None
    shown |= groups
    return {"title": f"{label}: {count(point['total'])} parameters", "table": table}


SORTED_BY = ("parameters", "activation_bytes", "cache_bytes", "peak_requested_bytes")
"""The largest point of a sweep is by the first of these that was measured."""


def _largest(sweep: SweepResult) -> pl.DataFrame:
    """Return the points with the quantity that they are sorted by, as `total`."""
    measured = sweep.comparison.drop_nulls("measured")
    there = set(measured["quantity"].unique())
    quantity = next((one for one in SORTED_BY if one in there), "")
    amounts = amounts_of_points(measured, quantity).select("point", total="value")
    return amounts.join(sweep.points, on="point").sort("point")


def predicted_section(sweep: PredictedResult, charts: Charts) -> dict:
    """Return the context of the section's template."""
    summary = sweep.summary
    whose = implementer("", summary["fixed"].get("implementation", "modelbudget"))
    of_run = OF_RUN & set(summary["measure"]["quantities"])
    return {
        "id": sweep.name,
        "short": summary["title"],
        "template": "predicted.html.j2",
        "summary": summary,
        "whose": [whose] if of_run else [],
        "charts": [
            charts.add(f"{sweep.name}-{name}", spec) for name, spec in sweep.charts().items()
        ],
        "formulas": [_formulas(model) for model in summary["models"]],
    }


def _formulas(model: dict) -> Markup:
    """Return the table of a base's components that have parameters, with their formulas."""
    point = model["fields"] | {"family": model["family"]}
    rows = [
        {
            "component": formula_tables.component_name(name),
            "formula": Markup(symbols.to_mathml(term)),
        }
        for name, term in formula_tables.formulas(point, varying=model["varying"]).items()
        if term.total != 0
    ]
    return tables.table(rows, f"Formulas of {model['label']}", ())


MOST_POINTS = 40


def points_table(sweep: SweepResult) -> Markup:
    """Return a row for each point, or for some at even spacing; of a peak, the largest phase."""
    comparison = sweep.comparison
    quantities = comparison["quantity"].drop_nulls().unique().sort().to_list()
    columns = {
        quantity: dict(amounts_of_points(comparison, quantity).select("point", "value").rows())
        for quantity in quantities
    }
    wrong = set(comparison.filter(pl.col("agrees").not_())["point"])
    labels = comparison.select("point", "label").unique("point", maintain_order=True).rows()
    shown = evenly_spaced(labels, MOST_POINTS)
    rows = [
        {"point": label} | {name: values.get(point) for name, values in columns.items()}
        for point, label in shown
    ]
    more = f", {len(shown)} of {count(len(labels))}" if len(shown) < len(labels) else ""
    return tables.table(rows, f"Points{more}", red=[point in wrong for point, _ in shown])


OURS = "our torch modules"


def implementer(family: str, implementation: str) -> str:
    """Describe whose code the figures of a model are about."""
    settings = "" if implementation == "modelbudget" else f" with the settings of {implementation}"
    return PAGE["implementers"].get(family, f"{OURS}{settings}")


SECTION = Section(120, "", "", _contents)
