"""Sliding-window attention: a token attends the last `window` tokens, itself included."""

from pydantic import Field

from modelbudget.architecture.arithmetic import positive
from modelbudget.architecture.base import Architecture, Size
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.run_values import bytes_of
from modelbudget.components import scaled_dot_product
from modelbudget.components.attention.attention_conditions import (
    PEAK_IF,
    SAVED_IF,
    no_mask_on_scores,
)
from modelbudget.components.contract import ALONE, Place, Values, valid_if
from modelbudget.components.mixers import attention
from modelbudget.components.mixers.attention import (
    DIVIDED,
    FUSES_GRADIENTS,
    flops,
    flops_backward,
    matrices,
    parameters,
    tensors,
)
from modelbudget.memory.timeline import Timeline

NAME = "attention"
GROUP = "attention"
SIZES = ("window",)


class WindowFields(Architecture):
    window: Size = 0


FIELDS = WindowFields


def _hides(a: Fields, r: Run):
    return positive(r.length - a.window)


def masks_by_math(a: Fields, r: Run):
    """1 unless a mask meets a kernel that never writes scores."""
    return 1 - _hides(a, r) * int(r.attention_kernel != "math")


@valid_if(masks_by_math, *SAVED_IF)
def saved(a: Fields, r: Run, place: Place = ALONE) -> Values:
    """As attention; selective checkpointing saves the mask too, an input of the core."""
    of_attention = attention.saved(a, r, place)
    mask = int(r.recompute == "selective") * scaled_dot_product.mask_of_window(r, _hides(a, r))
    return of_attention | {"core": of_attention["core"] + mask}


@valid_if(no_mask_on_scores)
def cache(a: Fields, r: Run) -> Values:
    """Return the bytes of keys and values of the last `window` tokens, or of all if fewer.

    Jiang et al. 2023, §2: rolling buffer cache.
    """
    n = a.window - positive(a.window - r.length) * (a.window - r.length)
    return {"window": bytes_of(r.dtype) * 2 * r.batch * n * a.n_kv_head * a.d_head}


@valid_if(masks_by_math, *PEAK_IF)
def forward(a: Fields, r: Run, place: Place) -> Timeline:
    """As attention, with the window's mask, unless the model makes it."""
    return attention.forward(a, r, place, _hides(a, r))


@valid_if(masks_by_math, *PEAK_IF)
def backward(a: Fields, r: Run, place: Place) -> Timeline:
    """As attention, with the window's mask, unless the model makes it."""
    return attention.backward(a, r, place, _hides(a, r))


def program(a: Fields, r: Run):
    """Attention of the last `window` tokens."""
    return attention.program(a, r, a.window)
