"""The class of `transformers` that is the same model: counted, and traced if the run is its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from modelbudget.architecture.run_config import RunConfig
from modelbudget.catalogue.implementations import TRANSFORMERS
from modelbudget.compare.class_verdict import values_of_classes
from modelbudget.sweeps.class_config import ClassOfPoint, classes_of
from modelbudget.sweeps.sweep_file import Measure

if TYPE_CHECKING:
    from modelbudget.measurement.reference.class_counts import Witness


class ClassValues(NamedTuple):
    """The count of a class (None without), and its values as a table of traces."""

    counted: Witness | None
    values: pl.DataFrame | None


def class_values(points: pl.DataFrame, settings: Measure) -> ClassValues:
    """Count the class of the only point, and trace it if the run's implementation is its own."""
    for point in classes_of(points):
        counted = _count(point) if "parameters" in settings.quantities else None
        traces = (
            _trace(point, point.run, settings) if point.run.implementation == TRANSFORMERS else None
        )
        return ClassValues(counted, values_of_classes(traces, _table(point, counted)))
    return ClassValues(None, None)


def _count(point: ClassOfPoint) -> Witness:
    from modelbudget.measurement.reference.class_counts import Witness, witnesses
    from modelbudget.measurement.reference.class_run import whole_class

    try:
        whole_class(point.class_name, point.run)
        return witnesses([(point.class_name, point.keys_of_config())], 1)[0]
    except ValueError as error:
        return Witness(point.class_name, None, None, str(error))


def _table(point: ClassOfPoint, counted: Witness | None) -> pl.DataFrame | None:
    from modelbudget.measurement.reference.cached_classes import witness_table

    return None if counted is None else witness_table([counted]).with_columns(_about(point))


def _trace(point: ClassOfPoint, run: RunConfig, settings: Measure) -> pl.DataFrame | None:
    quantities = settings.of_reference()
    if not quantities:
        return None
    from modelbudget.measurement.reference.cached_classes import refused_table, traced_table
    from modelbudget.measurement.reference.class_run import class_run
    from modelbudget.measurement.reference.class_trace import Wanted, trace_all

    try:
        wanted = Wanted(
            point.class_name,
            point.keys_of_config(),
            [(class_run(point.class_name, run), quantities)],
        )
    except ValueError as error:
        refused = refused_table(point.class_name, dict.fromkeys(sorted(quantities), str(error)))
        return refused.with_columns(_about(point))
    ((outcome,),) = trace_all([wanted], 1, settings.timeout_s, 0)
    return traced_table(point.class_name, quantities, outcome).with_columns(_about(point))


def _about(point: ClassOfPoint) -> list[pl.Expr]:
    return [pl.lit(point.point).alias("point"), pl.lit(point.built_from).alias("built_from")]
