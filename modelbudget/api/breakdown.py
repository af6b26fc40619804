"""One quantity of one model by component: what predictions and measurements return."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from modelbudget.architecture.terms import Terms, is_peak
from modelbudget.report.charts.format import UNITS, count, percent

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

MOST_ROWS = 40
"""Components that a notebook shows; frames have all."""


class Component(NamedTuple):
    """One component: the value of one instance, and the number of instances in the model.

    Of a peak, a component is a phase.
    """

    name: str
    each: int
    instances: int

    @property
    def value(self) -> int:
        """All instances together."""
        return self.each * self.instances


class Breakdown(NamedTuple):
    """A quantity of a model by component, largest first.

    `source` says whose number it is: `formula`, or the device on which a module was measured.
    Units: a count, bytes or FLOPs (`quantity`).
    """

    model: str
    quantity: str
    source: str
    components: tuple[Component, ...]

    @property
    def total(self) -> int:
        """The whole model: the sum over components, or the largest phase of a peak."""
        values = [component.value for component in self.components]
        return max(values, default=0) if is_peak(self.quantity) else sum(values)

    def share(self, component: Component) -> float:
        """Return a component's part of the total, from 0 to 1."""
        return component.value / self.total if self.total else 0.0

    def rows(self) -> list[dict]:
        """Return one row for each component, with the columns of the results' tables."""
        return [
            {
                "model": self.model,
                "component": one.name,
                "quantity": self.quantity,
                "each": one.each,
                "instances": one.instances,
                "value": one.value,
                "source": self.source,
            }
            for one in self.components
        ]

    def to_polars(self) -> pl.DataFrame:
        """Return `rows` as a Polars frame."""
        import polars as pl

        return pl.DataFrame(self.rows())

    def to_pandas(self) -> pd.DataFrame:
        """Return `rows` as a pandas frame."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def __str__(self) -> str:
        return f"{self.model}: {count(self.total)} {UNITS.get(self.quantity, self.quantity)}"

    def _repr_html_(self) -> str:
        """Show a table with a bar for each share in a notebook."""
        rows = "".join(
            f"<tr><td style='text-align:left'>{escape(one.name)}</td><td>{count(one.value)}</td>"
            f"<td>{percent(self.share(one))}</td><td style='min-width:12em'><div style='height:1em;"
            f"background:#4c78a8;width:{100 * self.share(one):.2f}%'></div></td></tr>"
            for one in self.components[:MOST_ROWS]
        )
        more = len(self.components) - MOST_ROWS
        rest = f"<tr><td colspan='4'>and {more} more</td></tr>" if more > 0 else ""
        caption = f"{escape(str(self))} ({escape(self.source)})"
        return f"<table><caption>{caption}</caption>{rows}{rest}</table>"


def of_terms(model: str, quantity: str, terms: Terms) -> Breakdown:
    """Return a prediction by formula; components that are 0 are left out."""
    parts = [Component(name, term.each, term.instances) for name, term in terms.items()]
    return _sorted(model, quantity, "formula", parts)


def of_values(model: str, quantity: str, method: str, values: Mapping[str, int]) -> Breakdown:
    """Return a measurement."""
    parts = [Component(name, value, 1) for name, value in values.items()]
    return _sorted(model, quantity, method, parts)


def _sorted(model: str, quantity: str, source: str, parts: list[Component]) -> Breakdown:
    largest_first = sorted(parts, key=lambda one: (-one.value, one.name))
    return Breakdown(model, quantity, source, tuple(one for one in largest_first if one.value))
