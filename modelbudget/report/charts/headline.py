"""Parameters of one model as squares, one for a round number of parameters, coloured by group."""

import altair as alt
import polars as pl

from modelbudget.report.charts import theme
from modelbudget.report.charts.format import count, percent
from modelbudget.report.charts.grouped_values import budget

COLUMNS = 45
_UNITS = {0: "one", 1: "ten", 2: "a hundred"}
_POWERS = {
    0: "", 3: "thousand", 6: "million", 9: "billion", 12: "trillion", 15: "quadrillion",
}  # fmt: skip


def largest(comparisons: list[pl.DataFrame]) -> tuple[int, pl.DataFrame] | None:
    """Find the largest measured model, the first of equal ones.

    Return the index of its comparison and its budget, or None if nothing was measured.
    """
    found = None
    for place, comparison in enumerate(comparisons):
        table = budget(comparison)
        if table.is_empty() or (found and table["total"].max() <= found[1]["total"][0]):
            continue
        point = table.filter(pl.col("total") == table["total"].max())["point"][0]
        found = place, table.filter(pl.col("point") == point)
    return found


def headline(table: pl.DataFrame) -> alt.Chart:
    """Draw the parameters of the table's only point, with each group's number in the legend."""
    rows = table.filter(pl.col("value") > 0).sort("value", descending=True)
    total, label = rows["total"][0], rows["label"][0]
    power = max(len(str(total)) - 3, 0)
    numbers = squares(rows["value"].to_list(), round(total / 10**power))
    cells = pl.DataFrame(
        {"group": [g for g, n in zip(rows["group"], numbers, strict=True) for _ in range(n)]}
    ).with_row_index("cell")
    high = -(-cells.height // COLUMNS)
    cells = cells.select("group", column=pl.col("cell") // high, row=pl.col("cell") % high)
    groups = rows["group"].to_list()
    texts = {
        group: f"{group} · {percent(share)} · {count(value)}"
        for group, share, value in rows.select("group", "share", "value").rows()
    }
    labels = "".join(f"datum.label == '{group}' ? '{text}' : " for group, text in texts.items())
    legend = {"columns": 2, "labelLimit": 340, "orient": "bottom", "labelExpr": f"{labels} ''"}
    height = theme.WIDTH // COLUMNS * high
    chart = (
        alt.Chart(cells)
        .mark_rect(stroke=theme.PAPER, strokeWidth=1.5, cornerRadius=2)
        .encode(
            x=alt.X("column:O", axis=None),
            y=alt.Y("row:O", axis=None),
            color=theme.colour(groups, **legend),
            tooltip=[alt.Tooltip("group:N", title="component")],
        )
        .properties(width=theme.WIDTH, height=height)
    )
    finding = (
        f"Each square is {_power_of_ten(power)} parameters: "
        + ", ".join(f"{n} {group}" for group, n in zip(groups, numbers, strict=True) if n)
        + "."
    )
    return theme.framed(chart, f"{label}: {count(total)} parameters", finding, 0, groups=groups)


def squares(amounts: list[int], n: int) -> list[int]:
    """Distribute the squares in proportion to the amounts, by the largest remainder method."""
    total = sum(amounts)
    shares = [amount * n // total for amount in amounts]
    remainders = [amount * n % total for amount in amounts]
    by_remainder = sorted(range(len(amounts)), key=lambda i: remainders[i], reverse=True)
    for i in by_remainder[: n - sum(shares)]:
        shares[i] += 1
    return shares


def _power_of_ten(power: int) -> str:
    """Return 10 ** power in words: 9 gives `one billion`."""
    rest = power % 3
    return f"{_UNITS[rest]} {_POWERS[power - rest]}".strip()
