"""Sliding-window attention: a token attends the last `window` tokens, itself included."""

from collections.abc import Callable

from modelbudget.architecture.arithmetic import ceil_div, positive
from modelbudget.architecture.base import Architecture, Size
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.memoised_run import changed
from modelbudget.architecture.run_values import INDEX, bytes_of
from modelbudget.components import scaled_dot_product
from modelbudget.components.attention.attention_step import (
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
from modelbudget.memory.timeline import Timeline, times

NAME = "attention"
GROUP = "attention"
SIZES = ("window",)
ALIGNED = 8
"""Numbers of which a row of a mask is a multiple, for memory-efficient attention to load it."""


class WindowFields(Architecture):
    window: Size = 0
    window_in_chunks: bool = False


FIELDS = WindowFields


def _hides(a: Fields, r: Run):
    return positive(r.length - a.window)


def rows_of_masks_fit(a: Fields, r: Run):
    """1 unless memory-efficient attention copies a mask, whose rows are a multiple of 8 there."""
    padded = positive(ALIGNED * ceil_div(r.length, ALIGNED) - r.length)
    return 1 - _hides(a, r) * int(r.attention_kernel != "math") * padded


@valid_if(rows_of_masks_fit, *SAVED_IF)
def saved(a: Fields, r: Run, place: Place = ALONE) -> Values:
    """As attention, and the mask where it is saved: by no step of math that is not checkpointed."""
    hides = _hides(a, r)
    saves = int(r.recompute == "selective" or r.attention_kernel != "math")
    mask = saves * scaled_dot_product.mask_of_window(r, hides)
    of_attention = attention.saved(a, r, place)
    if r.attention_kernel == "flash":
        masked = attention.saved(a, _of_masks(r), place)
        of_attention = {
            name: (1 - hides) * n_bytes + hides * masked[name]
            for name, n_bytes in of_attention.items()
        }
    return of_attention | {"core": of_attention["core"] + mask}


@valid_if(no_mask_on_scores)
def cache(a: Fields, r: Run) -> Values:
    """Return the bytes of keys and values of the last `window` tokens, or of all if fewer.

    Jiang et al. 2023, §2: rolling buffer cache. One that grows by concatenation has views of all
    tokens of the prompt, and the window as a tensor.
    """
    token = bytes_of(r.dtype) * 2 * r.batch * a.n_kv_head * a.d_head
    if r.cache_growth == "concatenated":
        return {"window": token * r.length + INDEX}
    n = a.window - positive(a.window - r.length) * (a.window - r.length)
    return {"window": token * n}


@valid_if(rows_of_masks_fit, *PEAK_IF)
def forward(a: Fields, r: Run, place: Place) -> Timeline:
    """As attention, with the window's mask, unless the model makes it."""
    return _by_kernel(attention.forward, a, r, place)


@valid_if(rows_of_masks_fit, *PEAK_IF)
def backward(a: Fields, r: Run, place: Place) -> Timeline:
    """As attention, with the window's mask, unless the model makes it."""
    return _by_kernel(attention.backward, a, r, place)


def _by_kernel(timeline: Callable[..., Timeline], a: Fields, r: Run, place: Place) -> Timeline:
    hides = _hides(a, r)
    if r.attention_kernel != "flash":
        return timeline(a, r, place, hides)
    masked = timeline(a, _of_masks(r), place, hides)
    return [*times(1 - hides, timeline(a, r, place)), *times(hides, masked)]


def _of_masks(r: Run) -> Run:
    """Return the run with the kernel that computes scores with a mask in place of flash."""
    return changed(r, {"attention_kernel": "efficient"})


def program(a: Fields, r: Run):
    """Attention of the last `window` tokens."""
    return attention.program(a, r, a.window)
