"""Act 3: bytes a parameter of a training step, by recipe."""

from collections.abc import Iterator
from operator import itemgetter

import polars as pl

from modelbudget.common.number_format import each
from modelbudget.compare.comparison import value
from modelbudget.components.groups import MEMORY
from modelbudget.report.charts.peak import peak_parts
from modelbudget.report.page_data import PAGE
from modelbudget.report.recipe import predicted_parts, recipe
from modelbudget.report.section import Page, Section

CHOSEN = PAGE["recipes"]
STATES: list[str] = CHOSEN["states"]
"""What is live in the optimizer's step, in the order of the stack."""
UNKNOWN = "temporary"
"""What is not known of an optimizer that no package here runs."""


def _contents(page: Page) -> dict | None:
    """Return the table of the sweep whose points differ in the recipe alone."""
    sweep = page.sweep(CHOSEN["sweep"])
    if sweep is None:
        return None
    # Measured, or predicted where nothing was measured.
    parts = peak_parts(sweep.comparison.with_columns(measured=value()))
    points = sweep.points.to_dicts()
    rows = [
        row for point in points for row in _row(point["label"], parts.filter(point=point["point"]))
    ]
    if len(rows) < 2:
        return None
    page.drawn[sweep.name] = "cost"
    for label, settings in CHOSEN["predicted"].items():  # of the first point with its adapter
        alone = sweep.points.filter(pl.col("adapter") == settings.get("adapter", "none"))
        if alone.height:
            rows += _row(f"{label}, predicted", predicted_parts(alone, settings))
    of_first = sweep.comparison.filter(quantity="parameters", point=points[0]["point"])
    n, label = int(of_first["measured"].sum()), page.catalogue[sweep.summary["base"]].label
    return {
        "title": _title(rows, n),
        "finding": _finding(rows, n),
        "states": STATES,
        "unknown": UNKNOWN,
        "rows": rows,
        "most": max(row["bytes"] for row in rows),
        "n": n,
        "run": recipe(label, points[0]),
        "model": label,
        "tokens": f"{points[0]['batch']} × {points[0]['length']:,}",
        "sweep": sweep,
    }


def _row(label: str, parts: pl.DataFrame) -> Iterator[dict]:
    """Yield the row of a recipe, if the parts of the optimizer's step are known."""
    parts = parts.filter(phase="optimizer")
    by_group = dict(parts.select("group", "value").iter_rows())
    if by_group:
        yield {
            "label": label,
            "bytes": sum(by_group.values()),
            "is_unknown": parts["rank"].null_count() > 0,
            "peak": int(parts["worst"][0]),
            "parts": {name: by_group[name] for name in MEMORY if by_group.get(name)},
        }


def _title(rows: list[dict], n: int) -> str:
    least, *_, most = sorted(rows, key=lambda row: row["bytes"])
    return (
        f"Training takes {each(least['bytes'], n)} bytes a parameter ({least['label']}) to "
        f"{each(most['bytes'], n)} ({most['label']}), activations apart"
    )


def _finding(rows: list[dict], n: int) -> str:
    """Say how much the optimizer's temporaries add, and in which recipes they add nothing."""
    known = [row for row in rows if not row["is_unknown"]]
    added = [(row["parts"].get("temporary", 0), row["label"]) for row in known]
    (most, of_most), (least, of_least) = (end(added, key=itemgetter(0)) for end in (max, min))
    return (
        f"While the optimizer updates, torch holds {each(most, n)} more bytes for every "
        f"parameter with “{of_most}”, and {each(least, n)} with “{of_least}”. Parameters, "
        "gradients and optimizer states are there in every step."
    )


SECTION = Section(30, "cost", "What it costs to train", _contents)
