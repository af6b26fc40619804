"""Checks for totals larger than a 64-bit integer, which no table can hold."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from types import SimpleNamespace

from modelbudget.architecture.base import MAX_COUNT, Architecture
from modelbudget.architecture.evaluators import intervals
from modelbudget.architecture.record import Record
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.terms import of_model
from modelbudget.sweeps.quantity_names import OF_CONVENTION, OF_RUN

Model = tuple[Architecture, RunConfig]


def check_totals(architecture: Architecture, run: RunConfig, quantities: Sequence[str]) -> None:
    """Raise ValueError if a quantity of a model exceeds the largest 64-bit integer."""
    n_bytes = of_model("parameter_bytes", architecture.parameter_bytes(architecture, run))
    if n_bytes > MAX_COUNT:
        raise ValueError(
            f"{n_bytes:,} bytes of parameters in {run.dtype}: more than {MAX_COUNT:,}, "
            "the largest 64-bit integer"
        )
    for quantity in _of_run(type(architecture), quantities):
        if architecture.has_formula_for(quantity, architecture, run):
            value = of_model(quantity, architecture.terms(quantity, architecture, run))
            if value > MAX_COUNT:
                raise ValueError(
                    f"{quantity} = {value:,}: more than {MAX_COUNT:,}, the largest 64-bit integer; "
                    "choose a smaller batch or length"
                )


def may_overflow(models: list[Model], quantities: Sequence[str]) -> bool:
    """Whether some model may exceed 64 bits, judged by the bounds of each size.

    Evaluates the formulas once for all models with the same categorical fields.
    """
    groups = defaultdict(list)
    for model in models:
        groups[tuple(_categories(record) for record in model)].append(model)
    return not all(_surely_fit(some, quantities) for some in groups.values())


def _categories(record: Record) -> tuple:
    return type(record), *(getattr(record, name) for name in record.categorical())


def _surely_fit(models: list[Model], quantities: Sequence[str]) -> bool:
    family = type(models[0][0])
    a, r = map(_bounds, zip(*models, strict=True))
    covered = [
        q for q in _of_run(family, quantities) if intervals.most(family.has_formula_for(q, a, r))
    ]
    quantities = ["parameter_bytes", *covered]
    return all(intervals.fits(of_model(name, family.terms(name, a, r))) for name in quantities)


def _bounds(records: tuple[Record, ...]) -> SimpleNamespace:
    """Merge the fields of records: (least, most) where they differ, else the common value."""
    schema, fields = type(records[0]), dict(records[0])
    for name in schema.numeric():
        values = {getattr(record, name) for record in records}
        if len(values) > 1:
            fields[name] = min(values), max(values)
    return intervals.namespace(schema, fields)


def _of_run(family: type[Architecture], quantities: Sequence[str]) -> Iterator[str]:
    return (
        name
        for name in quantities
        if name in OF_CONVENTION or (name in OF_RUN and hasattr(family, name))
    )
