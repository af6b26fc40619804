"""The top of the page: the largest model in one picture, and the verdict."""

import polars as pl
from markupsafe import Markup

from modelbudget.charts.headline import headline, largest
from modelbudget.charts.words import count, percent
from modelbudget.report import tables, verdict
from modelbudget.report.results import Results, SweepResult
from modelbudget.report.specs import Charts, variable_of_group

MOST_DISAGREEMENTS = 50


def headline_section(sweeps: list[SweepResult], charts: Charts) -> dict | None:
    """The largest model that was measured: its picture, and every group's number."""
    chosen = largest([sweep.comparison for sweep in sweeps])
    if chosen is None:
        return None
    table, comparison = chosen
    parts = table.filter(pl.col("value") > 0).sort("value", descending=True)
    label, total = table["label"][0], table["total"][0]
    predicted = comparison.filter(pl.col("quantity") == "parameters")["predicted"].sum()
    return {
        "title": f"Where {label}’s {count(total)} parameters go",
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


def verdict_section(results: Results, found: list[verdict.Verdict]) -> dict:
    """What agrees and what does not, and where models were counted."""
    compared, agreed = sum(v.compared for v in found), sum(v.agreed for v in found)
    where = [
        f"{count(n)} {'model' if n == 1 else 'models'} {verdict.device_words(device)}"
        for device, n in verdict.models_by_device(found).items()
    ]
    wrong = verdict.disagreements(results)
    return {
        "words": f"{count(agreed)} of {count(compared)} predictions are what torch counts",
        "whole": agreed == compared,
        "devices": f"Counted: {', '.join(where)}.",
        "table": tables.table(
            [_line(one) for one in found],
            "Comparisons by section, and the models behind them by device",
            numbers=("compared", "agree"),
            html=("where",),
            red=[not one.whole for one in found],
        ),
        "disagreements": _disagreements(wrong[:MOST_DISAGREEMENTS]) if wrong else None,
        "more": count(len(wrong) - MOST_DISAGREEMENTS) if wrong[MOST_DISAGREEMENTS:] else None,
    }


def _line(one: verdict.Verdict) -> dict:
    return {
        "where": _link(one.source, one.title),
        "compared": one.compared,
        "agree": one.agreed,
        "models": ", ".join(f"{count(n)} {device}" for device, n in one.models.items()) or None,
    }


def _disagreements(rows: list[dict]) -> Markup:
    return tables.table(
        [row | {"where": _link(row["where"], row["where"])} for row in rows],
        "Where prediction and count differ",
        numbers=("predicted", "counted", "difference"),
        html=("where",),
        red=[True] * len(rows),
    )


def _link(section: str, words: str) -> Markup:
    return Markup('<a href="#{}">{}</a>').format(section, words)
