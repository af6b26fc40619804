"""Act 1 and the squares of act 2: parameters as squares, coloured by group of components."""

import polars as pl

from modelbudget.report.charts.budget import budget
from modelbudget.report.charts.format import count, percent
from modelbudget.report.charts.headline import COLUMNS, headline, squares
from modelbudget.report.results import SweepResult, headline_model
from modelbudget.report.section import Page, Section
from modelbudget.report.specs import variable_of_group
from modelbudget.report.verdict import device_text

SIDE, GAP = 10, 1
"""Distance of two squares, and the part of it between them, in units of the view box."""


def _contents(page: Page) -> list[dict]:
    sweeps, chosen = page.sweeps, headline_model(page.sweeps)
    if chosen is None:
        return []
    place, table = chosen
    comparison = sweeps[place].comparison.filter(pl.col("point") == table["point"][0])
    parts = table.filter(pl.col("value") > 0).sort("value", descending=True)
    predicted = comparison.filter(pl.col("quantity") == "parameters")["predicted"].sum()
    title = headline(table).to_dict()["title"]
    name, total = _name(sweeps[place], table), table["total"][0]
    first = parts.row(0, named=True)
    act = {
        "id": "headline",
        "short": f"{name} in squares",
        "page_title": f"Where the {count(total)} parameters of {name} go",
        "title": f"{percent(first['share'])} of {name} is {first['group']}",
        "finding": " ".join(title["subtitle"]),
        "drawing": drawing(dict(parts.select("group", "value").iter_rows()), n_squares(total)),
        "parts": [
            {
                "group": group,
                "share": percent(share),
                "count": count(value),
                "swatch": variable_of_group(group),
            }
            for group, share, value in parts.select("group", "share", "value").rows()
        ],
        "method": device_text(comparison["method"][0]),
        "predicted": count(int(predicted)),
    }
    return [act]


def n_squares(total: int) -> int:
    """Return the number of squares for a total: its first three digits."""
    return round(total / 10 ** max(len(str(total)) - 3, 0))


def drawing(values: dict[str, int], n: int) -> dict:
    """Return the view box, and a path for each group; columns are filled from the left."""
    high = -(-n // COLUMNS)
    numbers, paths, first = squares(list(values.values()), n), [], 0
    for group, number in zip(values, numbers, strict=True):
        cells = range(first, first + number)
        size = SIDE - GAP
        path = "".join(
            f"M{cell // high * SIDE} {cell % high * SIDE}h{size}v{size}h-{size}z" for cell in cells
        )
        paths.append({"group": group, "class": variable_of_group(group), "path": path})
        first += number
    return {"width": COLUMNS * SIDE - GAP, "height": high * SIDE - GAP, "paths": paths}


def _name(sweep: SweepResult, table: pl.DataFrame) -> str:
    """Return the label of a point, with its base if the label has only the swept fields."""
    label, base = table["label"][0], sweep.summary["base"]
    return f"{base} with {label}" if base and " = " in label else label


def measured_groups(sweep: SweepResult) -> pl.DataFrame:
    """Return the measured parameters of a sweep's points by group, with each point's record."""
    table = budget(sweep.comparison).select("point", "group", "value", "share", "total")
    return table.join(sweep.points.select("point", "label", "architecture", "family"), on="point")


SECTION = Section(10, _contents)
