"""The chart of all published models: their printed sizes."""

import altair as alt
import polars as pl

from modelbudget.compare.zoo import AGREES, EXPLAINED, UNEXPLAINED, agreement
from modelbudget.report.charts import theme
from modelbudget.report.charts.format import short, signed_percent
from modelbudget.report.charts.grouped_values import least_and_most
from modelbudget.report.charts.labels import ALWAYS, fraction, names
from modelbudget.report.charts.sweep_tables import Chart, SweepTables

MARGIN = 62
"""Width in pixels of a vertical axis with its title."""
HEIGHT = 300
HIDING, CLEAR = 14, 48
"""Pixels from the prediction within which names would hide dots, and that are clear of them."""
_STATUS = {
    AGREES: ("within rounding", theme.SOFT, "circle", 26),
    EXPLAINED: ("differs, with a reason", theme.DIFFERS, "triangle-up", 60),
    UNEXPLAINED: ("unexplained", theme.BAD, "diamond", 90),
}
"""Status → label, colour, shape and size of a point."""


def zoo_charts(zoo: pl.DataFrame) -> dict[str, theme.Layers]:
    """Return the chart of printed sizes by name, from the table of `modelbudget.compare.zoo`."""
    return {"printed": printed(zoo)} if zoo["published_value_difference"].count() else {}


def _draw(tables: SweepTables) -> dict[str, theme.Layers]:
    return {} if tables.zoo is None else zoo_charts(tables.zoo)


CHART = Chart(_draw, lambda tables: tables.zoo is not None)


def printed(zoo: pl.DataFrame) -> theme.Layers:
    """Draw the relative difference of printed sizes from predictions, by size."""
    rows = zoo.filter(pl.col("published_value_difference").is_not_null()).select(
        "label", "predicted", "published", reason="published_value_reason",
        off=pl.col("published_value_difference") / pl.col("predicted"),
        status=agreement("published_value").replace({k: v[0] for k, v in _STATUS.items()}),
    )  # fmt: skip
    legend = alt.Legend(title=None, columns=3, symbolOpacity=1)
    labels, colours, shapes, sizes = (list(c) for c in zip(*_STATUS.values(), strict=True))
    low, high = least_and_most(rows, "predicted")
    least, most = least_and_most(rows, "off")
    rows = rows.with_columns(size=pl.col("status").replace_strict(labels, sizes)).sort("size")
    x = theme.number_of_parameters(rows, "predicted", "parameters, predicted")
    y = alt.Y(
        "off:Q", title="printed − predicted", scale=alt.Scale(domain=[least, most]),
        axis=theme.vertical(34, format="+.0%"),
    )  # fmt: skip
    points = (
        alt.Chart(rows)
        .mark_point(filled=True, opacity=0.8)
        .encode(
            x=x,
            y=y,
            color=alt.Color("status:N", scale=alt.Scale(domain=labels, range=colours),
                            legend=legend),
            shape=alt.Shape("status:N", scale=alt.Scale(domain=labels, range=shapes),
                            legend=legend),
            size=alt.Size("size:Q", scale=None),
            tooltip=theme.tooltip(
                {"label": "model", "published": "printed", "reason": "reason"},
                {"predicted": "predicted"}, {"off": "difference"},
            ),
        )
    )  # fmt: skip
    furthest = rows.sort(
        pl.col("status") == labels[2], pl.col("off").abs(), descending=True, maintain_order=True
    ).filter((pl.col("status") != labels[0]) | pl.col("label").is_in(list(ALWAYS)))
    pixels = HEIGHT / ((most - least) or 1)
    named = furthest.select(
        "predicted", "off", model="label",
        right=fraction("predicted", low, high),
        down=(most - pl.col("off")) * pixels / HEIGHT,
        shift=pl.when(pl.col("off").abs() * pixels < HIDING).then(CLEAR).otherwise(0),
    )  # fmt: skip
    chart = alt.layer(points, *names(named, x, y, HEIGHT)).properties(
        width=theme.panel_width(1, MARGIN), height=HEIGHT
    )
    title = "Printed sizes against predicted parameters"
    return theme.framed(chart, title, _printed_finding(rows, labels), MARGIN)


def _printed_finding(rows: pl.DataFrame, labels: list[str]) -> str:
    n = [rows.filter(pl.col("status") == label).height for label in labels]
    furthest = rows.sort(pl.col("off").abs(), maintain_order=True).row(-1, named=True)
    unexplained = rows.filter(pl.col("status") == labels[2])["label"].to_list()
    without = f" ({'; '.join(unexplained)})" if unexplained else ""
    low, high = (short(end) for end in least_and_most(rows, "predicted"))
    return (
        f"From {low} to {high} parameters, {n[0]} of {rows.height} printed sizes equal the "
        f"prediction within their rounding, {n[1]} differ for a known reason, {n[2]} without one"
        f"{without}. Largest difference: {furthest['label']}, {signed_percent(furthest['off'])}."
    )
