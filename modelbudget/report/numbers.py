"""The points of a sweep of one's own: a table with the total of each quantity."""

import polars as pl
from markupsafe import Markup

from modelbudget.report import tables
from modelbudget.report.charts.chosen import amounts_of_points
from modelbudget.report.charts.format import count
from modelbudget.report.charts.grouped_values import evenly_spaced
from modelbudget.report.page_results import SweepResult

MOST_POINTS = 40


def points_table(sweep: SweepResult) -> Markup:
    """Return a row for each point, or for some at even spacing; of a peak, the largest phase."""
    comparison = sweep.comparison
    quantities = comparison["quantity"].drop_nulls().unique().sort().to_list()
    columns = {
        quantity: dict(amounts_of_points(comparison, quantity).select("point", "value").rows())
        for quantity in quantities
    }
    wrong = set(comparison.filter(pl.col("agrees").not_())["point"])
    labels = comparison.select("point", "label").unique("point", maintain_order=True).rows()
    shown = evenly_spaced(labels, MOST_POINTS)
    rows = [
        {"point": label} | {name: values.get(point) for name, values in columns.items()}
        for point, label in shown
    ]
    more = f", {len(shown)} of {count(len(labels))}" if len(shown) < len(labels) else ""
    red = [point in wrong for point, _ in shown]
    return tables.table(rows, f"Points{more}", tuple(quantities), red=red)
