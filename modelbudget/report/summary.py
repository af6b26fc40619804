"""The top of the page: one model in one picture, and the verdict."""

import polars as pl
from markupsafe import Markup

from modelbudget.compare.zoo import AGREES, EXPLAINED, UNEXPLAINED
from modelbudget.report import tables, verdict
from modelbudget.report.charts.format import count, percent
from modelbudget.report.charts.headline import headline
from modelbudget.report.results import Results, SweepResult, opening, ordered
from modelbudget.report.specs import Charts, variable_of_group

MOST_DISAGREEMENTS = 50
MOST_FAILURES = 20


def headline_section(sweeps: list[SweepResult], charts: Charts) -> dict | None:
    """The model that opens the page: its picture, and every group's number."""
    chosen = opening(sweeps)
    if chosen is None:
        return None
    place, table = chosen
    name, total = _name(sweeps[place], table), table["total"][0]
    comparison = sweeps[place].comparison.filter(pl.col("point") == table["point"][0])
    parts = table.filter(pl.col("value") > 0).sort("value", descending=True)
    predicted = comparison.filter(pl.col("quantity") == "parameters")["predicted"].sum()
    return {
        "title": f"Where the {count(total)} parameters of {name} go",
        "chart": charts.add(
            "headline-chart", headline(table).to_dict(), "headline.charts/headline"
        ),
        "parts": [
            {
                "group": group,
                "share": percent(share),
                "count": count(value),
                "swatch": variable_of_group(group),
            }
            for group, share, value in parts.select("group", "share", "value").rows()
        ],
        "method": verdict.device_words(comparison["method"][0]),
        "predicted": count(predicted),
    }


def _name(sweep: SweepResult, table: pl.DataFrame) -> str:
    """The label of a point, with the base before it where the label only says what was swept."""
    label, base = table["label"][0], sweep.summary["base"]
    return f"{base} with {label}" if base and " = " in label else label


def verdict_section(results: Results, found: list[verdict.Verdict]) -> dict:
    """What agrees and what does not, and where models were counted. `table` is None where nothing
    was compared: the page then says how to begin.
    """
    compared, agreed = sum(v.compared for v in found), sum(v.agreed for v in found)
    near = sum(v.near for v in found)
    where = [
        f"{count(n)} {'model' if n == 1 else 'models'} {verdict.device_words(device)}"
        for device, n in verdict.models_by_device(found).items()
    ]
    wrong = verdict.disagreements(results)
    return {
        "words": f"{count(agreed)} of {count(compared)} predictions are what torch counts"
        if found
        else "Nothing has been counted yet",
        "near": f"{count(near)} of them agree within {verdict.BOUND}; all others are equal, to the "
        "last byte."
        if near
        else None,
        "whole": all(v.whole for v in found),
        "failed": [(v.source, f"{count(v.failed)} of {v.title}") for v in found if v.failed],
        "failures": (lines := verdict.failure_lines(results))[:MOST_FAILURES],
        "more_failures": count(len(lines) - MOST_FAILURES) if lines[MOST_FAILURES:] else None,
        "roomless": [(v.source, f"{count(v.roomless)} of {v.title}") for v in found if v.roomless],
        "zoos": [_zoo(sweep) for sweep in ordered(results.sweeps) if sweep.zoo is not None],
        "devices": f"Counted: {', '.join(where)}.",
        "table": tables.table(
            [_line(one) for one in found],
            "Comparisons by section, and the models behind them by device",
            numbers=("compared", "agree", "within a bound"),
            html=("where",),
            red=[not one.whole for one in found],
        )
        if found
        else None,
        "disagreements": _disagreements(wrong[:MOST_DISAGREEMENTS]) if wrong else None,
        "on_request": _not_shown(results),
        "more": count(len(wrong) - MOST_DISAGREEMENTS) if wrong[MOST_DISAGREEMENTS:] else None,
    }


def _not_shown(results: Results) -> list[tuple[str, str]]:
    """Name and title of the sweeps that run on request, and did not run."""
    shown = {sweep.name for sweep in (*results.sweeps, *(results.predicted or ()))}
    return [(name, title) for name, title in results.on_request or () if name not in shown]


def _zoo(sweep: SweepResult) -> dict:
    """How the named models stand to what others count and print, in one line."""
    status = sweep.zoo["status"].to_list()
    agree, explained, unexplained = (status.count(s) for s in (AGREES, EXPLAINED, UNEXPLAINED))
    return {
        "line": f"Of {count(len(status))} published models {count(agree)} agree with all that "
        f"others count and print, and {count(explained)} differ with a reason",
        "unexplained": f"{count(unexplained)} unexplained" if unexplained else None,
        "section": sweep.name,
    }


def _line(one: verdict.Verdict) -> dict:
    return {
        "where": _link(one.source, one.title),
        "compared": one.compared,
        "agree": one.agreed,
        "within a bound": one.near or None,
        "models": ", ".join(f"{count(n)} {device}" for device, n in one.models.items()) or None,
    }


def _disagreements(rows: list[tuple[str, dict]]) -> Markup:
    return tables.table(
        [row | {"model": _link(where, row["model"])} for where, row in rows],
        "Where prediction and count differ",
        numbers=("predicted", "counted", "difference"),
        html=("model",),
        red=[True] * len(rows),
    )


def _link(section: str, words: str) -> Markup:
    return Markup('<a href="#{}">{}</a>').format(section, words)
