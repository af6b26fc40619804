"""Memory against sequence length, and the lengths at which a part of it starts to dominate."""

import math
import re
from collections.abc import Iterator
from fractions import Fraction
from operator import itemgetter

import altair as alt
import polars as pl

from modelbudget.common.number_format import capitalized, count, percent, si_bytes
from modelbudget.report.charts import theme
from modelbudget.report.charts.area_chart import SERIES, amounts_along, size
from modelbudget.report.charts.chart_tables import SweepTables, amounts_of_points, grouped, values
from modelbudget.report.charts.component_charts import SIDE_BY_SIDE, name_of
from modelbudget.sweeps.fields_in_words import field_title

TITLES = {
    "activation_bytes": "Activations by sequence length",
    "cache_bytes": "KV cache or recurrent state by sequence length",
}
"""Quantities that grow with length, and the titles of their charts."""
MOST_NAMED = 4
"""Up to this number of lines a finding names each; of more it counts those of one finding."""
LABELLED = re.compile(r"(, )?length = \d+(?:,\d{3})*(, )?")
"""The part of a point's label that the axis already shows."""


def of_sweep(tables: SweepTables) -> dict[str, alt.ConcatChart]:
    """Draw each quantity that grows with length, of a sweep over some lengths."""
    if len(tables.axes.get("length", [])) <= SIDE_BY_SIDE:
        return {}
    # A cache is drawn as a share of the weights.
    without = set() if "parameter_bytes" in tables.measured else {"cache_bytes"}
    drawn = sorted(TITLES.keys() & tables.measured - without)
    return {
        name_of(quantity, "total"): by_length(tables.comparison, quantity) for quantity in drawn
    }


def by_length(comparison: pl.DataFrame, quantity: str) -> alt.ConcatChart:
    """Draw a quantity against `length` on logarithmic scales.

    There is a line for each series of points that differ in length only. For activations the chart
    marks where the part that grows with length² becomes the larger one. A cache is drawn as a share
    of the model's own parameters, which must be measured.
    """
    measured = comparison.drop_nulls("measured")
    weights = amounts_of_points(measured, "parameter_bytes").select("point", weights="value")
    rows = (
        amounts_of_points(measured, quantity)
        .join(weights, on="point", how="left", maintain_order="left")
        .with_columns(series=pl.col("label").map_elements(_without_length, pl.String))
        .filter(pl.col("length").n_unique().over("series") > 1)
    )
    is_share = quantity == "cache_bytes"
    marks, finding = _against_weights(rows) if is_share else _where_squares_dominate(rows)
    if is_share:
        rows = rows.with_columns(value=pl.col("value") / pl.col("weights"))
    amount = "share of the bytes of the weights" if is_share else quantity
    return amounts_along(
        rows, amount, "length", SERIES, finding=finding, title=TITLES[quantity], marks=marks,
        reaches=[1.0] if is_share else [],
    )  # fmt: skip


def _without_length(label: str) -> str:
    return LABELLED.sub(lambda match: ", " * bool(match[1] and match[2]), label) or "all"


def _of_each_series(rows: pl.DataFrame) -> Iterator[tuple[str, list[Fraction]]]:
    """Yield each series that is a quadratic polynomial in length, with its coefficients.

    The constant comes first. Three values determine the polynomial; all others must equal it to the
    byte, or the series is left out.
    """
    for (name,), line in rows.group_by("series", maintain_order=True):
        known = line.sort("length").select("length", "value").rows()
        if len(known) < 3:
            continue
        polynomial = _through(*known[:2], known[-1])
        if all(sum(c * x**i for i, c in enumerate(polynomial)) == y for x, y in known):
            yield name, polynomial


def _through(*points: tuple[int, int]) -> list[Fraction]:
    """Return the coefficients of the parabola through three points (divided differences)."""
    (x0, y0), (x1, y1), (x2, y2) = points
    first = Fraction(y1 - y0, x1 - x0)
    square = (Fraction(y2 - y0, x2 - x0) - first) / (x2 - x1)
    return [y0 - first * x0 + square * x0 * x1, first - square * (x0 + x1), square]


def _where_squares_dominate(rows: pl.DataFrame) -> tuple[list[alt.Chart], str]:
    """Find and mark where the part that grows with length² becomes larger than the rest."""
    crossings: list[dict] = []
    lines: list[tuple[str, str]] = []
    lengths = values(rows, "length")
    for name, (constant, slope, square) in _of_each_series(rows):
        if not square:
            lines.append((name, "nothing grows with length²"))
            continue
        root = math.sqrt(float(slope**2 + 4 * square * constant))
        crossing = math.ceil((float(slope) + root) / float(2 * square))
        text = f"length² dominates from {count(crossing)}"
        lines.append((name, f"{text} tokens on"))
        if lengths[0] < crossing < lengths[-1]:
            crossings.append({"length": crossing, "text": text})
    n, by_text = rows["series"].n_unique(), grouped(lines, itemgetter(1))
    if n <= MOST_NAMED:
        texts = [f"with {name}, {text}" for of in by_text.values() for name, text in of]
    else:
        texts = [f"in {len(of)} of {n} lines {text}" for text, of in by_text.items()]
    finding = capitalized("; ".join(texts) or "no line is a polynomial in length") + "."
    if not crossings:
        return [], finding
    x = size("length", rows, field_title("length"))
    text = {"text": "text:N", "y": alt.value(8)}
    return theme.thresholds(pl.DataFrame(crossings), {"x": x}, text, dx=6, fontSize=12), finding


def _against_weights(rows: pl.DataFrame) -> tuple[list[alt.Chart], str]:
    """Mark where a cache is as large as the weights, and find from which length on it is larger."""
    weights_of = dict(rows.select("series", "weights").iter_rows())
    texts = [
        f"{count(math.ceil((weights_of[name] - constant) / slope))} tokens on ({name})"
        for name, (constant, slope, square) in _of_each_series(rows)
        if slope and not square
    ]
    finding = (
        f"For one sequence, the cache exceeds the weights from {', and from '.join(texts)}."
        if texts
        else "The cache exceeds the weights at no length."
    )
    for (name,), line in rows.sort("length").group_by("series", maintain_order=True):
        *_, before, value = line["value"]
        if value == before:
            finding += (
                f" {name} stays at {si_bytes(value)}, {percent(value / weights_of[name])} of them."
            )
    one = pl.DataFrame({"value": [1.0]})
    text = {"x": alt.value(0), "text": alt.value("as large as the weights")}
    return theme.thresholds(one, {"y": "value:Q"}, text, baseline="top", dx=4, dy=4), finding
