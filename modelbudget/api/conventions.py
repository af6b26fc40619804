"""Parameters and FLOPs per training token of one model, under every counting convention."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from modelbudget.api.arguments import checked, one_of
from modelbudget.api.frames import Frames, html_table
from modelbudget.architecture.base import Architecture
from modelbudget.architecture.counting_conventions import (
    BY_NAME,
    CONVENTIONS,
    FLOPS,
    PARAMETERS,
    Convention,
)
from modelbudget.architecture.run_config import RunConfig
from modelbudget.common.errors import InputError
from modelbudget.common.suggestions import offered
from modelbudget.common.validation_messages import show
from modelbudget.predict import counts_by_convention, prediction_or_reason

EXECUTED = {
    "rule": "every matrix product",
    "reference": "sums of our formulas, which traces of the modules confirm",
}


@dataclass(frozen=True)
class Counts(Frames):
    """The counts of a model by the name of the convention; those that do not apply are `missing`.

    `executed`: FLOPs per token of the matrix products of a training step by our formulas, which
    traces of the module confirm; None without a formula.
    """

    model: str
    length: int
    values: dict[str, int]
    missing: dict[str, str]
    executed: Fraction | None

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    @checked()
    def __getitem__(self, name: str) -> int:
        if name in self.missing:
            raise InputError([f"{self.model}: {name}: {self.missing[name]}"])
        if name not in self.values:
            raise InputError([f"convention = {show(name)}: unknown{offered(name, BY_NAME, '')}"])
        return self.values[name]

    @checked(convention=one_of(Convention))
    def share(self, convention: Convention) -> float | None:
        """Return a count as a multiple of all parameters, or of the FLOPs that are executed."""
        whole = self.values["total"] if convention.unit == PARAMETERS else self.executed
        return float(self.values[convention.name] / whole) if whole else None

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each convention that applies, and one for what is executed."""
        rows = [
            {
                "model": self.model,
                "convention": convention.name,
                "unit": convention.unit,
                "value": self.values[convention.name],
                "share": self.share(convention),
                "source": "formula",
                "rule": convention.rule,
                "reference": convention.source,
            }
            for convention in CONVENTIONS
            if convention.name in self.values
        ]
        if (steps := self.executed) is not None:
            whole = steps.numerator if steps.denominator == 1 else float(steps)
            of_executed = {"convention": "executed", "value": whole, "share": 1.0}
            rows.append(rows[-1] | of_executed | {"unit": FLOPS, **EXECUTED})
        return rows

    def __repr__(self) -> str:
        return f"<Counts of {self.model}, length {self.length:,}: {', '.join(self.values)}>"

    def _repr_html_(self) -> str:
        rows = [
            {name: row[name] for name in ("convention", "value", "rule")} for row in self.rows()
        ]
        return html_table(f"{self.model}, length {self.length:,} (formula)", rows)


def counts(label: str, a: Architecture, run: RunConfig) -> Counts:
    """Count by formula. Raises InputError if the model has none."""
    if why := prediction_or_reason.why_not("parameters", a, run):
        raise InputError([f"{label}: parameters: {why}"])
    missing = {
        convention.name: why for convention in CONVENTIONS if (why := convention.why_not(type(a)))
    }
    return Counts(
        label,
        run.length,
        counts_by_convention.counts(a, run),
        missing,
        counts_by_convention.executed(a, run),
    )
