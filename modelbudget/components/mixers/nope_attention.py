"""Attention without RoPE (NoPE), in some layers of a model whose others have it."""

from types import SimpleNamespace

from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.components.attention.attention_layout import own_tables
from modelbudget.components.attention.attention_step import PEAK_IF, SAVED_IF
from modelbudget.components.contract import ALONE, Place, Values, valid_if
from modelbudget.components.mixers import attention
from modelbudget.components.mixers.attention import (
    DIVIDED,
    FUSES_GRADIENTS,
    SIZES,
    cache,
    flops,
    flops_backward,
    matrices,
    parameters,
    tensors,
)
from modelbudget.memory.timeline import Timeline

__all__ = [
    "DIVIDED", "FUSES_GRADIENTS", "SIZES", "cache", "flops", "flops_backward", "matrices",
    "parameters", "tensors",
]  # fmt: skip

NAME = "attention"
GROUP = "attention"
FIELDS = attention.FIELDS


def _without_rope(a: Fields) -> Fields:
    return SimpleNamespace(**vars(a) | {"position": "none", "d_rotary": 0})


@valid_if(own_tables, *SAVED_IF)
def saved(a: Fields, r: Run, place: Place = ALONE) -> Values:
    """As attention of a model without positions."""
    return attention.saved(_without_rope(a), r, place)


@valid_if(own_tables, *PEAK_IF)
def forward(a: Fields, r: Run, place: Place) -> Timeline:
    """As attention of a model without positions."""
    return attention.forward(_without_rope(a), r, place)


@valid_if(own_tables, *PEAK_IF)
def backward(a: Fields, r: Run, place: Place) -> Timeline:
    """As attention of a model without positions."""
    return attention.backward(_without_rope(a), r, place)


def program(a: Fields, r: Run):
    """Attention that reads no positions."""
    return attention.program(a, r, has_rope=False)
