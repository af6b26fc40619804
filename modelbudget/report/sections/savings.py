"""Act 5: what changes of a training step save, each alone and together."""

from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

import polars as pl

from modelbudget.catalogue.accelerators import Accelerator, accelerators
from modelbudget.common.paths import ACCELERATORS
from modelbudget.predict.predict import predict
from modelbudget.report.charts.format import (
    capitalized,
    count,
    percent,
    si_bytes,
    signed_percent,
)
from modelbudget.report.results import SweepResult
from modelbudget.report.section import Page, Section

PEAK = "peak_training_bytes"
HELD = {
    "parameter_bytes": "parameters",
    "gradient_bytes": "gradients",
    "optimizer_bytes": "optimizer states",
    "activation_bytes": "activations",
}
OPERATIONS = ("flops_forward", "flops_backward")
CACHE = "cache_bytes"
NOT_FIELDS = ("point", "label", "base", "architecture", "transformers", "run")
OPTIMIZERS = {"adamw": "AdamW", "sgd": "SGD"}
LEAST = 0.01
"""Least relative difference that the list of a change names."""


class Changes(NamedTuple):
    """A sweep of a baseline, of changes of it one by one, and of all of them.

    `fields` has the changed fields of each point between the first and the last; `values` the
    measured quantities of each point.
    """

    sweep: SweepResult
    rows: list[dict]
    fields: list[dict]
    values: list[dict[str, int]]


def _contents(page: Page) -> list[dict]:
    """Return the bars of the first sweep that is a baseline with changes."""
    sweeps = page.sweeps
    found = next((one for one in map(_changes, sweeps) if one), None)
    if found is None:
        return []
    peaks = _peaks(found)
    devices = accelerators(ACCELERATORS)
    first, single, every = found.values[0], found.values[1:-1], found.values[-1]
    labels = [row["label"] for row in found.rows]
    best = min(range(len(single)), key=lambda i: single[i][PEAK])
    bars = [_bar(found, i) for i in range(len(labels))]
    for i in (0, -1):
        bars[i]["causes"] = f"measured; {_device(found.values[i][PEAK], devices)}"
    page.acts["what-to-do"] = _data(found, peaks, devices)
    act = {
        "id": "what-to-do",
        "short": "What to do",
        "title": f"{capitalized(labels[1 + best])} alone saves "
        f"{_share(single[best][PEAK], first[PEAK])} of the peak memory, {labels[-1]} "
        f"{_share(every[PEAK], first[PEAK])}",
        "finding": _finding(found, peaks, best),
        "cache": _cache(sweeps, found),
        "bars": bars,
        "run": _run(found.rows[0]),
        "n_changes": len(single),
        "n_measured": len(bars),
        "n_all": len(peaks),
        "sweep": {"name": found.sweep.name, "title": found.sweep.summary["title"]},
    }
    return [act]


def _data(found: Changes, peaks: dict[tuple[int, ...], int], devices: list[Accelerator]) -> dict:
    first = found.values[0]
    return {
        "all": found.rows[-1]["label"],
        "measured": [_key(chosen) for chosen in _measured(len(found.fields))],
        "peaks": {
            _key(chosen): [si_bytes(value), count(value), _saved(value, first[PEAK]),
                           _width(value, first[PEAK]), _device(value, devices)]
            for chosen, value in peaks.items()
        },
    }  # fmt: skip


def _changes(sweep: SweepResult) -> Changes | None:
    """Return the points of a sweep if the last one has what each other one changes of the first.

    None as well if a peak was not measured, or no change saves memory.
    """
    rows = sweep.points.to_dicts()
    first = rows[0]
    changed = [
        {k: v for k, v in row.items() if k not in NOT_FIELDS and v != first[k]} for row in rows[1:]
    ]
    single, every = changed[:-1], changed[-1] if changed else {}
    together = {name: value for one in single for name, value in one.items()}
    if len(single) < 2 or not all(single) or together != every:
        return None
    if sum(map(len, single)) != len(every):
        return None
    measured = sweep.comparison.filter(pl.col("measured").is_not_null())
    values = [_values(measured.filter(point=row["point"])) for row in rows]
    peaks = [one[PEAK] for one in values if PEAK in one]
    saves = len(peaks) == len(rows) and peaks[0] > max(min(peaks[1:-1]), peaks[-1])
    return Changes(sweep, rows, single, values) if saves else None


def _values(rows: pl.DataFrame) -> dict[str, int]:
    """Return the sum of each quantity over components; of a peak, the largest phase."""
    by = rows.group_by("quantity").agg(
        total=pl.col("measured").sum(), most=pl.col("measured").max()
    )
    return {name: most if name == PEAK else n for name, n, most in by.iter_rows()}


def _measured(n: int) -> Iterator[tuple[int, ...]]:
    """Yield the measured combinations of changes: none, each one, all."""
    yield ()
    yield from ((i,) for i in range(n))
    yield tuple(range(n))


def _key(chosen: tuple[int, ...]) -> str:
    return " ".join(map(str, chosen))


def _peaks(found: Changes) -> dict[tuple[int, ...], int]:
    """Return the peak of every combination: measured, or else predicted if there is a formula."""
    n = len(found.fields)
    peaks = dict(zip(_measured(n), (one[PEAK] for one in found.values), strict=True))
    others = [chosen for size in range(2, n) for chosen in combinations(range(n), size)]
    rows = [_combined(found, chosen) for chosen in others]
    points = pl.from_dicts(rows, schema=found.sweep.points.schema)
    predicted = predict(points, [PEAK]).group_by("run").agg(pl.col("predicted").max())
    of = dict(predicted.drop_nulls().iter_rows())
    return peaks | {chosen: of[_key(chosen)] for chosen in others if _key(chosen) in of}


def _combined(found: Changes, chosen: tuple[int, ...]) -> dict:
    """Return the row of points with these changes, whose digests only tell it from the others."""
    changed = {name: value for i in chosen for name, value in found.fields[i].items()}
    return found.rows[0] | changed | {"run": _key(chosen)}


def _bar(found: Changes, i: int) -> dict:
    value, first = found.values[i], found.values[0]
    return {
        "label": found.rows[i]["label"],
        "text": si_bytes(value[PEAK]),
        "exact": f"{count(value[PEAK])} bytes",
        "width": _width(value[PEAK], first[PEAK]),
        "saved": _saved(value[PEAK], first[PEAK]),
        "causes": _causes(first, value),
    }


def _width(value: int, most: int) -> str:
    return f"{100 * value / most:.2f}"


def _saved(value: int, first: int) -> str:
    return "" if value == first else signed_percent((value - first) / first)


def _causes(first: dict[str, int], value: dict[str, int]) -> str:
    """Return which quantities a change makes smaller or larger."""
    found = [
        f"{title} {si_bytes(first[name])} → {si_bytes(value[name])}"
        for name, title in HELD.items()
        if name in value and abs(value[name] - first[name]) > LEAST * first[name]
    ]
    if all(name in value for name in OPERATIONS):
        before, after = (sum(one[name] for name in OPERATIONS) for one in (first, value))
        if abs(after - before) > LEAST * before:
            found.append(f"operations {signed_percent((after - before) / before)}")
    return "; ".join(found)


def _share(value: int, first: int) -> str:
    return percent(1 - value / first)


def _finding(found: Changes, peaks: dict[tuple[int, ...], int], best: int) -> str:
    """Compare what the best change saves alone and after the others."""
    first, every = found.values[0][PEAK], found.values[-1][PEAK]
    labels = [row["label"] for row in found.rows]
    text = (
        f"A training step of {labels[0]} takes {si_bytes(first)} at its peak, and "
        f"{si_bytes(every)} with {labels[-1]}."
    )
    others = tuple(i for i in range(len(found.fields)) if i != best)
    if others in peaks:
        alone, last = first - found.values[1 + best][PEAK], peaks[others] - every
        whose = "" if others in _measured(len(found.fields)) else ", as predicted"
        text += (
            f" Savings do not add up: {labels[1 + best]} saves {si_bytes(alone)} alone, and "
            f"{si_bytes(last)} where the other changes are made already{whose}."
        )
    return text


def _device(value: int, devices: list[Accelerator]) -> str:
    """Name the smallest accelerator that has room."""
    enough = [one for one in devices if one.bytes >= value]
    if not enough:
        return f"more than {devices[-1].name} has ({si_bytes(devices[-1].bytes)})"
    return f"the smallest device with room is {enough[0].name} ({si_bytes(enough[0].bytes)})"


def _cache(sweeps: list[SweepResult], found: Changes) -> str:
    """Return what single changes save of the cache of inference, if any sweep has measured it."""
    first, texts = found.rows[0]["architecture"], []
    for row in found.rows[1:-1]:
        before, after = (_caches(sweeps, one) for one in (first, row["architecture"]))
        both = before.keys() & after.keys()
        if row["architecture"] != first and both:
            run = max(both)
            texts.append(
                f"For inference, {row['label']} changes the KV cache of {count(run[0])} tokens "
                f"from {si_bytes(before[run])} to {si_bytes(after[run])} (measured)."
            )
    return " ".join(texts)


def _caches(sweeps: list[SweepResult], architecture: str) -> dict[tuple[int, int, str], int]:
    """Return the measured caches of a model by length, batch and dtype."""
    found = {}
    for sweep in sweeps:
        rows = sweep.points.filter(architecture=architecture).select(
            "point", "length", "batch", "dtype"
        )
        for point, *run in rows.iter_rows():
            value = _values(
                sweep.of_point({"point": point}).filter(pl.col("measured").is_not_null())
            ).get(CACHE)
            if value:
                found[tuple(run)] = value
    return found


def _run(row: dict) -> str:
    """Return the settings of the baseline."""
    n = row["data_parallel"]
    return (
        f"{row['batch']}\u00a0×\u00a0{count(row['length'])} tokens"
        + (f" on each of {n:,} devices" if n > 1 else "")
        + f", {row['dtype']}, {OPTIMIZERS.get(row['optimizer'], row['optimizer'])}"
    )


SECTION = Section(50, _contents)
