"""The section of a sweep: question, facts, charts, and tables with formulas."""

import polars as pl
from markdown_it import MarkdownIt
from markupsafe import Markup

from modelbudget.catalogue.accelerators import accelerators
from modelbudget.common.paths import ACCELERATORS
from modelbudget.compare.failures import by_reason
from modelbudget.report import example_point, formulas, tables
from modelbudget.report.charts.format import count
from modelbudget.report.fits import fits_section
from modelbudget.report.implementations import implementations_section
from modelbudget.report.layouts import layouts_section
from modelbudget.report.numbers import numbers_section
from modelbudget.report.results import SweepResult
from modelbudget.report.six_nd import six_n_d_section
from modelbudget.report.solve import bounds_and_objectives, solve_section
from modelbudget.report.specs import Charts
from modelbudget.report.step_by_step import steps
from modelbudget.report.verdict import Verdict, device_text, sentence
from modelbudget.report.zoo import zoo_section
from modelbudget.sweeps.quantities import OF_RUN

MOST_FAILED = 50
OURS = "our torch modules"
OTHERS = {
    "hugging-face": "the class in transformers itself",
    "module": "the module that the sweep names",
}
"""Families without modules of ours → whose code is measured."""
# No HTML and no images: the page must not load anything from other machines.
_MARKDOWN = MarkdownIt("commonmark", {"html": False, "typographer": True})
_MARKDOWN.enable("smartquotes").disable("image")


def sweep_section(
    sweep: SweepResult,
    verdict: Verdict,
    known: dict[str, str],
    charts: Charts,
    printed: dict[str, str | dict],
    walkthroughs: dict[str, dict],
    table: dict,
    shown: dict[str, str],
) -> dict:
    """Return the context of the section's template.

    `known` maps digests of published architectures to labels. `printed` has modules as torch
    prints them: if it has every point of the sweep, the page shows all of them step by step, and
    otherwise one example. `table` is the part of the comparison that is in the page. `shown` maps
    digests of architectures to the section that has their table of components; the example is
    added to it.
    """
    totals = example_point.largest(sweep)
    whose = _whose(sweep)
    drawn = [
        charts.add(f"{sweep.name}-{name}", spec, "; ".join(whose))
        for name, spec in sweep.charts.items()
    ]
    agreed = sentence(verdict.agreed, verdict.compared, verdict.near)
    solved = solve_section(sweep.frontier, sweep.published, sweep.summary)
    step_by_step = not totals.is_empty() and set(sweep.points["architecture"]) <= printed.keys()
    return {
        "name": sweep.name,
        "title": sweep.summary["title"],
        "template": "sweep.html.j2",
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
        "solved": solved,
        "answer": solved["answer"] if solved else drawn[0]["title"] if drawn else agreed,
        "measured": set(verdict.models) != {"not measured"},
        "whose": "; ".join(whose),
        "steps": steps(sweep, totals, printed, walkthroughs) if step_by_step else None,
        "implementations": implementations_section(sweep),
        "fits": fits_section(sweep),
        "layouts": layouts_section(sweep.layouts, accelerators(ACCELERATORS), sweep.name),
        "six_n_d": six_n_d_section(sweep),
        "example": None if step_by_step else _example(sweep, totals, known, shown),
        "numbers": numbers_section(sweep, table),
    }


def question(summary: dict) -> str:
    """Return the sweep's question as HTML."""
    return _MARKDOWN.render(summary["question"])


def _devices(verdict: Verdict) -> list[str]:
    models = verdict.models.items()
    return [f"{count(n)} {device_text(device)}" for device, n in models]


def _whose(sweep: SweepResult) -> list[str]:
    """Return whose implementations the memory, caches and FLOPs of the section are about."""
    if not OF_RUN & set(sweep.summary["measure"]["quantities"]):
        return []
    kinds = sweep.points.select("family", "implementation").unique(maintain_order=True)
    return list(dict.fromkeys(implementer(*kind) for kind in kinds.rows()))


def implementer(family: str, implementation: str) -> str:
    """Describe whose code the figures of a model are about."""
    if family in OTHERS:
        return OTHERS[family]
    return (
        OURS if implementation == "modelbudget" else f"{OURS} with the settings of {implementation}"
    )


def facts(summary: dict) -> list[tuple[str, list[str]]]:
    """Return terms and values of the sweep file; terms without values are left out."""
    n_dropped = summary["dropped"]
    dropped = f", {count(n_dropped)} more dropped by constraints" if n_dropped else ""
    lines = [
        ("base", [summary["base"]] if summary["base"] else []),
        ("fixed", [f"{name} = {_shown(value)}" for name, value in summary["fixed"].items()]),
        ("axes", [f"{name}: {_range(values)}" for name, values in summary["axes"].items()]),
        ("derived", [f"{name} = {text}" for name, text in summary["derive"].items()]),
        ("constraints", summary["constraints"]),
        *bounds_and_objectives(summary),
        ("models", [f"{count(summary['points'])}{dropped}"]),
        ("notes", summary["notes"]),
    ]
    return [(term, values) for term, values in lines if values]


def _range(values: list) -> str:
    if len(values) <= 8:
        return ", ".join(map(_shown, values))
    return f"{len(values)} values, {_shown(values[0])} … {_shown(values[-1])}"


def _shown(value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return count(value) if isinstance(value, int) else value


def _failed(comparison: pl.DataFrame) -> Markup | None:
    """Return a table of what could not be measured, by reason."""
    failed = by_reason(comparison)
    if not failed:
        return None
    more = f", the first {MOST_FAILED} of {count(len(failed))} reasons"
    return tables.table(
        [
            {
                "models": len(one.labels),
                "names": one.models,
                "quantities": ", ".join(one.quantities),
                "reason": one.reason,
            }
            for one in failed[:MOST_FAILED]
        ],
        f"What could not be measured{more if len(failed) > MOST_FAILED else ''}",
        numbers=("models",),
    )


def _example(
    sweep: SweepResult, totals: pl.DataFrame, known: dict[str, str], shown: dict[str, str]
) -> dict | None:
    """Return the example of a sweep: its largest published model, or else its largest point.

    A table of components that an earlier section has is not repeated.
    """
    if totals.is_empty():
        return None
    named = totals.filter(pl.col("architecture").is_in(list(known)))
    choice = totals if named.is_empty() else named
    point = choice.sort("total", maintain_order=True, descending=True).row(0, named=True)
    name = known.get(point["architecture"], point["label"])
    label = point["label"] if point["label"].startswith(name) else f"{name} ({point['label']})"
    rows = formulas.component_rows(point, sweep.of_point(point))
    before = shown.get(point["architecture"])
    if rows and before is None:
        shown[point["architecture"]] = sweep.name
    return {
        "title": f"{label}: {count(point['total'])} parameters" if rows else label,
        "before": before if rows else None,
        "table": formulas.component_table(
            [*rows, formulas.whole("all", rows)], f"Components of {label}"
        )
        if rows and before is None
        else None,
        "ledgers": example_point.ledgers(sweep, point),
        "whose": implementer(point["family"], point["implementation"]),
    }
