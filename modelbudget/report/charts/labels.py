"""Names next to points: those that have room, on a page and on a phone."""

from typing import Any

import altair as alt
import polars as pl

from modelbudget.report.charts import theme

ALWAYS = ("PaLM 540B", "GPT-2 124M", "Llama 3 8B")
"""Models that every chart with points for models names, before any other."""
WIDE, NARROW = 560, 240
"""Least width in pixels inside the axes, on a page and on a phone."""
PHONE = 400
"""Below this width inside the axes the labels are those of a phone."""
CHARACTER, LINE, GAP = 6.3, 14, 8
"""Width of a character, height of a line, and distance of a name from its point, in pixels."""


def names(rows: pl.DataFrame, x: alt.X, y: alt.Y, height: int) -> list[alt.Chart]:
    """Return layers with the names of the points that have room, the first rows first.

    `rows` has the columns of `x` and `y`, the name as `model`, and its place from the left and from
    the top as `right` and `down`, from 0 to 1. A name stands on the side of its point that has more
    room; it is left out if another one is there already.
    """
    first = [rows.filter(model=model) for model in ALWAYS]
    rows = pl.concat([*first, rows]).unique("model", keep="first", maintain_order=True)
    wide, narrow = (placed(rows, width, height) for width in (WIDE, NARROW))
    rows = rows.with_columns(
        is_wide=pl.col("model").is_in(wide),
        is_narrow=pl.col("model").is_in(narrow),
        side=pl.when(pl.col("right") < 0.5).then(pl.lit("left")).otherwise(pl.lit("right")),
    ).filter(pl.col("is_wide") | pl.col("is_narrow"))
    layers = []
    for (side,), of_side in rows.partition_by("side", as_dict=True, maintain_order=True).items():
        base = (
            alt.Chart(of_side.drop("right", "down", "side"))
            .transform_filter(f"width < {PHONE} ? datum.is_narrow : datum.is_wide")
            .encode(x=x, y=y, text="model:N")
        )
        shift = GAP if side == "left" else -GAP
        style: dict[str, Any] = {"align": side, "baseline": "middle", "dx": shift, "fontSize": 11}
        # Over paper, which sets them off from other marks.
        layers.append(
            base.mark_text(**style, stroke=theme.PAPER, strokeWidth=5, strokeJoin="round")
        )
        layers.append(base.mark_text(**style, color=theme.INK))
    return layers


def placed(rows: pl.DataFrame, width: int, height: int) -> list[str]:
    """Return the names that have room at this width, in the order of the rows."""
    taken: list[tuple[float, float, float]] = []
    named = []
    for model, right, down in rows.select("model", "right", "down").rows():
        wide, x, y = CHARACTER * len(model) + GAP, right * width, down * height
        left = x if right < 0.5 else x - wide
        fits = left >= 0 and left + wide <= width
        if fits and all(
            left + wide + GAP <= other or end + GAP <= left or abs(y - at) >= LINE
            for other, end, at in taken
        ):
            taken.append((left, left + wide, y))
            named.append(model)
    return named
