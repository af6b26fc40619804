"""Measuring what is new: what any job has measured before is taken from where that is kept."""

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import polars as pl

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_config import RunConfig
from modelbudget.common import store
from modelbudget.common.fingerprint import code_of, code_of_model, versions
from modelbudget.measure.table import failures, is_failure, measured_table
from modelbudget.sweep.sweep_file import Measure

log = logging.getLogger(__name__)
MADE_WITH = ("torch", "transformers")
"""Packages whose code is what is measured."""


class Found(NamedTuple):
    """The table of measurements, what could not be measured and why, and how many models were
    measured, reused and failed, if only in one quantity.
    """

    table: pl.DataFrame
    failures: list[dict[str, str]]
    models: dict[str, int]


def measure_new(
    models: Iterable[tuple[Architecture, RunConfig]],
    settings: Measure,
    n_workers: int,
    folder: Path,
) -> Found:
    """All models, each once. What is measured is kept in `folder`, and taken from there as long as
    all that it depends on is the same. A model of which a quantity is missing is in the table, but
    kept nowhere, so that it is tried again.
    """
    depends_on = settings.decisive(), code_of("modelbudget.measure.pool"), versions(*MADE_WITH)
    # Dictionary: what stands at two points is measured once.
    wanted = {
        store.key(a.digest(), r.digest(), code_of_model(type(a)), *depends_on): (a, r)
        for a, r in models
    }
    known = store.known(folder, list(wanted))
    missing = {key: model for key, model in wanted.items() if key not in known}
    log.info("%d models measured before, %d to measure", len(known), len(missing))
    results = []
    if missing:
        # Imports torch: a second, for those who measure.
        from modelbudget.measure.pool import measure_all

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
    if known:
        table = pl.concat([table, store.load(folder, list(known))])
    failed = failures(results)
    for failure in failed:
        log.error("not measured: %s", failure)
    lost = sum(any(map(is_failure, result.missing.values())) for result in results)
    counts = {"measured": len(missing) - lost, "reused": len(known), "failed": lost}
    log.info("models: %s", counts)
    return Found(table.sort("architecture", "run", "component", "quantity"), failed, counts)
