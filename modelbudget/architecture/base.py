"""An architecture: a strict, frozen record of the numbers that determine a model.

A family (`modelbudget/families/`) is a record with its formulas and its torch module. Nothing here
imports torch.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from modelbudget.architecture import counting_conventions
from modelbudget.architecture.constraint import Constraint
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.record import MAX_COUNT, Count, Depth, Parts, Record, Size
from modelbudget.architecture.run_adapter import is_partial
from modelbudget.architecture.run_values import (
    OF_AUTOCAST,
    OF_QUANTISED,
    OF_STORED,
    bytes_of,
    is_pipelined,
)
from modelbudget.architecture.stored_formats import file_is_known
from modelbudget.architecture.terms import Terms, part, scaled, total
from modelbudget.operations.part import NoProgramError

if TYPE_CHECKING:
    from torch import nn

__all__ = ["MAX_COUNT", "Architecture", "Count", "Depth", "Parts", "Size"]

OF_ANY_FAMILY = (*OF_STORED, "resident_bytes")
"""Quantities whose formula follows from that of the parameters."""


class Architecture(Record):
    """The base of all families: subclasses add fields, formulas and `build`.

    A formula takes `a`, the fields of the architecture, and for what depends on how the model runs
    `r`, those of the run (`formula_arguments.py`).

    The formulas of a run have the names of their quantities. Each holds where `has_formula_for` is
    1; a quantity without a formula is measured without a prediction.
    """

    has_formula: ClassVar[bool] = True
    """Whether its parameters have a formula; other families are only measured, on meta."""

    switches_of_run: ClassVar[tuple[str, ...]] = ()
    """Options of a run that not every family's modules have, and this one's do."""
    constraints_of_run: ClassVar[tuple[Constraint, ...]] = ()
    """Constraints over its fields and a run's, in addition to those of all families."""
    model_program: ClassVar[Callable | None] = None
    """The program of the family's models, by fields and run (`operations/`)."""
    lists_matrices: ClassVar[bool] = False
    """Whether formulas list the matrices that a format of quantised weights converts; those of
    other families are the linear layers of their programs."""
    has_cache: ClassVar[bool] = False
    """Whether its modules can keep a cache from one token to the next."""
    caches_only_if: ClassVar[str] = ""
    """The switch without which inference is one forward pass over all tokens, without a cache."""

    @property
    def reads_all_at_once(self) -> bool:
        """Whether its inference is one forward pass over all tokens, without a cache."""
        return bool(self.caches_only_if) and not getattr(self, self.caches_only_if)

    @staticmethod
    @abstractmethod
    def parameters(a: Fields) -> Terms:
        """Parameters by component."""

    @classmethod
    def parameter_bytes(cls, a: Fields, r: Run) -> Terms:
        """Bytes of the parameters in the run's dtype."""
        return scaled(cls.parameters(a), bytes_of(r.dtype))

    @classmethod
    def file_bytes(cls, a: Fields, r: Run) -> Terms:
        """Bytes of the tensors in a file of the parameters, without its header."""
        return cls.parameter_bytes(a, r)

    @classmethod
    def resident_bytes(cls, a: Fields, r: Run) -> Terms:
        """Bytes of a real CPU process that the parameters take: their own, once written."""
        return part("", {"model": total(cls.parameter_bytes(a, r))})

    @classmethod
    def terms(cls, quantity: str, a: Fields, r: Run) -> Terms:
        """Return the terms of a quantity that has a formula."""
        if quantity == "parameters":
            return cls.parameters(a)
        if convention := counting_conventions.BY_NAME.get(quantity):
            return convention.terms(cls, a, r.length)
        return getattr(cls, quantity)(a, r)

    @classmethod
    def has_formula_for(cls, quantity: str, a: Fields, r: Run):
        """1 where the formula of a run's quantity holds, else 0."""
        if convention := counting_conventions.BY_NAME.get(quantity):
            return int(not convention.why_not(cls))
        if is_partial(r):
            return 0
        if quantity not in OF_QUANTISED and (r.weights, r.vocabulary_dtype) != ("dtype", "dtype"):
            return 0
        if r.weights != "dtype":
            if quantity == "file_bytes" and not file_is_known(r.weights):
                return 0
            if quantity in OF_STORED:
                return cls.stores_all(a, r)
        if r.autocast != "none" and quantity not in OF_AUTOCAST:
            return 0
        if quantity in OF_ANY_FAMILY and r.zero == 0 and not is_pipelined(r):
            return int(cls.has_formula)
        return cls._holds(quantity, a, r)

    @classmethod
    def stores_all(cls, a: Fields, r: Run):
        """1 where the run's format of quantised weights can store all that it converts, else 0."""
        return 0

    def why_not_quantised(self, r: Run) -> str:
        """Return why the bytes of quantised weights are not known; empty if they are.

        They are where the program of a family says what is frozen: that of its linear layers.
        """
        if "adapter" in self.switches_of_run:
            return ""
        return f"which matrices of {self.name()} are converted is not known"

    def kept_by_class(self) -> tuple[str, ...]:
        """Return the linear layers that no format converts in its class, by path in a layer."""
        return ()

    @classmethod
    def _holds(cls, quantity: str, a: Fields, r: Run):
        """1 where the family has a formula of a quantity and it holds, else 0."""
        return int(hasattr(cls, quantity))

    @classmethod
    def program(cls) -> Callable:
        """Return `model_program`. Raises NoProgramError for a family without one."""
        if cls.model_program is None:
            raise NoProgramError
        return cls.model_program

    @abstractmethod
    def build(self) -> "nn.Module":
        """Build the torch model on the current default device and dtype."""

    @property
    def shape_of_token(self) -> tuple[int, ...]:
        """The shape of the numbers that stand for a token: mostly one number."""
        return ()

    @classmethod
    def is_language_model(cls) -> bool:
        """Whether it maps tokens to logits, so that a training step has a loss."""
        return "tied" in cls.model_fields
