"""RWKV-5 (Eagle): as RWKV-4, with heads, a gate, and a state that is a matrix."""

from typing import ClassVar

from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.operations import positive
from modelbudget.architecture.run_values import bytes_of, exact_bytes, tokens
from modelbudget.components import rwkv_mixers
from modelbudget.components.contract import Values
from modelbudget.components.rwkv_heads import (
    SQUARE,
    MatrixRWKVFields,
    norm_saved,
    recurrence_saved,
    states,
)


class RWKV5Fields(MatrixRWKVFields):
    derived: ClassVar[dict[str, str]] = {"d_ff": "32 * floor(3.5 * d_model / 32)"}


PROJECTIONS = (*SQUARE, "gate")

channel, channel_saved, channel_flops = (
    rwkv_mixers.channel,
    rwkv_mixers.channel_saved,
    rwkv_mixers.channel_flops,
)
"""The channel mixer is that of RWKV-4, with a smaller hidden width."""
channel_tensors = dict.fromkeys(("mix", "receptance", "key", "value"), 1)


def time(a: Fields) -> Values:
    """Count the parameters of the time mixer (Peng et al. 2024, arXiv 2404.05892, §4.1).

    The current token is mixed with the previous one in four ways; decay and bonus have one number
    for each channel; the norm of each head has scale and bias.
    """
    return {
        "mix": 4 * a.d_model,
        "decay": a.d_model,
        "bonus": a.d_model,
        **dict.fromkeys(PROJECTIONS, a.d_model * a.d_model),
        "norm": 2 * a.d_model,
    }


def time_tensors(a: Fields) -> Values:
    """Count the parameter tensors of each component."""
    return dict.fromkeys(time(a), 1) | {"norm": 2}


def time_saved(a: Fields, r: Run) -> Values:
    """Return the bytes saved for backward by the time mixer, of two tokens or more.

    The tokens and those before them, and what each mix leaves to the latter; the inputs of
    projections; the recurrence (`recurrence_saved`), with both exponentials of the decay, the
    second also for each sequence, where it multiplies a state that needs a gradient; the argument
    of the gate and both factors of its product.
    """
    channels = bytes_of(r.dtype) * a.d_model
    by_sequence = positive(r.length - 2) * r.batch
    decay = (2 + by_sequence) * exact_bytes(r.dtype) * a.d_model
    mixed, gated = 2 * states(a, r) + 4 * channels, 3 * states(a, r)
    return {
        "": mixed + gated + decay + recurrence_saved(a, r, 3),
        **dict.fromkeys(PROJECTIONS, states(a, r)),
        "norm": norm_saved(a, r),
    }


def time_flops(a: Fields, r: Run) -> Values:
    """Two operations for each weight and token, and for each number of a state that is read."""
    channels = 2 * tokens(r) * a.d_model
    return {**dict.fromkeys(PROJECTIONS, channels * a.d_model), "": channels * a.d_head}


def time_flops_backward(a: Fields, r: Run) -> Values:
    """Each product twice, for the gradients of both its factors."""
    return {name: 2 * value for name, value in time_flops(a, r).items()}
