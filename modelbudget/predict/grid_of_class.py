"""Whether a grid has under the name of a class of `transformers` only what was compared."""

from collections.abc import Sequence
from typing import TypeVar

import polars as pl

from modelbudget.architecture.record import Record
from modelbudget.architecture.run_config import RunConfig
from modelbudget.catalogue.implementations import OURS, TRANSFORMERS
from modelbudget.predict.grid import Grid
from modelbudget.sweeps.compared import OF_ARCHITECTURE, not_compared_at
from modelbudget.sweeps.sweep_mistakes import Mistakes

AnyRecord = TypeVar("AnyRecord", bound=Record)
MOST = 2_000
"""Points that are held against what was compared, each in about a millisecond."""


def check(grid: Grid, quantities: Sequence[str], mistakes: Mistakes) -> None:
    """Add why quantities of points that name their class were not compared with it."""
    wanted = [name for name in quantities if name not in OF_ARCHITECTURE]
    if not wanted or TRANSFORMERS not in grid.fields["implementation"].values:
        return
    family, n_points = grid.base.family, 0
    for chunk in grid.allowed():
        values = grid.values(chunk)
        if str(values["implementation"]) != TRANSFORMERS:
            continue
        n_points += chunk.rows
        if n_points > MOST:
            mistakes.add(
                f"implementation = {TRANSFORMERS!r}: more than {MOST:,} points to hold against "
                f"what was compared with a class; allowed: fewer, or implementation: {OURS}"
            )
            return
        for i in range(chunk.rows):
            row = {n: v[i] if isinstance(v, pl.Series) else v for n, v in values.items()}
            pair = _record(family, row), _record(RunConfig, row)
            for name in wanted:
                if why := not_compared_at(name, grid.base.transformers, grid.base.config, *pair):
                    mistakes.add(
                        f"measure.quantities: {name}: {why}; allowed: with a device, or "
                        f"implementation: {OURS}"
                    )


def _record(schema: type[AnyRecord], row: dict) -> AnyRecord:
    """Return a record of the columns of a grid, where switches are 0 or 1."""
    fields = schema.model_fields
    return schema.model_validate(
        {n: bool(row[n]) if field.annotation is bool else row[n] for n, field in fields.items()}
    )
