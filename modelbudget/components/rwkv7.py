"""RWKV-7 (Goose): a state that is a matrix and learns by a delta rule."""

from modelbudget.architecture.base import Count
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.components.contract import Values
from modelbudget.components.rwkv_heads import (
    SQUARE,
    Heads,
    MatrixRWKVFields,
    low_rank,
    make_low_rank,
)
from modelbudget.components.rwkv_mixers import declare_shift, previous
from modelbudget.operations.elementwise import sigmoid, tanh
from modelbudget.operations.joining import stack
from modelbudget.operations.linear_layer import make_linear
from modelbudget.operations.part import parameter
from modelbudget.operations.products import bmm
from modelbudget.operations.reductions import normalised
from modelbudget.operations.views import steps_over


class RWKV7Fields(MatrixRWKVFields):
    d_decay: Count
    d_rate: Count
    d_value_mix: Count
    d_gate: Count


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


def value_mix(a: Fields) -> Values:
    """Count the parameters of all layers but the first: their share of the first one's values."""
    return low_rank("value_mix", a, a.d_value_mix)


def time_program(a: Fields, r: Run, is_first: bool):
    """States and the first layer's values, (batch, length, d_model) each, to both."""
    heads = Heads(a, N_MIX, "removal", "replacement")
    removal, replacement = heads.own
    decay_of = make_low_rank("decay", a.d_model, a.d_decay, tanh)
    rate_of = make_low_rank("rate", a.d_model, a.d_rate)
    gate = make_low_rank("gate", a.d_model, a.d_gate, sigmoid, bias=False)
    value_mix = None if is_first else make_low_rank("value_mix", a.d_model, a.d_value_mix)

    def forward(x, first_value):
        change = heads.previous(x) - x
        for_receptance, for_decay, for_key, for_value, for_rate, for_gate = (
            x + change * mix for mix in heads.mix.unbind()
        )
        r, k, v = heads.receptance(for_receptance), heads.key(for_key), heads.value(for_value)
        if value_mix is None:
            first_value = v
        else:
            v = v + (first_value - v) * value_mix(for_value).sigmoid()
        decay = decay_of(for_decay).to(heads.precise).sigmoid()
        decay = (decay * -0.6).exp()
        rate = rate_of(for_rate).sigmoid()
        removed = normalised(heads.by_head(k * removal)).flatten(2)
        k = k * ((rate - 1.0) * replacement + 1.0)
        inputs = heads.by_token(r, decay, k, v, removed, removed * rate)
        read, _state = _delta_scan(inputs, heads.before(x))
        bonus = heads.by_head(r * k * heads.bonus).sum([-1], keepdim=True) * heads.by_head(v)
        read = heads.normed(read, x) + bonus.flatten(2)
        return heads.output(read * gate(for_gate)), first_value

    return forward


def _delta_scan(inputs, state):
    """S ← S diag(w) − (S κ) ⊗ (a κ) + v ⊗ k; reads S r.

    inputs: r, w, k, v, κ and a κ, each (length, heads of all sequences, d_head); state: (heads,
    d_head, d_head).
    """
    outputs = []
    for r, w, k, v, old, step in steps_over(0, *inputs):
        known = bmm(state, old.unsqueeze(-1))
        written = v.unsqueeze(-1) * k.unsqueeze(-2)
        state = state * w.unsqueeze(-2) - known * step.unsqueeze(-2) + written
        outputs.append(bmm(state, r.unsqueeze(-1)).squeeze(-1))
    return stack(outputs, 0, inputs[0].shape[0]), state


def channel(a: Fields) -> Values:
    """Peng et al. 2025, §4.2: squared ReLU, without a gate."""
    return {"mix": a.d_model, "key": a.d_model * a.d_ff, "value": a.d_ff * a.d_model}


def channel_program(a: Fields, r: Run):
    """States (batch, length, d_model) to states of the same shape."""
    mix = parameter("mix", 1, a.d_model)
    key, value = make_linear("key", a.d_model, a.d_ff), make_linear("value", a.d_ff, a.d_model)
    shift = declare_shift(a)

    def forward(x):
        mixed = x + (previous(x, shift) - x) * mix.select(0)
        return value(key(mixed).relu() ** 2)

    return forward
