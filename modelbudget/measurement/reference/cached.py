"""Traces of the classes that points have, from the cache where they are in it.

Imports torch and transformers, which takes seconds, only if something is to be traced.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from modelbudget.architecture.run_config import RunConfig
from modelbudget.common import store
from modelbudget.common.fingerprint import code_of, versions
from modelbudget.common.workers import Failure
from modelbudget.measurement.reference.config import class_config, class_run
from modelbudget.measurement.reference.table import refused_table, traced_table
from modelbudget.sweeps.points_table import rows
from modelbudget.sweeps.sweep_file import Measure

log = logging.getLogger(__name__)
OF_MODEL = ("architecture", "run")
MADE_WITH = ("torch", "transformers")


class ClassRun(NamedTuple):
    """One class in one run, with the quantities to trace."""

    kind: str
    config: dict[str, Any]
    run: RunConfig
    quantities: frozenset[str]


class Needed(NamedTuple):
    """What the points of a sweep need of classes.

    `runs` are by key of the cache, `keys` by digests of architecture and run, and `refused` is a
    table of the points whose architecture the class cannot be.
    """

    runs: dict[str, ClassRun]
    keys: dict[tuple[str, str], str]
    refused: pl.DataFrame


def needed(points: pl.DataFrame, settings: Measure) -> Needed:
    """Return what the points that have a class need for the quantities of their sweep."""
    quantities = settings.of_reference()
    with_class = points.drop_nulls("transformers").unique(OF_MODEL, maintain_order=True)
    made_of = code_of("modelbudget.measurement.reference.many"), versions(*MADE_WITH)
    runs, keys, refused = {}, {}, [refused_table("", {}).with_columns(_of_model("", ""))]
    for row, kind in zip(rows(with_class), with_class["transformers"], strict=True):
        digests = row.architecture.digest(), row.run.digest()
        try:
            config = class_config(kind, row.architecture)
            run = class_run(kind, row.run)
        except ValueError as error:
            reasons = dict.fromkeys(sorted(quantities), str(error))
            refused.append(refused_table(kind, reasons).with_columns(_of_model(*digests)))
            continue
        one = ClassRun(kind, config, run, quantities)
        key = store.key(kind, config, run.digest(), sorted(quantities), *made_of)
        runs[key], keys[digests] = one, key
    return Needed(runs, keys, pl.concat(refused))


def trace_new(
    runs: Mapping[str, ClassRun], settings: Sequence[Measure], n_workers: int, folder: Path
) -> dict[str, str]:
    """Trace what is not in the cache, and add it; return the reasons of failures by key.

    A class that refuses a run is in the cache, with its reason. Processes that crash or exceed
    their time or memory are failures, which the next call tries again.
    """
    known = store.known(folder, list(runs))
    missing = {key: one for key, one in runs.items() if key not in known}
    log.info("%d classes in runs traced before, %d to trace", len(known), len(missing))
    if not missing:
        return {}
    from modelbudget.measurement.device import room
    from modelbudget.measurement.reference.many import OBJECTS_BYTES, Wanted, trace_all

    groups = _by_class(missing)
    wanted = [
        Wanted(
            missing[keys[0]].kind,
            missing[keys[0]].config,
            [(missing[key].run, missing[key].quantities) for key in keys],
        )
        for keys in groups
    ]
    timeout_s = max(one.timeout_s for one in settings)
    rooms = [room(one) for one in settings]
    n_workers = min(n_workers, rooms[0].free // OBJECTS_BYTES)
    found = trace_all(wanted, n_workers, timeout_s, min(one.cpu for one in rooms))
    tables, failed = [], {}
    for keys, outcomes in zip(groups, found, strict=True):
        for key, outcome in zip(keys, outcomes, strict=True):
            if isinstance(outcome, Failure):
                failed[key] = outcome.reason
                log.error("not traced: %s: %s", missing[key], outcome.reason)
            else:
                one = missing[key]
                table = traced_table(one.kind, one.quantities, outcome)
                tables.append(table.with_columns(key=pl.lit(key)))
    if tables:
        store.save(folder, pl.concat(tables))
    return failed


def reference_table(needed: Needed, failed: Mapping[str, str], folder: Path) -> pl.DataFrame:
    """Return the traces of a sweep: a row for each component or phase of each quantity.

    Columns: architecture, run (digests), component (of the class), quantity, reference, class,
    attention, replaced, method (the device), refusal (the reason of a missing value).
    """
    tables = [needed.refused]
    for digests, key in needed.keys.items():
        one = needed.runs[key]
        if key in failed:
            table = traced_table(one.kind, sorted(one.quantities), Failure(failed[key]))
            tables.append(table.with_columns(_of_model(*digests)))
    keys = pl.DataFrame(
        [(*digests, key) for digests, key in needed.keys.items()],
        dict.fromkeys((*OF_MODEL, "key"), pl.String),
        orient="row",
    )
    traced = store.load(folder, list(needed.runs))
    if traced is not None:
        tables.append(keys.join(traced, on="key").drop("key"))
    order = [*OF_MODEL, "quantity", "component"]
    return pl.concat(tables, how="diagonal").select(*OF_MODEL, pl.exclude(OF_MODEL)).sort(order)


def _by_class(runs: Mapping[str, ClassRun]) -> list[list[str]]:
    """Group keys by class and config, in ascending length."""

    def place(key: str) -> str:
        return f"{runs[key].kind} {runs[key].config}"

    ordered = sorted(runs, key=lambda key: (place(key), runs[key].run.length))
    return [list(keys) for _, keys in groupby(ordered, place)]


def _of_model(*digests: str) -> Iterator[pl.Expr]:
    yield from (pl.lit(digest).alias(name) for name, digest in zip(OF_MODEL, digests, strict=True))
