"""Measure only what is not in the cache of measurements."""

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_config import RunConfig
from modelbudget.common import store
from modelbudget.common.code_digests import code_of_model, measured_by
from modelbudget.measurement.measured import is_failure
from modelbudget.measurement.measured_table import ORDER, SCHEMA, failures, measured_table
from modelbudget.sweeps.sweep_file import Measure

log = logging.getLogger(__name__)
Incomplete = Mapping[str, dict[str, Any]]
"""By key of the cache, a model that was not measured whole: its `rows` and its `failures`."""


class Measurements(NamedTuple):
    """Measurements, failures with reasons, counts of models, and those not measured whole.

    `models` counts those measured, reused and failed, if only in one quantity.
    """

    table: pl.DataFrame
    failures: list[dict[str, str]]
    models: dict[str, int]
    incomplete: Incomplete


def measure_new(
    models: Iterable[tuple[Architecture, RunConfig]],
    settings: Measure,
    n_workers: int,
    folder: Path,
    tried: Mapping[str, dict[str, Any]] = {},
) -> Measurements:
    """Measure each distinct model, or take its measurements from the cache in `folder`.

    They are reused as long as everything that they depend on is unchanged. A model with a missing
    quantity is in the table but not in the cache, so that it is tried again: not where another job
    of the same run has `tried` it.
    """
    depends_on = (
        settings.decisive(),
        *measured_by("modelbudget.measurement.process.measure_in_processes"),
    )
    # A dictionary, so that a model of two points is measured once.
    wanted = {
        store.key(
            architecture.digest(), run.digest(), code_of_model(type(architecture)), *depends_on
        ): (architecture, run)
        for architecture, run in models
    }
    missing = store.missing(folder, wanted)
    reused = len(wanted) - len(missing)
    incomplete = {key: tried[key] for key in missing if key in tried}
    untried = {key: model for key, model in missing.items() if key not in tried}
    if untried:
        # Imports torch, which takes a second and is not needed if everything is in the cache.
        from modelbudget.measurement.process.measure_in_processes import measure_each

        keys = list(untried)
        with store.adding(folder) as add:
            for i, result in measure_each(list(untried.values()), settings, n_workers):
                table = measured_table([result], settings.quantities)
                if result.missing:
                    rows = table.to_dicts()
                    incomplete[keys[i]] = {"rows": rows, "failures": failures([result])}
                else:
                    add(keys[i], table)
    failed = [failure for model in incomplete.values() for failure in model["failures"]]
    for failure in failed:
        log.error("not measured: %s", failure)
    lost = sum(
        any(is_failure(failure["failure"]) for failure in model["failures"])
        for model in incomplete.values()
    )
    counts = {"measured": len(wanted) - reused - lost, "reused": reused, "failed": lost}
    log.info("models: %s", counts)
    unsaved = [pl.DataFrame(model["rows"], SCHEMA) for model in incomplete.values()]
    tables = [pl.DataFrame(schema=SCHEMA), *unsaved, store.load(folder, wanted).drop("key")]
    return Measurements(pl.concat(tables, how="diagonal").sort(ORDER), failed, counts, incomplete)
