"""Verdicts: the number of comparisons that agree, by section and device."""

from typing import NamedTuple

import polars as pl

from modelbudget.compare import failures, uncompared
from modelbudget.compare.class_verdict import judged
from modelbudget.compare.comparison import is_compared, is_failed, is_near, is_roomless
from modelbudget.report.page_data import PAGE
from modelbudget.report.page_results import Results, ordered

BOUND = "1 % (process memory) or 0.1 % (allocator)"
"""TOLERANCE of the comparison as text."""
TABLES = PAGE["tables"]
"""Tables of no sweep that are compared: source and title, and the columns of model, part, and both
sides.
"""


class Verdict(NamedTuple):
    """The verdict on one table of results.

    `compared` and `agreed` count comparisons of formulas and modules, and `near` those that agree
    within a tolerance but not exactly. `of_class` and `of_class_agreed` count the values that a
    class of `transformers` must have, and `known` those that it has but for a known difference;
    `uncompared`, quantities of points that are not shown under the name of a class.
    `models` counts models by device. `failed` counts models with a failed measurement, and
    `roomless` those with a measurement left out for lack of memory.
    """

    source: str
    title: str
    compared: int
    agreed: int
    models: dict[str, int]
    near: int = 0
    failed: int = 0
    roomless: int = 0
    of_class: int = 0
    of_class_agreed: int = 0
    known: int = 0
    uncompared: int = 0

    @property
    def right(self) -> bool:
        """Return whether all comparisons agree, those with classes included."""
        return self.agreed == self.compared and self.of_class_agreed == self.of_class

    @property
    def whole(self) -> bool:
        """Return whether all comparisons agree and no measurement failed."""
        return self.right and not self.failed


def of_sweep(name: str, title: str, comparison: pl.DataFrame) -> Verdict:
    """Return the verdict on a sweep.

    A row without a value on either side does not agree. A row without a formula, or whose
    measurement failed, is not compared.
    """
    compared, of_class = comparison.filter(is_compared()), judged(comparison)
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
        of_class.height,
        int(of_class["agrees"].sum()),
        of_class["known_difference"].count(),
        uncompared.n_uncompared(comparison),
    )


def of_table(name: str, title: str, table: pl.DataFrame) -> Verdict:
    """Return the verdict on another table; each model or step of it is one model."""
    agreed = int(table["agrees"].fill_null(False).sum())
    model = "model" if "model" in table.columns else "step"
    models = table.group_by("device").agg(pl.col(model).n_unique()).sort("device")
    return Verdict(name, title, table.height, agreed, dict(models.rows()))


def verdicts(results: Results) -> list[Verdict]:
    """Return a verdict for each sweep and each other table, in the order of the page."""
    of_tables = [
        of_table(source, title, results.parts[file])
        for file, (source, title, *_) in TABLES.items()
        if file in results.parts
    ]
    sweeps = ordered(results.sweeps)
    return [of_sweep(one.name, one.summary["title"], one.comparison) for one in sweeps] + of_tables


def failure_lines(results: Results) -> list[str]:
    """Return every reason why something was not measured or is not shown, for a terminal."""
    return [
        line
        for sweep in ordered(results.sweeps)
        for module in (failures, uncompared)
        for line in module.lines(sweep.name, sweep.comparison)
    ]


def tally(verdicts: list[Verdict]) -> str:
    """Return how many comparisons agree, those with classes included."""
    compared = sum(verdict.compared + verdict.of_class for verdict in verdicts)
    agreed = sum(verdict.agreed + verdict.of_class_agreed for verdict in verdicts)
    return f"{agreed:,} of {compared:,} comparisons agree" if compared else "nothing was compared"


def line(verdicts: list[Verdict]) -> str:
    """Return the verdict in one line, for a terminal."""
    if not verdicts:
        return "nothing was measured: all is predicted"
    near = sum(verdict.near for verdict in verdicts)
    wrong = [verdict.source for verdict in verdicts if verdict.agreed != verdict.compared]
    unlike_class = [one.source for one in verdicts if one.of_class_agreed != one.of_class]
    missing, hidden = (
        [f"{getattr(one, of):,} in {one.source}" for one in verdicts if getattr(one, of)]
        for of in ("failed", "uncompared")
    )
    more = {
        "; DISAGREEMENT in ": wrong,
        "; NOT WHAT THE CLASS OF transformers HAS in ": unlike_class,
        "; COULD NOT BE MEASURED: ": missing,
        "; NOT COMPARED with the class of transformers: ": hidden,
    }
    return (
        tally(verdicts)
        + (f", {near:,} of them within {BOUND}" if near else "")
        + "".join(text + ", ".join(where) for text, where in more.items() if where)
    )


def verdict_file(results: Results) -> dict:
    """Return the content of results/verdict.json."""
    judged_tables = verdicts(results)
    return {
        "agrees": all(verdict.right for verdict in judged_tables),
        "line": line(judged_tables),
        "failures": failure_lines(results),
        "sections": [verdict._asdict() for verdict in judged_tables],
    }


def sentence(agreed: int, compared: int, near: int) -> str:
    """Return how many predictions equal the measurement, or agree where some are only near it."""
    verb = "agree with" if near else "equal"
    return f"{agreed:,} of {compared:,} predictions {verb} the measurement"
