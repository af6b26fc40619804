"""Values of one quantity by component, and the budget of a model: several quantities."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from modelbudget.api.units import readable, share_of
from modelbudget.architecture.terms import is_peak

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

TITLES = {
    "parameters": "parameters",
    "parameter_bytes": "memory of parameters",
    "gradient_bytes": "memory of gradients",
    "optimizer_bytes": "memory of optimizer states",
    "activation_bytes": "memory of activations saved for backward",
    "peak_training_bytes": "peak memory of training",
    "cache_bytes": "KV cache or recurrent state",
    "peak_inference_bytes": "peak memory of inference",
    "flops_forward": "FLOPs of a forward pass",
    "flops_backward": "FLOPs of a backward pass",
    "flops_decode": "FLOPs of one more token for each sequence",
}


@dataclass(frozen=True)
class Component:
    """The value of one component: `each` instance, and how many `instances` the model has.

    Of a peak, a component is a phase. `instances` is None where only the total is known.
    """

    name: str
    total: int
    each: int | None = None
    instances: int | None = None


@dataclass(frozen=True)
class Values:
    """One quantity of a model by component.

    `source` says how the numbers were found (`predicted`, or `measured` with a device);
    `implementation`, whose code they are about.
    """

    quantity: str
    components: tuple[Component, ...]
    source: str
    implementation: str

    @property
    def title(self) -> str:
        """The quantity in words."""
        return TITLES.get(self.quantity, self.quantity)

    @property
    def total(self) -> int:
        """The sum of all components; of a peak, the largest phase."""
        values = [one.total for one in self.components]
        return max(values, default=0) if is_peak(self.quantity) else sum(values)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each component."""
        return [
            {
                "quantity": self.quantity,
                "component": one.name,
                "each": one.each,
                "instances": one.instances,
                "value": one.total,
                "share": one.total / self.total if self.total else 0.0,
                "source": self.source,
                "implementation": self.implementation,
            }
            for one in self.components
        ]

    def to_polars(self) -> pl.DataFrame:
        """Return the rows as a Polars table."""
        import polars as pl

        return pl.DataFrame(self.rows())

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows as a pandas table."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def __str__(self):
        width = max((len(one.name) for one in self.components), default=0)
        lines = [
            f"  {one.name:{width}}  {one.total:>26,}  {share_of(one.total, self.total):>8}"
            for one in self.components
        ]
        return "\n".join([f"{self.title}: {readable(self.quantity, self.total)}", *lines])

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{escape(one.name)}</td><td>{one.total:,}</td>"
            f"<td>{share_of(one.total, self.total)}</td></tr>"
            for one in self.components
        )
        title = f"{escape(self.title)}: {readable(self.quantity, self.total)}, {self.source}"
        return f"<table><caption>{title}</caption>{rows}</table>"


@dataclass(frozen=True)
class Budget(Mapping[str, Values]):
    """Quantities of one model in one run; `missing` has the reason for each that is not there."""

    model: str
    found: dict[str, Values]
    missing: dict[str, str]

    def __getitem__(self, quantity: str) -> Values:
        return self.found[quantity]

    def __iter__(self) -> Iterator[str]:
        return iter(self.found)

    def __len__(self):
        return len(self.found)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each quantity and component."""
        return [row for values in self.found.values() for row in values.rows()]

    def to_polars(self) -> pl.DataFrame:
        """Return the rows as a Polars table."""
        import polars as pl

        return pl.DataFrame(self.rows())

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows as a pandas table."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def __str__(self):
        lines = [
            f"  {values.title}: {readable(name, values.total)} ({values.total:,})"
            for name, values in self.found.items()
        ]
        lines += [f"  {TITLES.get(name, name)}: {why}" for name, why in self.missing.items()]
        return "\n".join([self.model, *lines])

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{escape(values.title)}</td><td>{readable(name, values.total)}</td>"
            f"<td>{values.total:,}</td></tr>"
            for name, values in self.found.items()
        )
        return f"<table><caption>{escape(self.model)}</caption>{rows}</table>"
