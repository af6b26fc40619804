"""Counts and traces of the classes that points have, from the cache where they are in it.

Imports torch and transformers, which takes seconds, only if something is to be counted or traced.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import tokens
from modelbudget.catalogue.implementations import TRANSFORMERS
from modelbudget.common import store
from modelbudget.common.code_digests import measured_by
from modelbudget.common.workers import Failure, for_readers
from modelbudget.measurement.reference.class_run import ClassRun, class_run, whole_class
from modelbudget.sweeps.sweep_file import Measure

if TYPE_CHECKING:
    from modelbudget.measurement.reference.class_counts import Witness
    from modelbudget.measurement.reference.class_trace import Traced
    from modelbudget.sweeps.class_config import ClassOfPoint


OF_POINT = ("point", "built_from")
"""Columns about a point: its number, and whose keys its class is built from."""
COUNTED = {"class": pl.String, "parameters": pl.Int64, "buffers": pl.Int64, "refusal": pl.String}

TRACED = {
    "component": pl.String, "quantity": pl.String, "reference": pl.Int64, "class": pl.String,
    "attention": pl.String, "replaced": pl.String, "method": pl.String, "refusal": pl.String,
}  # fmt: skip
"""`component` is one of the class, or a phase; null where there is no value, with the `refusal`."""


def witness_table(counts: list[Witness]) -> pl.DataFrame:
    """Return a row for each class, in the order given; columns as `Witness`."""
    rows = [(w.class_name, w.parameters, w.buffers, w.refusal) for w in counts]
    return pl.DataFrame(rows, COUNTED, orient="row")


def traced_table(
    class_name: str, quantities: Iterable[str], outcome: Traced | Failure
) -> pl.DataFrame:
    """Return a row for each component or phase of each quantity, or one with the reason."""
    if isinstance(outcome, Failure):
        return refused_table(class_name, dict.fromkeys(quantities, outcome.reason))
    how = {"class": class_name, "attention": outcome.attention, "replaced": outcome.replaced,
           "method": outcome.method}  # fmt: skip
    rows = [
        {"component": component, "quantity": quantity, "reference": value, **how}
        for quantity, values in outcome.values.items()
        for component, value in values.items()
    ]
    traced = pl.from_dicts(rows, TRACED)
    return pl.concat([traced, refused_table(class_name, outcome.missing)])


def refused_table(class_name: str, reasons: Mapping[str, str]) -> pl.DataFrame:
    """Return a row for each quantity that a class cannot have, with the reason."""
    rows = [
        {"quantity": quantity, "refusal": for_readers(why), "class": class_name}
        for quantity, why in reasons.items()
    ]
    return pl.from_dicts(rows, TRACED)


log = logging.getLogger(__name__)


class Needed(NamedTuple):
    """What the points of a sweep need of classes.

    `runs` are by key of the cache, and `keys` by point. `refused` is a table of the points whose
    architecture or run the class cannot have.
    """

    runs: dict[str, ClassRun]
    keys: pl.DataFrame
    refused: pl.DataFrame


def needed(classes: Iterable[ClassOfPoint], settings: Measure) -> Needed:
    """Return what the classes of points need for the quantities of their sweep.

    With `classes: sample`, only the points of a sample, which is chosen in `sample`.
    """
    quantities = settings.of_reference()
    made_of = measured_by("modelbudget.measurement.reference.class_trace")
    runs, keys, predicted = {}, [], set()
    refused = [refused_table("", {}).with_columns(_of_point("", ""))]
    for class_ in classes:
        try:
            run, config = class_run(class_.class_name, class_.run), class_.keys_of_config()
        except ValueError as error:
            table = refused_table(class_.class_name, dict.fromkeys(sorted(quantities), str(error)))
            refused.append(table.with_columns(_of_point(class_.point, class_.built_from)))
        else:
            key = store.key(class_.class_name, config, run.digest(), sorted(quantities), *made_of)
            runs[key] = ClassRun(class_.class_name, config, run, quantities)
            keys.append((class_.point, class_.built_from, key))
            if class_.run.implementation == TRANSFORMERS:
                predicted.add(key)
    if settings.classes == "sample":
        chosen = predicted | sample((key, *class_[:3]) for key, class_ in runs.items())
        runs = {key: class_ for key, class_ in runs.items() if key in chosen}
        keys = [of_point for of_point in keys if of_point[-1] in chosen]
    return Needed(runs, _keys(keys), pl.concat(refused))


def begin_new(
    runs: Mapping[str, ClassRun], settings: Sequence[Measure], n_workers: int, folder: Path
) -> Callable[[], dict[str, str]]:
    """Begin to trace what is not in the cache, in other processes; return what waits for them.

    This adds the traces to the cache, and returns the reasons of failures by key. A class that
    refuses a run is in the cache, with its reason. Processes that crash or exceed their time or
    memory are failures, which the next call tries again.
    """
    missing = store.missing(folder, runs)
    if not missing:
        return dict
    from modelbudget.measurement.process.device import room
    from modelbudget.measurement.reference.class_trace import OBJECTS_BYTES, begin_traces

    timeout_s = max(of_sweep.timeout_s for of_sweep in settings)
    rooms = [room(of_sweep) for of_sweep in settings]
    n_workers = min(n_workers, rooms[0].free // OBJECTS_BYTES)
    cpu_bytes = min(of_sweep.cpu for of_sweep in rooms)
    traces = begin_traces(list(missing.values()), n_workers, timeout_s, cpu_bytes)

    def finished() -> dict[str, str]:
        failed, keys = {}, list(missing)
        with store.adding(folder) as add:
            for i, outcome in traces():
                of_class = missing[keys[i]]
                if isinstance(outcome, Failure):
                    failed[keys[i]] = outcome.reason
                    log.error("not traced: %s: %s", of_class, outcome.reason)
                else:
                    table = traced_table(of_class.class_name, of_class.quantities, outcome)
                    add(keys[i], table)
        return failed

    return finished


class Traces(NamedTuple):
    """The traces of a sweep (`reference_table`), and whether any could not be made."""

    table: pl.DataFrame
    failed: bool


def traces_of(
    classes: Iterable[ClassOfPoint],
    settings: Measure,
    failed: Mapping[str, str],
    n_workers: int,
    folder: Path,
) -> Traces:
    """Return the traces of a sweep's classes, from the cache where they are in it.

    `failed`: reasons by key of what another job of the same run has tried to trace.
    """
    wanted = needed(classes, settings)
    untried = {key: run for key, run in wanted.runs.items() if key not in failed}
    reasons = {**failed, **begin_new(untried, [settings], n_workers, folder)()}
    is_failed = bool(reasons.keys() & wanted.runs.keys())
    return Traces(reference_table(wanted, reasons, folder), is_failed)


def reference_table(needed: Needed, failed: Mapping[str, str], folder: Path) -> pl.DataFrame:
    """Return the traces of a sweep: a row for each component or phase of each quantity of a point.

    Columns: point, built_from (whose keys the class is built from), component (of the class),
    quantity, reference, class, attention, replaced, method (the device), refusal (the reason of a
    missing value).
    """
    tables = [needed.refused]
    for key, reason in failed.items():
        if key in needed.runs:
            run = needed.runs[key]
            table = traced_table(run.class_name, sorted(run.quantities), Failure(reason))
            tables.append(needed.keys.join(table.with_columns(key=pl.lit(key)), on="key"))
    tables.append(needed.keys.join(store.load(folder, needed.runs), on="key"))
    table = pl.concat(tables, how="diagonal").select(*OF_POINT, *TRACED)
    return table.sort("point", "quantity", "component")


def count_all(
    classes: Sequence[ClassOfPoint], n_workers: int, folder: Path
) -> tuple[pl.DataFrame, bool]:
    """Count what is not in the cache, and return a row for each point; whether a count failed.

    Columns: point, built_from, class, parameters, buffers, refusal (the reason without a value).
    Failures are not cached, so that the next run tries them again.
    """
    return begin_counts(classes, n_workers, folder)()


def begin_counts(
    classes: Sequence[ClassOfPoint], n_workers: int, folder: Path
) -> Callable[[], tuple[pl.DataFrame, bool]]:
    """Begin what `count_all` does, in other processes; return what waits for them and ends it."""
    made_of = measured_by("modelbudget.measurement.reference.class_counts")
    points, refused, wanted = [], [], {}
    for of_point in classes:
        try:
            whole_class(of_point.class_name, of_point.run)
            config = of_point.keys_of_config()
        except ValueError as error:
            row = of_point.class_name, None, None, str(error)
            table = pl.DataFrame([row], COUNTED, orient="row")
            refused.append(table.with_columns(_of_point(of_point.point, of_point.built_from)))
        else:
            key = store.key(of_point.class_name, config, *made_of)
            points.append((of_point.point, of_point.built_from, key))
            wanted[key] = of_point.class_name, config
    missing = store.missing(folder, wanted)
    counts: Callable[[], list[Witness]] = list
    if missing:
        from modelbudget.measurement.reference import class_counts

        counts = class_counts.begin_counts(list(missing.values()), n_workers)

    def finished() -> tuple[pl.DataFrame, bool]:
        witnesses = counts()
        new = witness_table(witnesses).with_columns(key=pl.Series(list(missing), dtype=pl.String))
        is_failed = pl.Series([witness.failed for witness in witnesses], dtype=pl.Boolean)
        store.save(folder, new.filter(~is_failed))
        counted = pl.concat([new.filter(is_failed), store.load(folder, wanted)], how="diagonal")
        of_points = _keys(points).join(counted, on="key")
        table = pl.concat([of_points, *refused], how="diagonal").select(*OF_POINT, *COUNTED)
        return table.sort("point"), bool(is_failed.any())

    return finished


def _keys(rows: Iterable[tuple[str, str, str]]) -> pl.DataFrame:
    """Return the key of the cache of each point."""
    schema = pl.Schema(dict.fromkeys((*OF_POINT, "key"), pl.String))
    return pl.DataFrame(list(rows), schema, orient="row")


def _of_point(*values: str) -> Iterator[pl.Expr]:
    yield from (pl.lit(value).alias(name) for name, value in zip(OF_POINT, values, strict=True))


def sample(runs: Iterable[tuple[str, str, Mapping[str, Any], RunConfig]]) -> set[str]:
    """Return the keys of the runs with most tokens of those that differ only in numbers.

    Takes the key, the class, its config and the run of each. Whether a number is 0 is a setting.
    """
    chosen: dict[Hashable, tuple[int, str]] = {}
    for key, class_name, config, run in runs:
        settings = class_name, _settings(config), _settings(run.model_dump())
        if settings not in chosen or tokens(run) > chosen[settings][0]:
            chosen[settings] = tokens(run), key
    return {key for _, key in chosen.values()}


def _settings(value: Any) -> Hashable:
    """Return a value with `True` for numbers other than 0; of a list, its distinct elements."""
    if isinstance(value, Mapping):
        return frozenset((name, _settings(each)) for name, each in value.items())
    if isinstance(value, list | tuple):
        return frozenset(map(_settings, value))
    return bool(value) if isinstance(value, int | float) else value
