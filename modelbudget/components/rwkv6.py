"""RWKV-6 (Finch): as RWKV-5, with mixes and decays that depend on the token."""

from pydantic import Field

from modelbudget.architecture.base import Count
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.run_values import bytes_of, tokens
from modelbudget.components import rwkv5
from modelbudget.components.contract import Values
from modelbudget.components.rwkv5 import PROJECTIONS, RWKV5Fields
from modelbudget.components.rwkv_heads import (
    exact_states,
    low_rank,
    norm_saved,
    recurrence_saved,
    states,
)


class RWKV6Fields(RWKV5Fields):
    d_mix: Count = Field(32, description="rank of what a token adds to each of the five mixes")
    d_decay: Count = Field(64, description="rank of what a token adds to its decays")


channel, channel_saved, channel_flops = (
    rwkv5.channel,
    rwkv5.channel_saved,
    rwkv5.channel_flops,
)
channel_tensors = rwkv5.channel_tensors

N_MIX = 5
"""Inputs of receptance, key, value, gate and decay."""


def time(a: Fields) -> Values:
    """Count the parameters of the time mixer (Peng et al. 2024, arXiv 2404.05892, §4.2).

    `mix` has a row for what the mixes read and one for each of them; `mix_down` and `mix_up` are
    their LoRAs, `decay` that of the decay with its base.
    """
    return {
        "mix": (1 + N_MIX) * a.d_model,
        "mix_down": a.d_model * N_MIX * a.d_mix,
        "mix_up": N_MIX * a.d_mix * a.d_model,
        **low_rank("decay", a, a.d_decay),
        "bonus": a.d_model,
        **dict.fromkeys(PROJECTIONS, a.d_model * a.d_model),
        "norm": 2 * a.d_model,
    }


def time_tensors(a: Fields) -> Values:
    """Count the parameter tensors of each component."""
    return dict.fromkeys(time(a), 1) | {"decay.up": 2, "norm": 2}


def time_saved(a: Fields, r: Run) -> Values:
    """Return the bytes saved for backward by the time mixer, of two tokens or more.

    The differences to the tokens before, and five mixes that multiply them; hyperbolic tangents
    inside of the LoRAs; inputs of projections; the recurrence (`recurrence_saved`), with both
    exponentials of the decays; the argument of the gate and both factors of its product.
    """
    low = bytes_of(r.dtype) * tokens(r)
    decays = 2 * exact_states(a, r)
    mixed = (1 + N_MIX) * states(a, r) + low * N_MIX * a.d_mix
    return {
        "": mixed + 3 * states(a, r) + decays + recurrence_saved(a, r, 4),
        "mix_down": states(a, r),
        "decay.down": states(a, r),
        "decay": low * a.d_decay,
        **dict.fromkeys(PROJECTIONS, states(a, r)),
        "norm": norm_saved(a, r),
    }


def time_flops(a: Fields, r: Run) -> Values:
    """Two operations for each weight and token, and for each number of a state that is read."""
    channels = 2 * tokens(r) * a.d_model
    return {
        **rwkv5.time_flops(a, r),
        **dict.fromkeys(("mix_down", "mix_up"), channels * N_MIX * a.d_mix),
        **dict.fromkeys(("decay.down", "decay.up"), channels * a.d_decay),
    }


def time_flops_backward(a: Fields, r: Run) -> Values:
    """Each product twice, for the gradients of both its factors."""
    return {name: 2 * value for name, value in time_flops(a, r).items()}
