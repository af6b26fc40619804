"""One quantity of one model by component: what predictions and measurements return."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from modelbudget.api.arguments import checked, one_of
from modelbudget.api.frames import Frames, html_table
from modelbudget.architecture.terms import Term, Terms, is_peak
from modelbudget.common.errors import needed
from modelbudget.common.number_format import count, percent
from modelbudget.sweeps.fields_in_words import UNITS

if TYPE_CHECKING:
    import altair as alt


FORMULA = "formula"
"""The source of a prediction."""


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


@dataclass(frozen=True)
class Breakdown(Frames):
    """A quantity of a model by component, largest first.

    `source` says where it comes from: `formula`, the device on which a module was measured, or
    `traced` with the class. `settings` are those of the run, as text; empty if none matters.
    Units: a count, bytes or FLOPs (`quantity`).
    """

    model: str
    quantity: str
    source: str
    components: tuple[Component, ...]
    settings: str = ""

    def __iter__(self) -> Iterator[Component]:
        return iter(self.components)

    @property
    def total(self) -> int:
        """The whole model: the sum over components, or the largest phase of a peak."""
        values = [component.value for component in self.components]
        return max(values, default=0) if is_peak(self.quantity) else sum(values)

    @checked(component=one_of(Component))
    def share(self, component: Component) -> float:
        """Return a component's part of the total, from 0 to 1."""
        return component.value / self.total if self.total else 0.0

    def rows(self) -> list[dict]:
        """Return one row for each component, with the columns of the results' tables."""
        return [
            {
                "model": self.model,
                "component": part.name,
                "quantity": self.quantity,
                "each": part.each,
                "instances": part.instances,
                "value": part.value,
                "source": self.source,
            }
            for part in self.components
        ]

    def __str__(self) -> str:
        return f"{self._title}; {self.settings}" if self.settings else self._title

    @property
    def _title(self) -> str:
        return f"{self.model}: {count(self.total)} {UNITS.get(self.quantity, self.quantity)}"

    def __repr__(self) -> str:
        return f"<Breakdown {self}; {self.source}>"

    def chart(self) -> alt.Chart:
        """Return a bar chart of the components, which a notebook shows. Needs altair."""
        needed("charts", "report", "altair")
        import altair as alt

        unit = UNITS.get(self.quantity, self.quantity)
        title = alt.Title(f"{self._title} ({self.source})", subtitle=self.settings)
        return (
            alt.Chart(self.to_polars(), title=title)
            .mark_bar()
            .encode(
                x=alt.X("value:Q", title=unit),
                y=alt.Y("component:N", sort=None, title=None),
                tooltip=["component", "instances", "each", "value"],
            )
        )

    def _repr_html_(self) -> str:
        """Show a table with a bar for each share in a notebook."""
        shares = [self.share(part) for part in self.components]
        rows = [
            {"component": part.name, self.quantity: part.value, "share": percent(share)}
            for part, share in zip(self.components, shares, strict=True)
        ]
        return html_table(f"{self} ({self.source})", rows, shares)


def of_terms(model: str, quantity: str, terms: Terms, source: str = FORMULA) -> Breakdown:
    """Return a prediction; components that are 0 are left out."""
    parts = (Component(name, term.each, term.instances) for name, term in terms.items())
    largest_first = sorted(
        filter(lambda part: part.value, parts), key=lambda part: (-part.value, part.name)
    )
    return Breakdown(model, quantity, source, tuple(largest_first))


def of_values(model: str, quantity: str, source: str, values: Mapping[str, int]) -> Breakdown:
    """Return a measurement."""
    terms = {name: Term(value) for name, value in values.items()}
    return of_terms(model, quantity, terms, source)
