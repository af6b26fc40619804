"""Act 3: a model in bytes (parameters, optimizer, activations, cache), then in operations."""

import polars as pl

from modelbudget.components.groups import GROUPS, group_of
from modelbudget.report.charts.budget import evenly_spaced
from modelbudget.report.charts.format import count, percent, si_bytes, si_flops
from modelbudget.report.results import SweepResult
from modelbudget.report.section import Page, Section
from modelbudget.report.specs import variable_of_group

BYTES = {
    "parameters": "parameter_bytes",
    "gradients": "gradient_bytes",
    "optimizer": "optimizer_bytes",
    "activations": "activation_bytes",
}
OPERATIONS = {"forward": "flops_forward", "backward": "flops_backward"}
CACHE = "cache_bytes"
NEEDS = {*BYTES.values(), *OPERATIONS.values()}
SAME_RUN = ("architecture", "batch", "length", "dtype")
"""Fields in which two points are equal that belong to one model of the act."""
MOST = 4


def _contents(page: Page) -> list[dict]:
    """Return the bars of some models of the sweep that has the most of them."""
    sweeps = page.sweeps
    totals = [(sweep, _totals(sweep)) for sweep in sweeps]
    sweep, models = max(totals, key=lambda one: one[1].height, default=(None, None))
    if sweep is None or models is None or models.is_empty():
        return []
    chosen = evenly_spaced(models.rows(named=True), MOST)
    panels = [_panel(sweeps, sweep, row) for row in chosen]
    act = {
        "id": "bytes",
        "short": "In bytes, in operations",
        "title": _title(chosen),
        "finding": _finding(chosen),
        "panels": panels,
        "run": _run(chosen),
        "legend": _legend(panels),
        "sweep": {"name": sweep.name, "title": sweep.summary["title"]},
    }
    return [act]


def _totals(sweep: SweepResult) -> pl.DataFrame:
    """Return the points with all quantities in ascending size, with the sum of each quantity."""
    rows = sweep.comparison.filter(
        pl.col("quantity").is_in(list(NEEDS)), pl.col("measured").is_not_null()
    )
    if set(rows["quantity"].unique()) != NEEDS:
        return pl.DataFrame()
    found = rows.group_by("point", "quantity").agg(pl.col("measured").sum())
    found = found.pivot(on="quantity", index="point", values="measured").drop_nulls()
    return found.join(sweep.points.select("point", "label", *SAME_RUN), on="point").sort(
        "parameter_bytes", "label"
    )


def _panel(sweeps: list[SweepResult], sweep: SweepResult, row: dict) -> dict:
    rows = sweep.of_point(row)
    held = {name: _by_group(rows, quantity) for name, quantity in BYTES.items()}
    cache = _cache(sweeps, row)
    if cache:
        held["KV cache"] = cache
    of_pass = {name: _by_group(rows, quantity) for name, quantity in OPERATIONS.items()}
    return {
        "label": row["label"],
        "tokens": f"{row['batch']} × {count(row['length'])} tokens",
        "bars": [
            {"title": "bytes", "rows": _bars(held, si_bytes, "bytes")},
            {"title": "operations", "rows": _bars(of_pass, si_flops, "FLOPs")},
        ],
    }


def _by_group(rows: pl.DataFrame, quantity: str) -> dict[str, int]:
    """Return the measured value of each group, in the order of the stack."""
    found: dict[str, int] = {}
    chosen = rows.filter(pl.col("quantity") == quantity, pl.col("measured").is_not_null())
    for component, value in chosen.select("component", "measured").iter_rows():
        group = group_of(component)
        found[group] = found.get(group, 0) + value
    return {group: found[group] for group in GROUPS if found.get(group)}


def _cache(sweeps: list[SweepResult], row: dict) -> dict[str, int]:
    """Return the cache of the same model for the same tokens, from any sweep; empty if none."""
    for sweep in sweeps:
        same = sweep.points.filter(pl.col(name) == row[name] for name in SAME_RUN)
        for point in same["point"].to_list():
            found = _by_group(sweep.of_point({"point": point}), CACHE)
            if found:
                return found
    return {}


def _bars(amounts: dict[str, dict[str, int]], text, unit: str) -> list[dict]:
    """Return a bar for each amount, with its parts in percent of the largest amount."""
    most = max(sum(parts.values()) for parts in amounts.values())
    found = []
    for name, parts in amounts.items():
        x, pieces = 0.0, []
        for group, value in parts.items():
            wide = 100 * value / most
            pieces.append(
                {"x": f"{x:.3f}", "width": f"{wide:.3f}", "class": variable_of_group(group),
                 "title": f"{group}: {count(value)} {unit}", "group": group}
            )  # fmt: skip
            x += wide
        total = sum(parts.values())
        exact = f"{count(total)} {unit}"
        found.append({"name": name, "text": text(total), "exact": exact, "pieces": pieces})
    return found


def _per_parameter(row: dict) -> float:
    """Return the bytes of parameters, gradients and states, in multiples of the parameters'."""
    states = row["parameter_bytes"] + row["gradient_bytes"] + row["optimizer_bytes"]
    return states / row["parameter_bytes"]


def _title(rows: list[dict]) -> str:
    ratios = sorted({f"{_per_parameter(row):.1f}".removesuffix(".0") for row in rows}, key=float)
    times = ratios[0] if len(ratios) == 1 else f"{ratios[0]} to {ratios[-1]}"
    return f"Training takes {times} times the bytes of the parameters, before the first activation"


def _finding(rows: list[dict]) -> str:
    shares = {
        row["label"]: row["activation_bytes"] / sum(row[name] for name in BYTES.values())
        for row in rows
    }
    most, least = (choose(shares, key=shares.__getitem__) for choose in (max, min))
    return (
        f"Activations are {percent(shares[most])} of the bytes of {most} and "
        f"{percent(shares[least])} of those of {least}; of all these only they "
        "grow with the tokens."
    )


def _run(rows: list[dict]) -> str:
    dtypes = ", ".join(sorted({row["dtype"] for row in rows}))
    return f"{dtypes} parameters and activations"


def _legend(panels: list[dict]) -> list[tuple[str, str]]:
    there = {
        piece["group"]
        for panel in panels
        for bars in panel["bars"]
        for bar in bars["rows"]
        for piece in bar["pieces"]
    }
    return [(group, variable_of_group(group)) for group in GROUPS if group in there]


SECTION = Section(30, _contents)
