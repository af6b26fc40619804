"""Peak memory of inference, prefill and decode: weights, KV cache and the rest."""

import polars as pl

from modelbudget.report.charts import peak, theme
from modelbudget.report.charts.format import percent
from modelbudget.report.charts.sweep_tables import Chart, SweepTables

NEEDS = frozenset({"parameter_bytes", "cache_bytes", "peak_inference_bytes"})
PHASES = {"prefill": "prefill", "decode": "decode"}
"""Components of the peak: all tokens of the prompt at once, and one more token."""


def inference_parts(comparison: pl.DataFrame) -> pl.DataFrame:
    """Return one row for each point × phase × part of the phase's peak, as `peak.peak_parts`.

    `temporary` is the peak without weights and the cache of the whole prompt. Points whose peak is
    smaller than these two are left out, and points with a missing quantity.
    """
    return peak.of_points(comparison, NEEDS, _parts_of)


def _parts_of(table: pl.DataFrame) -> dict[str, dict[str, int]]:
    sums = dict(table.group_by("quantity").agg(pl.col("measured").sum()).iter_rows())
    of_peak = table.filter(quantity="peak_inference_bytes").select("component", "measured")
    peaks = dict(of_peak.rows())
    always = {"parameters": sums["parameter_bytes"], "KV cache": sums["cache_bytes"]}
    if peaks.keys() != PHASES.keys() or min(peaks.values()) < sum(always.values()):
        return {}
    rest = {phase: peaks[phase] - sum(always.values()) for phase in PHASES}
    return {phase: always | {"temporary": rest[phase]} for phase in PHASES}


def _draw(tables: SweepTables) -> dict[str, theme.Layers]:
    """Draw the parts of prefill and decode of each model, as shares of its larger peak."""
    parts = inference_parts(tables.comparison)
    if parts.is_empty():
        return {}
    title = "Peak memory of inference by part"
    return {"inference-parts": peak.composition(parts, PHASES, title, _finding(parts))}


CHART = Chart(_draw, lambda tables: tables.is_list and not tables.solved)


def _finding(table: pl.DataFrame) -> str:
    """Compare the weights' share of prefill, and the largest cache relative to its weights."""
    prefill = table.filter(pl.col("phase") == "prefill")
    weights = prefill.filter(group="parameters").with_columns(
        share=pl.col("value") / pl.col("peak")
    )
    least, most = (weights.sort("share").row(place, named=True) for place in (0, -1))
    text = (
        f"In prefill the weights are {percent(least['share'])} ({least['label']}) to "
        f"{percent(most['share'])} ({most['label']}) of the peak."
    )
    if weights.height == 1:
        text = f"In prefill the weights are {percent(least['share'])} of the peak."
    caches = table.filter(phase="decode", group="KV cache").join(
        weights.select("point", weights="value"), on="point"
    )
    if caches.is_empty():
        return text
    largest = caches.sort(pl.col("value") / pl.col("weights")).row(-1, named=True)
    return (
        f"{text} The largest cache relative to the weights is that of {largest['label']}: "
        f"{percent(largest['value'] / largest['weights'])} of them. Temporary is all other memory: "
        "hidden states and logits."
    )
