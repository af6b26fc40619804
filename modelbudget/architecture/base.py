"""An architecture: a strict, frozen record of the numbers that determine a model.

A family (`modelbudget/families/`) is a record with its formulas and its torch module. Nothing here
imports torch.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from modelbudget.architecture import counting_conventions
from modelbudget.architecture.arithmetic import largest, positive
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
OF_DTYPE_CACHE = ("cache_bytes", "peak_inference_bytes")
"""Quantities whose formula is that of a cache in the dtype, without blocks."""
OF_PEAK = ("resident_peak_bytes", "peak_requested_bytes")
"""Quantities whose formula is that of the peak of training."""
OF_ONE_PASS = ("activation_bytes", "peak_training_bytes")
"""Quantities whose closed formulas are those of a batch with one forward and backward pass."""


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
    reads_all_at_once: ClassVar[bool] = False
    """Whether its inference is one forward pass over all tokens, without a cache."""

    peak_training_bytes: ClassVar[Callable[[Fields, Run], Terms]]
    """Bytes of the live tensors at the peak of each phase of training; not of every family."""

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
    def resident_peak_bytes(cls, a: Fields, r: Run) -> Terms:
        """Peak bytes of a real CPU process in two steps of training: the largest of all phases."""
        phases = cls.peak_training_bytes(a, r).values()
        return part("", {"model": largest(*(phase.total for phase in phases))})

    @classmethod
    def peak_requested_bytes(cls, a: Fields, r: Run) -> Terms:
        """Peak bytes requested from an allocator, by phase: the live tensors."""
        return cls.peak_training_bytes(a, r)

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
        if quantity in OF_DTYPE_CACHE and (
            r.cache_dtype != "dtype" or r.cache_layout != "contiguous"
        ):
            return 0
        if quantity in OF_ANY_FAMILY and r.zero == 0 and not is_pipelined(r):
            return int(cls.has_formula)
        of = "peak_training_bytes" if quantity in OF_PEAK else quantity
        holds = cls._holds(of, a, r) if hasattr(cls, of) else 0
        if of in OF_ONE_PASS and not is_pipelined(r):
            holds = holds * (1 - positive(r.n_microbatch - 1))
        return holds

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
        """1 where the formula of a quantity that the family defines holds, else 0."""
        return 1

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
