"""Predictions of many models by programs: one run with symbols for all rows of a regime."""

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from itertools import chain
from threading import RLock
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl

from modelbudget.architecture.base import MAX_COUNT, Architecture
from modelbudget.architecture.evaluators import intervals, polars_columns
from modelbudget.architecture.evaluators.intervals import Interval
from modelbudget.architecture.evaluators.polars_columns import Column
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import OF_CACHE
from modelbudget.architecture.terms import Terms, of_model
from modelbudget.predict.by_program import USES, Use, quantities, terms_of
from modelbudget.predict.cache_bytes import is_of_engine
from modelbudget.predict.formula import formula
from modelbudget.sweeps.points_table import model_of
from modelbudget.symbolic_programs.regime import Regime, traced

FEW = 8
"""Models for which as many runs with numbers take less time than one with symbols."""


ONE_RUN = RLock()
"""Symbols, and the regimes of models with the same fields, are those of all threads."""


def rows_by_program(
    family: type[Architecture], quantity: str, fields: Mapping[str, Any], height: int
) -> Iterator[tuple[np.ndarray, Terms | None]]:
    """Yield all rows, by their numbers, with a quantity's terms; None without a program.

    `fields`: numbers, text and series by name.
    """
    every = np.arange(height)
    if quantity not in USES and quantity not in OF_CACHE:
        yield every, None
        return
    fields = {n: Column(v) if isinstance(v, pl.Series) else v for n, v in fields.items()}
    if quantity in OF_CACHE and (quantity not in USES or is_of_engine(SimpleNamespace(**fields))):
        for i in range(height):
            yield every[i : i + 1], _of_model(quantity, *_model(family, fields, i))
        return
    for numbers, regime in _by_regime(family, USES[quantity], fields, every):
        part = _at(fields, numbers)
        if regime is None or not _fits(regime, quantity, part):
            for i in range(len(numbers)):
                yield numbers[i : i + 1], _of_model(quantity, *_model(family, part, i))
        elif quantity not in regime.quantities:
            yield numbers, None
        else:
            yield numbers, terms_of(quantity, regime.quantities, regime.read(part).of)


def _of_model(quantity: str, a: Architecture, run: RunConfig) -> Terms | None:
    """Return the terms of one model. Raises ValueError if a table cannot hold them."""
    terms, holds = formula(type(a), quantity, a, run)
    if not holds:
        return None
    if (value := of_model(quantity, terms)) > MAX_COUNT:
        raise ValueError(
            f"{quantity} = {value:,}: more than {MAX_COUNT:,}, the largest 64-bit integer"
        )
    return terms


def totals(
    family: type[Architecture], quantity: str, fields: Mapping[str, Any], rows: pl.Series
) -> pl.Series:
    """Return a quantity of the model in the rows of a mask, by programs; null in all others."""
    numbers = rows.arg_true().to_numpy()
    here = {n: v.gather(numbers) if isinstance(v, pl.Series) else v for n, v in fields.items()}
    values, is_known = np.zeros(len(rows), np.int64), np.zeros(len(rows), bool)
    for part, terms in rows_by_program(family, quantity, here, len(numbers)):
        if terms is not None:
            total = polars_columns.series(of_model(quantity, terms), len(part))
            values[numbers[part]], is_known[numbers[part]] = total.to_numpy(), True
    return pl.Series(values).zip_with(pl.Series(is_known), pl.repeat(None, len(rows), eager=True))


def filled(
    family: type[Architecture], quantity: str, fields: Mapping[str, Any], known: pl.Series
) -> pl.Series:
    """Return a quantity whose null rows are filled by programs."""
    if not known.null_count() or not (quantity in USES or quantity in OF_CACHE):
        return known
    return known.fill_null(totals(family, quantity, fields, known.is_null()))


def _by_regime(
    family: type[Architecture], use: Use, fields: dict[str, Any], numbers: np.ndarray
) -> Iterator[tuple[np.ndarray, Regime | None]]:
    """Yield the rows of each regime; None: those too few for one."""
    if fields.get("pipeline_schedule", "none") != "none":
        yield numbers, None  # the order of passes is not one of symbols
        return
    varying = frozenset(name for name, value in fields.items() if isinstance(value, Column))
    regimes = _regimes(family, use, tuple((n, v) for n, v in fields.items() if n not in varying))
    seen = 0
    while len(numbers):
        part = _at(fields, numbers)
        with ONE_RUN:
            is_new = seen == len(regimes)
            if is_new and len(numbers) <= FEW:
                break
            if is_new:
                example = _model(family, part, 0)
                of_model = partial(quantities, use)
                divided = chain.from_iterable(regime.divided_fields() for regime in regimes)
                regimes.append(traced(of_model, *example, {*varying}, divided))
        here = _holds(regimes[seen], part, len(numbers))
        if is_new and not here[0]:  # its questions may exceed 64 bits
            break
        if here.any():
            yield numbers[here], regimes[seen]
        numbers, seen = numbers[~here], seen + 1
    if len(numbers):
        yield numbers, None


@lru_cache(maxsize=256)
def _regimes(family: type[Architecture], use: Use, constant: tuple) -> list[Regime]:
    """Return the regimes of models with these fields, to which more are appended."""
    return []


def _changed(fields: Mapping[str, Any], change: Callable[[pl.Series], Any]) -> dict[str, Any]:
    """Return fields, with something else in the place of each column."""
    return {n: change(v.values) if isinstance(v, Column) else v for n, v in fields.items()}


def _at(fields: Mapping[str, Any], numbers: np.ndarray) -> dict[str, Any]:
    """Return fields in some rows."""
    return _changed(fields, lambda values: Column(values.gather(numbers)))


def _model(family: type[Architecture], fields: Mapping[str, Any], row: int):
    return model_of(family, _changed(fields, lambda values: values[row]))


def _holds(regime: Regime, fields: Mapping[str, Any], height: int) -> np.ndarray:
    """Return in which rows a regime holds: in none if a number may exceed 64 bits."""
    holds = regime.holds(fields) if intervals.fits(regime.holds(_changed(fields, _interval))) else 0
    return polars_columns.series(holds, height).to_numpy() == 1


def _fits(regime: Regime, quantity: str, fields: Mapping[str, Any]) -> bool:
    """Return whether a quantity surely fits 64 bits in all rows, with all that it is made of."""
    values = regime.read(_changed(fields, _interval))
    return all(
        intervals.fits(values.of(size)) for size in regime.quantities.get(quantity, {}).values()
    )


def _interval(values: pl.Series) -> Interval:
    numbers = values.to_numpy()
    return Interval(int(numbers.min()), int(numbers.max()))
