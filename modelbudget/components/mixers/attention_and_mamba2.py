"""Attention and Mamba-2's mixer side by side, whose outputs are added (Falcon-H1).

Zuo et al. 2025 (arXiv 2507.22448), §2.1. Both read the same states; their components are named
after the part.
"""

from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.terms import join
from modelbudget.components.attention.attention_conditions import (
    SAVED_IF,
    is_not_written_out,
    math_for_masks,
    no_mask_on_scores,
    no_sinks,
)
from modelbudget.components.attention.attention_layout import has_rope, is_packed, own_tables
from modelbudget.components.contract import ALONE, Place, Values, valid_if
from modelbudget.components.mixers import attention, mamba2
from modelbudget.components.mixers.gated_deltanet import fused_norm
from modelbudget.components.mixers.mamba2 import FIELDS, SIZES
from modelbudget.memory.parameter_tensors import Tensor
from modelbudget.operations.elementwise import add
from modelbudget.operations.part import NoProgramError, make_part

__all__ = ["FIELDS", "SIZES"]

GROUP = "attention"


def separate_projections(a: Fields, r: Run):
    """Return 1 unless the projections of attention are one matrix."""
    return 1 - is_packed(r)


def makes_tables(a: Fields, r: Run):
    """Return 1 where the layer makes RoPE's tables itself."""
    return 1 - has_rope(a) * (1 - own_tables(a, r))


def _both(of_attention: Values, of_mamba2: Values) -> Values:
    parts = {"attention": of_attention, "mamba2": of_mamba2}
    return {join(part, name): value for part, held in parts.items() for name, value in held.items()}


@valid_if(separate_projections)
def parameters(a: Fields) -> Values:
    """Sum both parts; the norm before them is the layer's."""
    return _both(attention.parameters(a), mamba2.parameters(a))


@valid_if(separate_projections)
def tensors(a: Fields) -> list[Tensor]:
    """Those of attention, then those of Mamba-2's mixer."""
    parts = {"attention": attention.tensors(a), "mamba2": mamba2.tensors(a)}
    return [
        one._replace(name=join(part, one.name)) for part, found in parts.items() for one in found
    ]


@valid_if(
    separate_projections,
    makes_tables,
    is_not_written_out,
    fused_norm,
    *SAVED_IF,
)
def saved(a: Fields, r: Run, place: Place = ALONE) -> Values:
    """Return what both save; their input is saved once."""
    return _both(attention.saved(a, r, place), mamba2.saved(a, r, place) | {"input": 0})


@valid_if(separate_projections, math_for_masks, no_sinks)
def flops(a: Fields, r: Run) -> Values:
    """Sum both parts."""
    return _both(attention.flops(a, r), mamba2.flops(a, r))


@valid_if(math_for_masks, no_sinks)
def flops_backward(a: Fields, r: Run) -> Values:
    """Sum both parts."""
    return _both(attention.flops_backward(a, r), mamba2.flops_backward(a, r))


def flops_recomputed(a: Fields, r: Run) -> Values:
    """Sum both parts."""
    return _both(attention.flops_recomputed(a, r), mamba2.flops_recomputed(a, r))


@valid_if(no_mask_on_scores)
def cache(a: Fields, r: Run) -> Values:
    """Return keys and values, and the recurrent state."""
    return _both(attention.cache(a, r), mamba2.cache(a, r))


TOKENS_PER_STEP = mamba2.TOKENS_PER_STEP


def program(a: Fields, r: Run):
    """States (batch, length, d_model) to the sum of both parts' outputs, of the same shape."""
    for name, allowed in (("rope_tables", "layer"), ("projections", "separate")):
        if getattr(r, name) != allowed:
            raise NoProgramError(f"{name}: {getattr(r, name)} of attention_and_mamba2")
    if r.attention_kernel == "written_out":
        raise NoProgramError("attention_kernel: written_out of attention_and_mamba2")
    attend = make_part("attention", attention.program, a, r)
    mix = make_part("mamba2", mamba2.program, a, r)

    def forward(x, bias=None, rotation=None):
        return add(attend(x, bias, rotation), mix(x))

    forward.reads_positions = True
    return forward
