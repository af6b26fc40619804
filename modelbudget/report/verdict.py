"""How many comparisons of how many agree, where, and on which device."""

from typing import NamedTuple

import polars as pl

from modelbudget.compare import failures
from modelbudget.compare.comparison import is_compared, is_failed, is_near, is_roomless
from modelbudget.report.results import Results, ordered

BOUND = "1 % of what the system says of a process, or 0.1 % of what an allocator says"
"""In words, what TOLERANCE of the comparison admits."""
_DEVICES = {
    "cpu": "on CPU, in real storages",
    "cuda": "on CUDA, in real storages",
    "meta": "on meta, as shapes without storage",
    "not measured": "not at all: they failed",
}


class Verdict(NamedTuple):
    """What one table of results says: comparisons, those that agree, models by device; of those
    that agree how many do so within a tolerance; models of which a measurement failed, and models
    of which one was left out for want of memory.
    """

    source: str
    title: str
    compared: int
    agreed: int
    models: dict[str, int]
    near: int = 0
    failed: int = 0
    roomless: int = 0

    @property
    def right(self) -> bool:
        """Whether all that was compared agrees."""
        return self.agreed == self.compared

    @property
    def whole(self) -> bool:
        """Whether, besides, nothing is missing."""
        return self.right and not self.failed


def of_sweep(name: str, title: str, comparison: pl.DataFrame) -> Verdict:
    """A row on which neither side has a value does not agree; what has no formula or could not be
    measured is not compared.
    """
    compared = comparison.filter(is_compared())
    models = comparison.unique("point").group_by("method").len().sort("method", nulls_last=True)
    return Verdict(
        name,
        title,
        compared.height,
        int(compared["agrees"].fill_null(False).sum()),
        {method or "not measured": n for method, n in models.rows()},
        compared.filter(is_near()).height,
        comparison.filter(is_failed())["point"].n_unique(),
        comparison.filter(is_roomless())["point"].n_unique(),
    )


def of_table(name: str, title: str, table: pl.DataFrame, model: str) -> Verdict:
    """For the tables beside the sweeps: `model` is the column that tells one model from another."""
    agreed = int(table["agrees"].fill_null(False).sum())
    models = table.group_by("device").agg(pl.col(model).n_unique()).sort("device")
    return Verdict(name, title, table.height, agreed, dict(models.rows()))


def verdicts(results: Results) -> list[Verdict]:
    """One for each sweep and each table beside them, in the order of the page."""
    found = [
        of_sweep(sweep.name, sweep.summary["title"], sweep.comparison)
        for sweep in ordered(results.sweeps)
    ]
    if results.ledger is not None:
        found.append(of_table("gpt-2-ledger", "The GPT-2 ledger", results.ledger, "model"))
    if results.surgery is not None:
        found.append(of_table("tying-surgery", "Tying as surgery", results.surgery, "step"))
    return found


def disagreements(results: Results) -> list[tuple[str, dict]]:
    """Every row that does not agree, with the section it stands in, in the order of the page."""
    found = [
        _wrong(
            sweep.comparison.filter(is_compared()),
            sweep.name,
            "label",
            "component",
            "predicted",
            "measured",
        )
        for sweep in ordered(results.sweeps)
    ]
    if results.ledger is not None:
        found.append(_wrong(results.ledger, "gpt-2-ledger", "model", "module", "expected", "true"))
    if results.surgery is not None:
        sides = ("expected", "parameters")
        found.append(_wrong(results.surgery, "tying-surgery", "device", "operation", *sides))
    return [row for rows in found for row in rows]


def _wrong(
    table: pl.DataFrame, source: str, model: str, part: str, expected: str, counted: str
) -> list[tuple[str, dict]]:
    return [
        (
            source,
            {
                "model": row[model],
                "component": row[part],
                "quantity": row.get("quantity", "parameters"),
                "predicted": row[expected],
                "counted": row[counted],
                "difference": (row[counted] or 0) - (row[expected] or 0),
            },
        )
        for row in table.filter(~pl.col("agrees").fill_null(False)).iter_rows(named=True)
    ]


def device_words(device: str) -> str:
    """Where a model was counted, in words."""
    return _DEVICES.get(device, f"on {device}")


def models_by_device(verdicts: list[Verdict]) -> dict[str, int]:
    """Over all tables together."""
    found: dict[str, int] = {}
    for verdict in verdicts:
        for device, n in verdict.models.items():
            found[device] = found.get(device, 0) + n
    return dict(sorted(found.items()))


def failure_lines(results: Results) -> list[str]:
    """Every reason why something could not be measured, for a terminal."""
    return [
        line
        for sweep in ordered(results.sweeps)
        for line in failures.lines(sweep.name, sweep.comparison)
    ]


def line(verdicts: list[Verdict]) -> str:
    """The verdict in one line, for a terminal."""
    compared = sum(verdict.compared for verdict in verdicts)
    agreed = sum(verdict.agreed for verdict in verdicts)
    near = sum(verdict.near for verdict in verdicts)
    words = f"{agreed:,} of {compared:,} comparisons agree"
    if near:
        words += f", {near:,} of them within {BOUND}"
    wrong = [verdict.source for verdict in verdicts if not verdict.right]
    if wrong:
        words += f"; DISAGREEMENT in {', '.join(wrong)}"
    missing = {verdict.source: verdict.failed for verdict in verdicts if verdict.failed}
    if missing:
        where = ", ".join(f"{n:,} in {source}" for source, n in missing.items())
        words += f"; COULD NOT BE MEASURED: {where}"
    return words
