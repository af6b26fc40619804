"""The appearance of all charts: colours, fonts, axes, and the title of each."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import altair as alt
import polars as pl
from altair.utils import schemapi

from modelbudget.components.groups import GROUPS
from modelbudget.report.charts.palette import PALETTE

# Altair would compare each part of a chart with the schema of Vega-Lite when it is made, which
# takes a third of the time of drawing. `to_dict` of a whole chart compares all of it, as tests do.
schemapi.disable_debug_mode()

Drawn = TypeVar("Drawn", bound=alt.TopLevelMixin)
Layers = alt.LayerChart | alt.FacetChart
"""What `alt.layer` returns."""

WIDTH = 720
"""Pixels from the left edge of the first panel to the right edge of the last."""
COLUMNS, GAP = 3, 28
"""Panels in a row at most, and pixels between them."""

CHARACTER = 6
"""Mean width of a character in pixels, in the title of a panel."""
NARROW = 250
"""Width in pixels inside the axes of a panel on a narrow screen."""

INK, SOFT, LINE, PAPER, DIFFERS = (
    PALETTE[name][0] for name in ("ink", "soft", "line", "paper", "differs")
)
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_SI = "format(datum.value, '.3~s')"
SHORT = f"replace({_SI}, 'G', 'B')"
"""Vega expression: the number of a tick in three digits, billions as B."""
EXACT = f"datum.value < 1e6 ? format(datum.value, ',') : {SHORT}"
"""The same, but with all digits below a million, for sizes."""
BYTES = f"replace({_SI}, regexp('([kMGTPE]?)$'), '\\u2009$1B')"
"""The same, for bytes: with the SI prefix of the unit, 24 GB."""

_CONFIG = {
    "background": PAPER,
    "font": FONT,
    "view": {"stroke": None},
    "concat": {"spacing": GAP},
    "padding": {"left": 4, "right": 10, "top": 4, "bottom": 4},
    "title": {
        "anchor": "start", "color": INK, "fontSize": 15, "fontWeight": 600, "offset": 14,
        "subtitleColor": SOFT, "subtitleFontSize": 12, "subtitlePadding": 6,
    },
    "axis": {
        "labelColor": SOFT, "labelFontSize": 11, "titleColor": SOFT, "titleFontSize": 12,
        "titleFontWeight": "normal", "titlePadding": 8, "gridColor": LINE, "domainColor": LINE,
        "tickColor": LINE, "labelOverlap": "greedy", "labelSeparation": 6,
    },
    "legend": {
        "orient": "top", "labelColor": INK, "labelFontSize": 12, "titleColor": SOFT,
        "titleFontSize": 12, "titleFontWeight": "normal", "offset": 8,
        "titleLimit": 400, "gradientLabelOffset": 6,
    },
    "text": {"color": INK, "fontSize": 12},
}  # fmt: skip


def tick_labels(quantity: str) -> str:
    """Return the Vega expression of the ticks of a quantity: bytes, FLOPs (G, T) or a count (B)."""
    if "bytes" in quantity:
        return BYTES
    return _SI if quantity.startswith("flops_") else SHORT


def colour(titles: list[str], **legend) -> alt.Color:
    """Return the colour channel of the column `group`, for these groups."""
    scale = alt.Scale(domain=titles, range=[GROUPS[title].light for title in titles])
    legend = alt.Legend(symbolType="square", **legend)
    return alt.Color("group:N", scale=scale, legend=legend, title=None)


def panels(
    charts: Sequence[tuple[str | None, alt.Chart | Layers]],
    height: int,
    title: str,
    finding: str,
    margin: int,
    groups: Sequence[str] = (),
) -> alt.ConcatChart:
    """Return charts with the titles of their panels, in rows that fill the width.

    They share their scales but those of the axes; each has a margin for its vertical axis.
    """
    columns = min(len(charts), COLUMNS)
    width = (WIDTH + GAP) // columns - GAP - margin
    drawn = [
        chart.properties(
            width=width,
            height=height,
            **({} if name is None else {"title": _panel_title(name, min(width, NARROW))}),
        )
        for name, chart in charts
    ]
    concatenated = alt.concat(*drawn, columns=columns).resolve_scale(
        color="shared", opacity="shared", shape="shared", strokeDash="shared"
    )
    return framed(concatenated, title, finding, margin, columns, groups)


def _panel_title(text: str, width: int) -> alt.Title:
    """Return the title of a panel, wrapped to a width but not within `field = value`."""
    lines = textwrap.wrap(text.replace(" = ", "\u00a0=\u00a0"), width // CHARACTER)
    lines = [line.replace("\u00a0", " ") for line in lines]
    title = lines if len(lines) > 1 else text
    return alt.Title(title, fontSize=12, fontWeight="normal", color=INK, offset=6)


def ticks(low: float, high: float) -> dict[str, Any]:
    """Return the marks of a logarithmic axis or legend, as properties of Vega-Lite.

    They are powers of ten, or 1, 2 and 5 times those if there are fewer than three. If these are
    fewer too, Vega chooses about five. `values` and `tickCount` are never set together: a
    logarithmic axis drops the labels of `values` beyond `tickCount`.
    """
    decades = range(len(str(int(high))))
    for steps in ((1,), (1, 2, 5)):
        marks = [k * 10**power for power in decades for k in steps if low <= k * 10**power <= high]
        if len(marks) >= 3:
            return {"values": marks}
    return {"tickCount": 5}


def thresholds(
    rows: pl.DataFrame, place: Mapping[str, Any], text: Mapping[str, Any], **style
) -> list[alt.Chart]:
    """Return a dashed line at the `place` of each row, and its text with a place and a style."""
    base = alt.Chart(rows).encode(**place)
    return [
        base.mark_rule(color=DIFFERS, strokeDash=[4, 3]),
        base.mark_text(color=DIFFERS, align="left", **style).encode(**text),
    ]


def vertical(extent: int = 42, **more) -> alt.Axis:
    """Return a vertical axis of fixed width: panels line up, and the page knows its pixels."""
    return alt.Axis(minExtent=extent, maxExtent=extent, **more)


def tooltip(
    texts: Mapping[str, str], numbers: Mapping[str, str] = {}, shares: Mapping[str, str] = {}
) -> list[alt.Tooltip]:
    """Return what a tooltip lists, by column: texts, exact numbers, and shares in percent."""
    columns = ((texts, "N", alt.Undefined), (numbers, "Q", ","), (shares, "Q", ".2%"))
    return [
        alt.Tooltip(f"{column}:{kind}", format=format_, title=title)
        for titles, kind, format_ in columns
        for column, title in titles.items()
    ]


def framed(
    chart: Drawn, title: str, finding: str, margin: int, columns: int = 1, groups=()
) -> Drawn:
    """Return the chart with title, finding and the data that the page needs to resize it.

    `usermeta` has the number of panels in a row, the pixels between them and of the vertical axis
    of each, and the groups in the legend.
    """
    subtitle = textwrap.wrap(finding, 110, break_on_hyphens=False)
    return chart.properties(
        title=alt.Title(title, subtitle=subtitle),
        description=f"{title}. {finding}",
        usermeta={"columns": columns, "gap": GAP, "margin": margin, "groups": list(groups)},
        config=_CONFIG,
    )
