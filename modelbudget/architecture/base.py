"""What a model is: a strict, frozen record of the numbers that determine it.

A family (`modelbudget/families/`) is a record together with its formulas and its torch module.
Nothing here knows torch.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from modelbudget.architecture.operations import largest
from modelbudget.architecture.record import MAX_COUNT, Count, Depth, Parts, Record, Size
from modelbudget.architecture.run_config import bytes_of
from modelbudget.architecture.terms import Terms, part, scaled, total

if TYPE_CHECKING:
    from torch import nn

__all__ = ["MAX_COUNT", "Architecture", "Count", "Depth", "Parts", "Size"]


class Architecture(Record):
    """The base of all families: subclasses add fields, formulas and `build`.

    A formula takes `a`, anything with this family's fields as attributes, and for what depends on
    how the model runs `r`, anything with a run's: records, Polars columns, SymPy symbols, Vega
    signals. Sizes and switches may be any of these and only take part in arithmetic; words are
    text in every reading and may be compared.

    The formulas of a run bear the names of their quantities. Each holds where `covered` is 1; a
    family that has none leaves it at 0, and its runs are measured without a prediction.
    """

    has_formula: ClassVar[bool] = True
    """Whether its parameters have one; a family without is measured, on meta, and not compared."""

    switches_of_run: ClassVar[tuple[str, ...]] = ()
    """Fields of a run beyond what any model has, that the modules of this family have built in."""
    has_cache: ClassVar[bool] = False
    """Whether its modules can keep a cache from one token to the next."""

    @staticmethod
    @abstractmethod
    def parameters(a: Any) -> Terms:
        """Parameters by component."""

    @classmethod
    def parameter_bytes(cls, a: Any, r: Any) -> Terms:
        """Bytes of the parameters in the run's dtype."""
        return scaled(cls.parameters(a), bytes_of(r.dtype))

    @classmethod
    def resident_bytes(cls, a: Any, r: Any) -> Terms:
        """What a real CPU's memory holds of the parameters: their own bytes, once written."""
        return part("", {"model": total(cls.parameter_bytes(a, r))})

    @classmethod
    def resident_peak_bytes(cls, a: Any, r: Any) -> Terms:
        """What it holds at most in two steps of training: the largest peak of all phases."""
        phases = cls.peak_training_bytes(a, r).values()
        return part("", {"model": largest(*(phase.total for phase in phases))})

    @classmethod
    def peak_requested_bytes(cls, a: Any, r: Any) -> Terms:
        """What is requested of an allocator at most, by phase: the tensors that live."""
        return cls.peak_training_bytes(a, r)

    @staticmethod
    def covered(quantity: str, a: Any, r: Any):
        """1 where the formula of a run's quantity holds, else 0."""
        return 0

    @abstractmethod
    def build(self) -> nn.Module:
        """The torch model itself, on the current default device and dtype."""

    @classmethod
    def is_language_model(cls) -> bool:
        """Whether it turns tokens into logits, so that a step of training it has a loss."""
        return "tied" in cls.model_fields
