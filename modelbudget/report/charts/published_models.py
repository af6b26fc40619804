"""Charts of all published models: printed sizes, architectures, vocabulary, experts."""

import altair as alt
import polars as pl

from modelbudget.compare.zoo import AGREES, EXPLAINED, UNEXPLAINED, agreement
from modelbudget.components.groups import GROUPS, VOCABULARY
from modelbudget.report.charts import theme
from modelbudget.report.charts.bar_chart import bars
from modelbudget.report.charts.format import count, percent, short, signed_percent
from modelbudget.report.charts.grouped_values import budget, least_and_most, totals
from modelbudget.report.charts.heatmaps import share_of
from modelbudget.report.charts.labels import ALWAYS, fraction, names
from modelbudget.report.charts.sweep_tables import Chart, SweepTables

MARGIN = 62
"""Width in pixels of a vertical axis with its title."""
HEIGHT = 300
HIDING, CLEAR = 14, 48
"""Pixels from the prediction within which names would hide dots, and that are clear of them."""
EXPERTS = 128
"""Width in pixels of a vertical axis with names of models with experts."""
_STATUS = {
    AGREES: ("within rounding", theme.SOFT, "circle", 26),
    EXPLAINED: ("differs, with a reason", theme.DIFFERS, "triangle-up", 60),
    UNEXPLAINED: ("unexplained", theme.BAD, "diamond", 90),
}
"""Status → label, colour, shape and size of a point."""

_COUNTED = {
    "predicted": ("all", theme.SOFT, "square", 0),
    "active": ("active", GROUPS["experts"].light, "circle", -5),
    "active_without_input_embedding": (
        "active, no input embedding", GROUPS["experts"].light, "triangle-up", 6,
    ),
    "published_active": ("active, printed", theme.INK, "M-0.2,-1.6H0.2V1.6H-0.2Z", 0),
}  # fmt: skip
"""Count of a model with experts → label, colour, shape, and pixels below the line."""


def zoo_charts(zoo: pl.DataFrame, comparison: pl.DataFrame) -> dict[str, alt.TopLevelMixin]:
    """Return the charts of all published models by name; empty ones are left out.

    `zoo` is the table of `modelbudget.compare.zoo`, `comparison` that of its sweep.
    """
    # Two models with the same label would be drawn as one.
    label = pl.when(pl.col("label").is_unique()).then("label").otherwise("model").alias("model")
    shares = budget(comparison).join(
        zoo.select("point", "series", "family", label), on="point", maintain_order="left"
    )
    charts = {}
    if zoo["published_value_difference"].count():
        charts["printed"] = printed(zoo)
    if not shares.is_empty():
        charts["families"] = one_of_each_family(shares)
        charts["vocabulary"] = vocabulary_by_size(shares)
    if zoo["active"].count():
        charts["experts"] = experts(zoo)
    return charts


def _draw(tables: SweepTables) -> dict[str, alt.TopLevelMixin]:
    return {} if tables.zoo is None else zoo_charts(tables.zoo, tables.comparison)


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
    x = _size("predicted", "parameters, predicted", low, high)
    y = alt.Y(
        "off:Q", title="printed − predicted", scale=alt.Scale(domain=[least, most]),
        axis=alt.Axis(format="+.0%", minExtent=34, maxExtent=34),
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
            tooltip=[
                alt.Tooltip("label:N", title="model"),
                alt.Tooltip("predicted:Q", format=","),
                alt.Tooltip("published:N", title="printed"),
                alt.Tooltip("off:Q", format="+.2%", title="difference"),
                alt.Tooltip("reason:N"),
            ],
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


def one_of_each_family(shares: pl.DataFrame) -> theme.Layers:
    """Draw the shares of the largest model of each family, the largest first."""
    largest = (
        totals(shares).sort("total", "model", descending=[True, False])
        .unique("family", keep="first", maintain_order=True)
        .select("point", name=pl.col("model") + pl.format(" ({})", "family"))
    )  # fmt: skip
    rows = largest.join(shares, on="point", maintain_order="left").with_columns(label="name")
    return bars(rows, "parameters", "Parameters of the largest model of each family")


def vocabulary_by_size(shares: pl.DataFrame) -> theme.Layers:
    """Draw the share of token embedding and head against the size of the model."""
    rows = (
        share_of(shares, VOCABULARY)
        .filter(pl.col("share") > 0)
        .with_columns(power=pl.col("total").map_elements(lambda n: len(str(n)) - 1, pl.Int64))
    )
    low, high = least_and_most(rows, "total")
    least, _ = least_and_most(rows, "share")
    by_share = rows.sort("share", "model")
    ends = [by_share.unique("power", keep=end, maintain_order=True) for end in ("first", "last")]
    bottom = least * 0.7
    x = _size("total", "parameters", low, high)
    y = alt.Y(
        "share:Q",
        title="token embedding and head",
        scale=alt.Scale(type="log", nice=False, domain=[bottom, 1]),
        axis=alt.Axis(format="~%", values=[1e-4, 1e-3, 0.01, 0.1, 1], minExtent=34, maxExtent=34),
    )
    base = alt.Chart(rows.select("total", "share", label="model")).encode(
        x=x,
        y=y,
        tooltip=[
            alt.Tooltip("label:N", title="model"),
            alt.Tooltip("total:Q", format=",", title="parameters"),
            alt.Tooltip("share:Q", format=".2%"),
        ],
    )
    colour = GROUPS[VOCABULARY[0]].light
    points = base.mark_circle(color=colour, size=34, opacity=0.65)
    known = rows.filter(pl.col("model").is_in(list(ALWAYS)))
    named = pl.concat([*ends, known]).unique("point", keep="first", maintain_order=True)
    named = named.select(
        "model", "total", "share",
        right=fraction("total", low, high),
        down=1 - fraction("share", bottom, 1),
    )  # fmt: skip
    chart = alt.layer(points, *names(named, x, y, HEIGHT)).properties(
        width=theme.panel_width(1, MARGIN), height=HEIGHT
    )
    medians = rows.group_by("power").agg(pl.col("share").median(), pl.len()).sort("power")
    ends = [
        f"{percent(share)} from {short(10**power)} on"
        for power, share, _ in medians[:: max(medians.height - 1, 1)].rows()
    ]
    texts = [
        f"{percent(share)} from {short(10**power)} on ({n})" for power, share, n in medians.rows()
    ]
    finding = (
        f"The median share of the vocabulary is {' and '.join(ends)}. Medians "
        f"between two powers of ten, with the number of models: {', '.join(texts)}."
    )
    return theme.framed(chart, "Share of token embedding and head by size", finding, MARGIN)


def experts(zoo: pl.DataFrame) -> theme.Layers:
    """Draw total and active parameters of models with experts, in two ways of counting."""
    rows = zoo.filter(pl.col("active").is_not_null()).sort("predicted", "model")
    low, _ = least_and_most(rows, "active_without_input_embedding")
    _, high = least_and_most(rows, "predicted")
    x = _size("parameters", "parameters", int(low * 0.8), int(high * 1.15))
    y = alt.Y("label:N", sort=rows["label"].to_list()[::-1], title=None, axis=alt.Axis(
        labelLimit=EXPERTS - 6, labelPadding=6, minExtent=EXPERTS, maxExtent=EXPERTS,
        ticks=False, domain=False))  # fmt: skip
    labels, colours, shapes, *_ = (list(column) for column in zip(*_COUNTED.values(), strict=True))
    legend = alt.Legend(title=None, columns=1, labelLimit=240, symbolOpacity=1)
    lines = (
        alt.Chart(rows.select("label", parameters="active", all="predicted"))
        .mark_rule(color=theme.LINE, strokeWidth=2)
        .encode(x=x, x2="all:Q", y=y)
    )
    points = [
        alt.Chart(rows.select("label", parameters=column, counted=pl.lit(label)).drop_nulls())
        .mark_point(size=60, opacity=1, filled=True, strokeWidth=2, yOffset=offset)
        .encode(
            x=x,
            y=y,
            color=alt.Color("counted:N", scale=alt.Scale(domain=labels, range=colours),
                            legend=legend),
            shape=alt.Shape("counted:N", scale=alt.Scale(domain=labels, range=shapes),
                            legend=legend),
            tooltip=[
                alt.Tooltip("label:N", title="model"),
                alt.Tooltip("counted:N"),
                alt.Tooltip("parameters:Q", format=","),
            ],
        )
        for column, (label, _, _, offset) in _COUNTED.items()
    ]  # fmt: skip
    chart = alt.layer(lines, *points).properties(
        width=theme.panel_width(1, EXPERTS), height=28 * rows.height
    )
    shares = rows.with_columns(share=pl.col("active") / pl.col("predicted")).sort("share")
    least, most = (
        f"{percent(row['share'])} ({row['label']}: {count(row['active'])} of "
        f"{count(row['predicted'])})"
        for row in (shares.row(0, named=True), shares.row(-1, named=True))
    )
    finding = (
        f"Of the parameters of MoE models, a token uses {least} to {most}. With the input "
        "embedding, and predicted, since these models are not measured at full size."
    )
    title = "Total and active parameters of MoE models"
    return theme.framed(chart, title, finding, EXPERTS)


def _size(field: str, title: str, low: int, high: int) -> alt.X:
    """Return the horizontal channel of parameters, on a logarithmic scale."""
    return alt.X(
        f"{field}:Q",
        title=title,
        scale=alt.Scale(type="log", nice=False, domain=[low, high]),
        axis=alt.Axis(grid=False, labelExpr=theme.SHORT, **theme.ticks(low, high)),
    )
