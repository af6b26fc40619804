"""Measure only what is not in the cache of measurements."""

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_config import RunConfig
from modelbudget.common import store
from modelbudget.common.fingerprint import code_of, code_of_model, versions
from modelbudget.measurement.measured_table import ORDER, SCHEMA, failures, measured_table
from modelbudget.measurement.not_measured import is_failure
from modelbudget.sweeps.sweep_file import Measure

log = logging.getLogger(__name__)
MADE_WITH = ("torch", "transformers")
"""Packages whose code is measured."""
Incomplete = Mapping[str, dict[str, Any]]
"""By key of the cache, a model that was not measured whole: its `rows` and its `failures`."""


class Found(NamedTuple):
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
) -> Found:
    """Measure each distinct model, or take its measurements from the cache in `folder`.

    They are reused as long as everything that they depend on is unchanged. A model with a missing
    quantity is in the table but not in the cache, so that it is tried again: not where another job
    of the same run has `tried` it.
    """
    depends_on = (
        settings.decisive(),
        code_of("modelbudget.measurement.process.pool"),
        versions(*MADE_WITH),
    )
    # A dictionary, so that a model of two points is measured once.
    wanted = {
        store.key(
            architecture.digest(), run.digest(), code_of_model(type(architecture)), *depends_on
        ): (architecture, run)
        for architecture, run in models
    }
    known = store.known(folder, list(wanted))
    incomplete = {key: tried[key] for key in wanted if key in tried and key not in known}
    missing = {
        key: model for key, model in wanted.items() if key not in known and key not in incomplete
    }
    log.info("%d models measured before, %d to measure", len(known), len(missing))
    results = []
    if missing:
        # Imports torch, which takes a second and is not needed if everything is in the cache.
        from modelbudget.measurement.process.pool import measure_all

        results = measure_all(list(missing.values()), settings, n_workers)

    table = measured_table(results, settings.quantities)
    keys = pl.DataFrame(
        [
            (result.architecture, result.run, key)
            for key, result in zip(missing, results, strict=True)
            if not result.missing
        ],
        dict.fromkeys(("architecture", "run", "key"), pl.String),
        orient="row",
    )
    if not keys.is_empty():
        store.save(folder, table.join(keys, on=["architecture", "run"]))
    for key, result in zip(missing, results, strict=True):
        if result.missing:
            rows = measured_table([result], settings.quantities).to_dicts()
            incomplete[key] = {"rows": rows, "failures": failures([result])}
    failed = [failure for model in incomplete.values() for failure in model["failures"]]
    of_others = [
        pl.DataFrame(model["rows"], SCHEMA) for key, model in incomplete.items() if key in tried
    ]
    reused = store.load(folder, list(known))
    if reused is not None:
        of_others.append(reused.drop("key"))
    for failure in failed:
        log.error("not measured: %s", failure)
    lost = sum(
        any(is_failure(failure["failure"]) for failure in model["failures"])
        for model in incomplete.values()
    )
    counts = {
        "measured": len(wanted) - len(known) - lost,
        "reused": len(known),
        "failed": lost,
    }
    log.info("models: %s", counts)
    return Found(pl.concat([table, *of_others]).sort(ORDER), failed, counts, incomplete)
