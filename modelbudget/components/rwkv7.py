"""RWKV-7 (Goose): a state that is a matrix and learns by a delta rule."""

from typing import ClassVar

from pydantic import Field

from modelbudget.architecture.base import Count
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.run_values import bytes_of, tokens
from modelbudget.components.contract import Values
from modelbudget.components.rwkv_heads import (
    SQUARE,
    MatrixRWKVFields,
    delta_saved,
    exact_states,
    low_rank,
    norm_saved,
    states,
)


class RWKV7Fields(MatrixRWKVFields):
    d_decay: Count = Field(description="rank of the map from a token to its decays")
    d_rate: Count = Field(description="rank of the map from a token to its learning rates")
    d_value_mix: Count = Field(
        description="rank of the map from a token to its share of the first layer's values"
    )
    d_gate: Count = Field(description="rank of the map from a token to its gate")

    derived: ClassVar[dict[str, str]] = {"d_ff": "4 * d_model", "d_rate": "d_decay"}


N_MIX = 6
"""Inputs of receptance, key and value, decay, learning rate and gate."""


def time(a: Fields) -> Values:
    """Count the parameters of a time mixer (Peng et al. 2025, arXiv 2503.14456, §4.1).

    `removal` and `replacement` scale the key for what is removed and what is written. The maps to
    decays and learning rates have biases, that to the gate none.
    """
    return {
        "mix": N_MIX * a.d_model,
        **low_rank("decay", a, a.d_decay),
        **low_rank("rate", a, a.d_rate),
        **low_rank("gate", a, a.d_gate, 0),
        **dict.fromkeys(("removal", "replacement", "bonus"), a.d_model),
        **dict.fromkeys(SQUARE, a.d_model * a.d_model),
        "norm": 2 * a.d_model,
    }


def time_tensors(a: Fields) -> Values:
    """Count the parameter tensors of each component."""
    return dict.fromkeys(time(a), 1) | {"decay.up": 2, "rate.up": 2, "norm": 2}


def value_mix(a: Fields) -> Values:
    """Count the parameters of all layers but the first: their share of the first one's values."""
    return low_rank("value_mix", a, a.d_value_mix)


def value_mix_tensors(a: Fields) -> Values:
    """Count the parameter tensors of each component."""
    return {"value_mix.down": 1, "value_mix.up": 2}


def time_saved(a: Fields, r: Run) -> Values:
    """Return the bytes saved for backward by a time mixer, without the mix of values.

    Inputs of projections, and what is inside of the low-rank maps. One number for each token and
    channel of: the difference to the token before; the learning rate, what it differs from 1, and
    its scale; receptance, key before and after its scale, and their product; the key that is
    removed, before and after it is normalised; the value; the sum before the gate, and the gate.
    One for each head of: the norm of that key, the same kept from 0, and the sum of the products.
    The decays are a sigmoid and an exponential; the recurrence is that of `delta_saved`.
    """
    low, per_head = bytes_of(r.dtype) * tokens(r), bytes_of(r.dtype) * tokens(r) * a.n_head
    return {
        "": 13 * states(a, r) + 3 * per_head + 2 * exact_states(a, r) + delta_saved(a, r),
        **dict.fromkeys((*SQUARE, "decay.down", "rate.down", "gate.down"), states(a, r)),
        "decay": low * a.d_decay,
        "rate.up": low * a.d_rate,
        "gate": low * a.d_gate,
        "norm": norm_saved(a, r),
    }


def value_mix_saved(a: Fields, r: Run) -> Values:
    """Return the bytes saved by the mix of values: its share, and what the values differ."""
    return {"": 2 * states(a, r), "value_mix.up": bytes_of(r.dtype) * tokens(r) * a.d_value_mix}


def time_flops(a: Fields, r: Run) -> Values:
    """Two operations for each weight and token, and for each number of a state that is read.

    The state is read for the key that is removed, and for the receptance.
    """
    channels = 2 * tokens(r) * a.d_model
    ranks = {"decay": a.d_decay, "rate": a.d_rate, "gate": a.d_gate}
    maps = {f"{name}.{side}": channels * n for name, n in ranks.items() for side in ("down", "up")}
    square = dict.fromkeys(SQUARE, channels * a.d_model)
    return {**square, **maps, "": 2 * channels * a.d_head}


def time_flops_backward(a: Fields, r: Run) -> Values:
    """Each product twice, but that the state before the first token needs no gradient."""
    twice = {name: 2 * value for name, value in time_flops(a, r).items()}
    return twice | {"": twice[""] - 2 * r.batch * a.d_model * a.d_head}


def value_mix_flops(a: Fields, r: Run) -> Values:
    """Two operations for each weight and token."""
    product = 2 * tokens(r) * a.d_model * a.d_value_mix
    return {"value_mix.down": product, "value_mix.up": product}


def channel(a: Fields) -> Values:
    """Peng et al. 2025, §4.2: squared ReLU, without a gate."""
    return {"mix": a.d_model, "key": a.d_model * a.d_ff, "value": a.d_ff * a.d_model}


channel_tensors = dict.fromkeys(("mix", "key", "value"), 1)


def channel_saved(a: Fields, r: Run) -> Values:
    """Return the bytes saved for backward by the channel mixer.

    The difference to the token before; the inputs of both projections; the value of ReLU, which is
    squared.
    """
    inside = bytes_of(r.dtype) * tokens(r) * a.d_ff
    return {"": states(a, r) + inside, "key": states(a, r), "value": inside}


def channel_flops(a: Fields, r: Run) -> Values:
    """Two operations for each weight and token."""
    product = 2 * tokens(r) * a.d_model * a.d_ff
    return {"key": product, "value": product}
