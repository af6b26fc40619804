"""One section for each sweep: what it asked, its charts, and formulas beside their numbers."""

import polars as pl
from markdown_it import MarkdownIt
from markupsafe import Markup

from modelbudget.charts.words import count
from modelbudget.report import formulas, tables
from modelbudget.report.results import SweepResult
from modelbudget.report.specs import Charts
from modelbudget.report.verdict import Verdict, device_words

COUNTED_BY_HAND = 10_000
"""Where every model of a sweep is this small, all of its formulas are shown with their numbers."""
_MARKDOWN = MarkdownIt("commonmark", {"html": False, "typographer": True}).enable("smartquotes")
_COLUMNS = ("component", "formula", "predicted", "counted", "share")


def sweep_section(
    sweep: SweepResult, its_verdict: Verdict, known: dict[str, str], charts: Charts
) -> dict:
    return {
        "name": sweep.name,
        "title": sweep.summary["title"],
        "question": _MARKDOWN.render(sweep.summary["question"]),
        "facts": _facts(sweep.summary, its_verdict),
        "verdict": its_verdict,
        "charts": [
            charts.add(f"{sweep.name}-{name}", spec, f"{sweep.name}/charts/{name}")
            for name, spec in sweep.charts.items()
        ],
        "example": _example(sweep, known),
    }


def _facts(summary: dict, its_verdict: Verdict) -> list[tuple[str, list[str]]]:
    """What the sweep file said, in a few lines; what it left out stays out."""
    dropped = summary["dropped"]
    dropping = f", {count(dropped)} more dropped by constraints" if dropped else ""
    facts = [
        ("base", [summary["base"]] if summary["base"] else []),
        ("fixed", [f"{name} = {_shown(value)}" for name, value in summary["fixed"].items()]),
        ("axes", [f"{name}: {_range(values)}" for name, values in summary["axes"].items()]),
        ("derived", [f"{name} = {text}" for name, text in summary["derive"].items()]),
        ("constraints", summary["constraints"]),
        ("models", [f"{count(summary['points'])}{dropping}"]),
        (
            "counted",
            [f"{count(n)} {device_words(device)}" for device, n in its_verdict.models.items()],
        ),
    ]
    return [(term, words) for term, words in facts if words]


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


def _example(sweep: SweepResult, known: dict[str, str]) -> dict | None:
    """Components with their formulas: of one telling model, or of all where all are small."""
    totals = (
        sweep.comparison.filter(pl.col("quantity") == "parameters")
        .group_by("point").agg(total=pl.col("measured").sum())
        .join(sweep.points, on="point").sort("point")
    )  # fmt: skip
    if totals.is_empty():
        return None
    if not sweep.summary["axes"] and totals["total"].max() <= COUNTED_BY_HAND:
        return _counted_by_hand(sweep, totals)
    named = totals.filter(pl.col("architecture").is_in(list(known)))
    choice = totals if named.is_empty() else named
    point = choice.sort("total", maintain_order=True, descending=True).row(0, named=True)
    name = known.get(point["architecture"], point["label"])
    label = name if name == point["label"] else f"{name} ({point['label']})"
    rows = formulas.component_rows(point, _of_point(sweep, point))
    return {
        "title": f"{label}: {count(point['total'])} parameters",
        "table": _components([*rows, formulas.whole("all", rows)], f"Components of {label}"),
    }


def _counted_by_hand(sweep: SweepResult, points: pl.DataFrame) -> dict:
    """Every model with its sum, and under it each component with the numbers put in."""
    table = []
    for point in points.iter_rows(named=True):
        rows = formulas.component_rows(point, _of_point(sweep, point), with_numbers=True)
        table += [formulas.whole(point["label"], rows), *rows]
    title = "Every model, component by component"
    return {"title": title, "table": _components(table, title)}


def _of_point(sweep: SweepResult, point: dict) -> pl.DataFrame:
    return sweep.comparison.filter(pl.col("point") == point["point"])


def _components(rows: list[dict], caption: str) -> Markup:
    return tables.table(
        [{name: row[name] for name in _COLUMNS} for row in rows],
        caption,
        numbers=("predicted", "counted", "share"),
        html=("component", "formula"),
        red=[not row["agrees"] for row in rows],
        whole=[row["whole"] for row in rows],
    )
