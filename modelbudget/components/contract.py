"""The contract of a part of a layer: the functions of a file in `mixers/` or `feed_forward/`.

Parts are found by folder; the name of a file is the one that `mixers:` or `mlps:` allows. A file
is a module of functions (`Part`). The layer, the optimizer, checkpointing and the peaks of training
and inference iterate over the parts of a model, so that a new part needs no change of them.

A part that lacks a function has no formula for the quantities that need it (`FUNCTIONS`). A
function with limits states them, `@valid_if(condition, …)`: a condition takes fields and run like
the function and returns 1 where the formula holds, else 0, in arithmetic that every reading can
evaluate. A model without a formula is measured, and the comparison shows that.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple, Protocol

from pydantic import create_model

from modelbudget.architecture.base import Architecture, Size
from modelbudget.architecture.constraint import Check
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.common.attributes import with_attributes
from modelbudget.components.weight_formats import Matrix
from modelbudget.memory.parameter_tensors import Tensor
from modelbudget.memory.timeline import Timeline

Values = dict[str, Any]
"""By the name of a component below the part; the empty name is the part itself."""


class Place(NamedTuple):
    """The position of a part in its layer, as far as backward and what is saved depend on it."""

    gradient: Any = 0
    """Bytes of the output's gradient that the part owns: freed by its last reader."""
    saves_input: Any = 1
    """1 unless another part of the layer saves the same input."""
    accumulates: Any = 0
    """1 where another reader of the input has left a gradient of it before."""
    is_first: int = 0
    """1 where the part reads the input of the layer without a norm before it."""
    stops: Any = 0
    """1 where a repeated forward pass ends with the last tensor that the part saves."""


class Part(Protocol):
    """A mixer (attention and what replaces it) or a feed-forward part.

    Shapes: states (batch, length, d_model) in, the same out. Values are of one layer: counts,
    bytes, or FLOPs.
    """

    NAME: str
    """The component's name in tables and attribute in modules; the file's name if missing."""
    GROUP: str
    """The group of charts that its components belong to (`groups.py`)."""
    SIZES: tuple[str, ...]
    """Fields that are at least 1 where the part is in the pattern, and 0 where it is not."""
    DIVIDED: tuple[str, ...]
    """Fields of which each of several devices has the same share (`tensor_parallel.py`). May be
    missing: then devices cannot divide the part."""
    DIVIDED_OF_ALL_TOKENS: tuple[str, ...]
    """The same, where each device has all tokens (`sequence_parallel: false`); else it has all."""
    FUSES_GRADIENTS: bool
    """Its products can add gradients of weights to a buffer; missing: they cannot."""
    OF_OWN_TOKENS: bool
    """Each of several devices has the whole part, for its part of the length; missing: all of the
    length, of which the part's output is a term on each device."""
    ONLY_WITH: dict[str, Any]
    """Settings of a run with which alone its program is known; missing: it is with all."""
    LOOPS_OVER_TOKENS: bool
    """Whether its program computes one token, or a few, after the other; missing: it does not."""
    FIELDS: type[Architecture]
    """Its fields, with their checks; they join those of the families that find parts by folder. May
    be missing: then they are `SIZES` (`fields_of`)."""

    CONSTRAINTS: tuple[Check, ...]
    """Constraints between the part and a decoder's other fields that are made of other data; the
    others are in configs/architecture_fields.yaml. May be missing."""

    def parameters(self, a: Fields) -> Values: ...

    def active_parameters(self, a: Fields) -> Values:
        """Parameters that one token uses; all, if missing."""
        ...

    def tensors(self, a: Fields) -> list[Tensor]:
        """Parameter tensors that get a gradient, in the order of the torch module.

        If missing, each component is one (`tensors_of`).
        """
        ...

    def matrices(self, a: Fields) -> list[Matrix]:
        """Weight matrices that a format of quantised weights converts."""
        ...

    def saved(self, a: Fields, r: Run, place: Place) -> Values:
        """Bytes saved for backward, without full checkpointing."""
        ...

    def flops(self, a: Fields, r: Run) -> Values:
        """FLOPs of the matrix products of a forward pass, two for a multiplication and a sum."""
        ...

    def flops_backward(self, a: Fields, r: Run) -> Values:
        """FLOPs of the gradients, without what checkpointing repeats; twice `flops`, if missing."""
        ...

    def flops_recomputed(self, a: Fields, r: Run) -> Values:
        """FLOPs that full checkpointing repeats in the backward pass; all, if missing."""
        ...

    def forward(self, a: Fields, r: Run, place: Place) -> Timeline:
        """From the input, which is live, to the output and all that is saved.

        Backward needs more than the middle of a feed-forward part, which may be left out.
        """
        ...

    def backward(self, a: Fields, r: Run, place: Place) -> Timeline:
        """From the gradient of the output to that of the input."""
        ...

    def program(self, a: Fields, r: Run) -> Callable:
        """Declare the parameters and return the forward function (`operations/part.py`)."""
        ...

    def cache(self, a: Fields, r: Run) -> Values:
        """Bytes kept from one token to the next, after `length` tokens."""
        ...


ALONE = Place()
"""The place of a part outside a layer."""

FUNCTIONS = {
    "parameter_bytes": ("tensors",),
    "gradient_bytes": ("parameters",),
    "optimizer_bytes": ("tensors",),
    "activation_bytes": ("saved",),
    "flops_forward": ("flops",),
    "flops_backward": ("flops",),
    "peak_training_bytes": ("tensors", "saved", "forward", "backward"),
    "cache_bytes": ("cache",),
}
"""Functions that a part must provide for the formula of a quantity.

Bytes of parameters need the tensors only where they are sharded.
"""


def doubled(values: Values) -> Values:
    """Twice each value: backward has two products for each product of forward."""
    return {name: 2 * value for name, value in values.items()}


def flops_backward_of(part: Part, a: Fields, r: Run) -> Values:
    """Return the FLOPs of a part's gradients, and of what full checkpointing repeats."""
    values = (
        part.flops_backward(a, r) if hasattr(part, "flops_backward") else doubled(part.flops(a, r))
    )
    if r.recompute != "full":
        return values
    again = getattr(part, "flops_recomputed", part.flops)(a, r)
    return {name: n + again.get(name, 0) for name, n in values.items()}


@cache
def fields_of(part: Any) -> type[Architecture]:
    """Return the record of a part's fields; of sizes alone it is `sizes_of_` and the part."""
    if hasattr(part, "FIELDS"):
        return part.FIELDS
    sizes: Any = dict.fromkeys(part.SIZES, (Size, 0))
    name = part.__name__.rpartition(".")[2]
    return create_model(f"sizes_of_{name}", __base__=Architecture, **sizes)


Condition = Callable[[Fields, Run], Any]


def tensors_of(part: Part, a: Fields) -> list[Tensor]:
    """Return the parameter tensors of a part that get a gradient."""
    if hasattr(part, "tensors"):
        return part.tensors(a)
    return [Tensor(name, numbers) for name, numbers in part.parameters(a).items()]


def valid_if(*conditions: Condition) -> Callable:
    """Restrict a formula to where all conditions are 1."""

    return partial(with_attributes, conditions=conditions)


def has_formula(part: Part, quantity: str, a: Fields, r: Run):
    """1 where the part provides the formula of a quantity and the conditions hold, else 0."""
    holds = 1
    for name in FUNCTIONS[quantity]:
        function = getattr(part, name, None)
        if function is None and name != "tensors":
            return 0
        for condition in getattr(function, "conditions", ()):
            holds = holds * condition(a, r)
    return holds
