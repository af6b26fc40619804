"""Act 3: bytes a parameter of a training step, by recipe."""

import polars as pl

from modelbudget.compare.comparison import value
from modelbudget.components.groups import MEMORY
from modelbudget.report.chart_specs import variable_of_group
from modelbudget.report.charts.format import si_bytes
from modelbudget.report.charts.peak import peak_parts
from modelbudget.report.page_data import PAGE
from modelbudget.report.page_results import SweepResult
from modelbudget.report.recipe import bar, each, predicted_parts, recipe
from modelbudget.report.section import Page, Section

CHOSEN = PAGE["recipes"]
STATES: list[str] = CHOSEN["states"]
"""What is live in the optimizer's step, in the order of the stack."""
UNKNOWN = "temporary"
"""What is not known of an optimizer that no package here runs."""


def _contents(page: Page) -> dict | None:
    """Return the table of the first sweep whose points differ in the recipe alone."""
    sweep = next(filter(is_of_recipes, page.sweeps), None)
    if sweep is None:
        return None
    parts = _parts(sweep).filter(pl.col("phase") == "optimizer")
    n = int(sweep.comparison.filter(quantity="parameters", point=sweep.points["point"][0])[
        "measured"].sum())  # fmt: skip
    rows = [
        _row(point, parts.filter(point=point["point"]), n)
        for point in sweep.points.iter_rows(named=True)
    ]
    rows = [row for row in rows if row]
    if len(rows) < 2:
        return None
    page.drawn[sweep.name] = "cost"
    rows += _predicted_alone(sweep, n)
    most = max(row["bytes"] for row in rows)
    for row in rows:
        row["pieces"] = bar(row["parts"], most, lambda value: f", {each(value, n)} a parameter")
    first = sweep.points.row(0, named=True)
    return {
        "title": _title(rows),
        "finding": _finding(rows),
        "states": [(name, variable_of_group(name)) for name in STATES],
        "rows": rows,
        "run": recipe(page.catalogue[sweep.summary["base"]].label, first),
        "model": page.catalogue[sweep.summary["base"]].label,
        "tokens": f"{first['batch']} × {first['length']:,}",
        "sweep": sweep,
    }


def _predicted_alone(sweep: SweepResult, n: int) -> list[dict]:
    """Return the recipes that nothing measures, each of the first point with its adapter."""
    rows = []
    for label, settings in CHOSEN["predicted"].items():
        points = sweep.points.filter(pl.col("adapter") == settings.get("adapter", "none"))
        parts = predicted_parts(points, settings) if points.height else pl.DataFrame()
        row = parts.height and _row(
            {"label": f"{label}, predicted"}, parts.filter(pl.col("phase") == "optimizer"), n
        )
        rows += [row] if row else []
    return rows


def is_of_recipes(sweep: SweepResult) -> bool:
    """Whether all points have one base, and differ in the chosen fields and what these bring."""
    points = sweep.points
    recipes = points.select(name for name in CHOSEN["varies"] if name in points.columns).unique()
    shared = [
        name for name in ("base", "batch", "length", "data_parallel") if name in points.columns
    ]
    return (
        recipes.height > 2
        and points.select(shared).unique().height == 1
        and not _parts(sweep).is_empty()
    )


def _parts(sweep: SweepResult) -> pl.DataFrame:
    """Return the parts of the peaks: measured, or predicted where nothing was measured."""
    return peak_parts(sweep.comparison.with_columns(measured=value()))


def _row(point: dict, parts: pl.DataFrame, n: int) -> dict | None:
    by_group = dict(parts.select("group", "value").iter_rows())
    if not by_group:
        return None
    total = sum(by_group.values())
    is_unknown = parts["rank"].null_count() > 0
    return {
        "label": point["label"],
        "bytes": total,
        "is_unknown": is_unknown,
        "each": each(total, n),
        "number": total / n,
        "temporary": by_group.get("temporary", 0) / n,
        "peak": si_bytes(int(parts["worst"][0])),
        "cells": [
            "–" if name == UNKNOWN and is_unknown else each(by_group.get(name, 0), n)
            for name in STATES
        ],
        "parts": {name: by_group[name] for name in MEMORY if by_group.get(name)},
    }


def _title(rows: list[dict]) -> str:
    ends = sorted(rows, key=lambda row: row["number"])
    return (
        f"Training takes {ends[0]['each']} bytes a parameter ({ends[0]['label']}) to "
        f"{ends[-1]['each']} ({ends[-1]['label']}), activations apart"
    )


def _finding(rows: list[dict]) -> str:
    """Say how much the optimizer's temporaries add, and in which recipes they add nothing."""
    rows = [row for row in rows if not row["is_unknown"]]
    worst = max(rows, key=lambda row: row["temporary"])
    least = min(rows, key=lambda row: row["temporary"])
    smallest = f"{least['temporary']:.2f}" if least["temporary"] >= 0.005 else "none"
    return (
        f"While the optimizer updates, torch holds {worst['temporary']:.1f} more bytes for every "
        f"parameter with “{worst['label']}”, and {smallest} with “{least['label']}”. Parameters, "
        "gradients and optimizer states are there in every step."
    )


SECTION = Section(30, "cost", "What it costs to train", _contents)
