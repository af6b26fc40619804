"""How many comparisons of how many agree, where, and on which device."""

from typing import NamedTuple

import polars as pl


class Verdict(NamedTuple):
    """What one table of results says: comparisons, those that agree, and models by device."""

    source: str
    title: str
    compared: int
    agreed: int
    models: dict[str, int]

    @property
    def whole(self) -> bool:
        return self.agreed == self.compared


def of_sweep(name: str, title: str, comparison: pl.DataFrame) -> Verdict:
    """A row on which neither side has a value does not agree."""
    models = comparison.unique("point").group_by("method").len().sort("method", nulls_last=True)
    return Verdict(
        name,
        title,
        comparison.height,
        int(comparison["agrees"].fill_null(False).sum()),
        {method or "not measured": n for method, n in models.rows()},
    )


def of_table(name: str, title: str, table: pl.DataFrame, model: str, device: str) -> Verdict:
    """For the tables beside the sweeps: columns that name a row's model and its device."""
    agreed = int(table["agrees"].fill_null(False).sum())
    models = table.group_by(device).agg(pl.col(model).n_unique()).sort(device).rows()
    return Verdict(name, title, table.height, agreed, dict(models))


def models_by_device(verdicts: list[Verdict]) -> dict[str, int]:
    """Over all tables together."""
    found: dict[str, int] = {}
    for verdict in verdicts:
        for device, n in verdict.models.items():
            found[device] = found.get(device, 0) + n
    return dict(sorted(found.items()))


def line(verdicts: list[Verdict]) -> str:
    """The verdict in one line, for a terminal."""
    compared = sum(verdict.compared for verdict in verdicts)
    agreed = sum(verdict.agreed for verdict in verdicts)
    words = f"{agreed:,} of {compared:,} comparisons agree"
    where = [verdict.source for verdict in verdicts if not verdict.whole]
    return f"{words}; DISAGREEMENT in {', '.join(where)}" if where else words
