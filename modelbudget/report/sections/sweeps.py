"""The section of a sweep: question, facts, charts, and tables with formulas."""

import polars as pl
from markupsafe import Markup

from modelbudget.catalogue.accelerators import accelerators
from modelbudget.common.paths import ACCELERATORS
from modelbudget.compare.failures import by_reason
from modelbudget.components.groups import group_of
from modelbudget.report import example_point, formula_tables, tables
from modelbudget.report.charts.format import count
from modelbudget.report.fit_tables import fits_section
from modelbudget.report.implementation_tables import implementations_section
from modelbudget.report.layout_table import layouts_section
from modelbudget.report.numbers import points_table
from modelbudget.report.page_results import PredictedResult, SweepResult, ordered
from modelbudget.report.predicted_section import predicted_section
from modelbudget.report.recipe import precision
from modelbudget.report.section import FIRST, Page, Section
from modelbudget.report.solve_tables import solve_section
from modelbudget.report.step_by_step import steps
from modelbudget.report.sweep_facts import facts, implementer, question
from modelbudget.report.verdict import Verdict, device_text, sentence
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
    verdict, totals, whose = (
        page.verdict_of(sweep.name),
        example_point.largest(sweep),
        _whose(sweep),
    )
    act = page.drawn.get(sweep.name)
    drawn = [
        page.charts.add(f"{sweep.name}-{name}", spec, "; ".join(whose))
        for name, spec in (() if act else sweep.charts.items())
    ]
    agreed = sentence(verdict.agreed, verdict.compared, verdict.near)
    solved = solve_section(sweep.frontier, sweep.published, sweep.summary)
    step_by_step = not totals.is_empty() and set(sweep.points["architecture"]) <= printed.keys()
    return {
        "id": sweep.name,
        "short": sweep.summary["title"],
        "question": question(sweep.summary),
        "facts": [
            *facts(sweep.summary),
            *([("memory and FLOPs of", whose)] if whose else []),
            ("measured", _devices(verdict)),
        ],
        "verdict": verdict,
        "failed": _failed(sweep.comparison),
        "zoo": zoo_section(sweep.zoo, sweep.name),
        "charts": drawn,
        "act": act,
        "n_charts": len(sweep.charts),
        "solved": solved,
        "answer": solved["answer"] if solved else _answer(sweep, drawn) if drawn else agreed,
        "measured": set(verdict.models) != {"not measured"},
        "steps": steps(sweep, totals, printed, walkthroughs) if step_by_step else None,
        "implementations": implementations_section(sweep),
        "fits": fits_section(sweep),
        "layouts": layouts_section(sweep.layouts, accelerators(ACCELERATORS), sweep.name),
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


def _devices(verdict: Verdict) -> list[str]:
    models = verdict.models.items()
    return [f"{count(n)} {device_text(device)}" for device, n in models]


def _whose(sweep: SweepResult) -> list[str]:
    """Return whose implementations the memory, caches and FLOPs of the section are about."""
    if not OF_RUN & set(sweep.summary["measure"]["quantities"]):
        return []
    implementations = sweep.points.select("family", "implementation").unique(maintain_order=True)
    return list(dict.fromkeys(implementer(*row) for row in implementations.rows()))


def _failed(comparison: pl.DataFrame) -> Markup | None:
    """Return a table of what could not be measured, by reason."""
    failed = by_reason(comparison)
    if not failed:
        return None
    more = f", the first {MOST_FAILED} of {count(len(failed))} reasons"
    return tables.table(
        [
            {
                "models": len(failure.labels),
                "names": failure.models,
                "quantities": ", ".join(failure.quantities),
                "reason": failure.reason,
            }
            for failure in failed[:MOST_FAILED]
        ],
        f"What could not be measured{more if len(failed) > MOST_FAILED else ''}",
        numbers=("models",),
    )


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
    rows = formula_tables.component_rows(point, sweep.of_point(point))
    groups = {group_of(name) for name in _components_of(sweep, point)}
    if not rows or groups <= shown:
        return None
    shown |= groups
    table = [*rows, formula_tables.whole("all", rows)]
    return {
        "title": f"{label}: {count(point['total'])} parameters",
        "table": formula_tables.component_table(table, f"Components of {label}"),
    }


def _components_of(sweep: SweepResult, point: dict) -> list[str]:
    """Return the components of a point that have parameters."""
    rows = sweep.of_point(point).filter(pl.col("quantity") == "parameters", pl.col("measured") > 0)
    return rows["component"].to_list()


SECTION = Section(120, _contents)
