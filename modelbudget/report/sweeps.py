"""One section for each sweep: what it asked, its charts, and formulas beside their numbers."""

import polars as pl
from markdown_it import MarkdownIt
from markupsafe import Markup

from modelbudget.compare.failures import by_reason
from modelbudget.report import formulas, quantities, tables
from modelbudget.report.charts.format import count
from modelbudget.report.fits import fits_section
from modelbudget.report.numbers import numbers_section
from modelbudget.report.results import SweepResult
from modelbudget.report.six_n_d import six_n_d_section
from modelbudget.report.specs import Charts
from modelbudget.report.step_by_step import steps
from modelbudget.report.verdict import Verdict, device_words
from modelbudget.report.zoo import zoo_section

MOST_FAILED = 50
# No HTML, and no pictures: the page would ask other machines for them.
_MARKDOWN = MarkdownIt("commonmark", {"html": False, "typographer": True})
_MARKDOWN.enable("smartquotes").disable("image")


def sweep_section(
    sweep: SweepResult,
    its_verdict: Verdict,
    known: dict[str, str],
    charts: Charts,
    printed: dict[str, str | dict],
    carried: dict,
) -> dict:
    """`printed` has modules as torch prints them. Where every point of the sweep is among them,
    the page walks through them all; else one telling model stands for the others. `carried` is
    the sweep's table as far as the page holds it.
    """
    totals = quantities.largest(sweep)
    walked = not totals.is_empty() and set(sweep.points["architecture"]) <= printed.keys()
    return {
        "name": sweep.name,
        "title": sweep.summary["title"],
        "template": "sweep.html.j2",
        "question": question(sweep.summary),
        "facts": [*facts(sweep.summary), ("counted", _counted(its_verdict))],
        "verdict": its_verdict,
        "failed": _failed(sweep.comparison),
        "zoo": zoo_section(sweep.zoo, sweep.name),
        "charts": [
            charts.add(f"{sweep.name}-{name}", spec, f"{sweep.name}/charts/{name}")
            for name, spec in sweep.charts.items()
        ],
        "walk": steps(sweep, totals, printed) if walked else None,
        "fits": fits_section(sweep),
        "six_n_d": six_n_d_section(sweep),
        "example": None if walked else _example(sweep, totals, known),
        "numbers": numbers_section(sweep, carried),
    }


def question(summary: dict) -> str:
    """What the sweep asks, as HTML."""
    return _MARKDOWN.render(summary["question"])


def _counted(its_verdict: Verdict) -> list[str]:
    models = its_verdict.models.items()
    return [f"{count(n)} {device_words(device)}" for device, n in models]


def facts(summary: dict) -> list[tuple[str, list[str]]]:
    """What the sweep file said, in a few lines; what it left out stays out."""
    dropped = summary["dropped"]
    dropping = f", {count(dropped)} more dropped by constraints" if dropped else ""
    said = [
        ("base", [summary["base"]] if summary["base"] else []),
        ("fixed", [f"{name} = {_shown(value)}" for name, value in summary["fixed"].items()]),
        ("axes", [f"{name}: {_range(values)}" for name, values in summary["axes"].items()]),
        ("derived", [f"{name} = {text}" for name, text in summary["derive"].items()]),
        ("constraints", summary["constraints"]),
        ("models", [f"{count(summary['points'])}{dropping}"]),
    ]
    return [(term, words) for term, words in said if words]


def _range(values: list) -> str:
    if len(values) <= 8:
        return ", ".join(map(_shown, values))
    return f"{len(values)} values, {_shown(values[0])} … {_shown(values[-1])}"


def _shown(value) -> str:
    return (
        str(value).lower()
        if isinstance(value, bool)
        else f"{value:,}"
        if isinstance(value, int)
        else value
    )


def _failed(comparison: pl.DataFrame) -> Markup | None:
    """What could not be measured, by reason."""
    failed = by_reason(comparison)
    if not failed:
        return None
    more = f", the first {MOST_FAILED} of {count(len(failed))} reasons"
    return tables.table(
        [
            {
                "models": len(one.labels),
                "which": one.models,
                "not measured": ", ".join(one.quantities),
                "reason": one.reason,
            }
            for one in failed[:MOST_FAILED]
        ],
        f"What could not be measured{more if len(failed) > MOST_FAILED else ''}",
        numbers=("models",),
    )


def _example(sweep: SweepResult, totals: pl.DataFrame, known: dict[str, str]) -> dict | None:
    """One telling model, by component, with the formulas."""
    if totals.is_empty():
        return None
    named = totals.filter(pl.col("architecture").is_in(list(known)))
    choice = totals if named.is_empty() else named
    point = choice.sort("total", maintain_order=True, descending=True).row(0, named=True)
    name = known.get(point["architecture"], point["label"])
    label = name if name == point["label"] else f"{name} ({point['label']})"
    rows = formulas.component_rows(point, sweep.of_point(point))
    return {
        "title": f"{label}: {count(point['total'])} parameters" if rows else label,
        "table": formulas.component_table(
            [*rows, formulas.whole("all", rows)], f"Components of {label}"
        )
        if rows
        else None,
        "ledgers": quantities.ledgers(sweep, point),
    }
