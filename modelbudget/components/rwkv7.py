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
from modelbudget.operations.elementwise import add, exp, mul, power, relu, sigmoid, sub, tanh, to
from modelbudget.operations.joining import stack
from modelbudget.operations.linear_layer import make_linear
from modelbudget.operations.part import parameter
from modelbudget.operations.products import bmm
from modelbudget.operations.reductions import normalised, sum_over
from modelbudget.operations.views import flatten, select, squeeze, steps_over, unbind, unsqueeze


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
        change = sub(heads.previous(x), x)
        for_receptance, for_decay, for_key, for_value, for_rate, for_gate = (
            add(x, mul(change, mix)) for mix in unbind(heads.mix)
        )
        r, k, v = heads.receptance(for_receptance), heads.key(for_key), heads.value(for_value)
        if value_mix is None:
            first_value = v
        else:
            v = add(v, mul(sub(first_value, v), sigmoid(value_mix(for_value))))
        decay = sigmoid(to(decay_of(for_decay), heads.precise))
        decay = exp(mul(decay, -0.6))
        rate = sigmoid(rate_of(for_rate))
        removed = flatten(normalised(heads.by_head(mul(k, removal))), 2)
        k = mul(k, add(mul(sub(rate, 1.0), replacement), 1.0))
        inputs = heads.by_token(r, decay, k, v, removed, mul(removed, rate))
        read, _state = _delta_scan(inputs, heads.before(x))
        bonus = mul(
            sum_over(heads.by_head(mul(mul(r, k), heads.bonus)), [-1], keepdim=True),
            heads.by_head(v),
        )
        read = add(heads.normed(read, x), flatten(bonus, 2))
        return heads.output(mul(read, gate(for_gate))), first_value

    return forward


def _delta_scan(inputs, state):
    """S ← S diag(w) − (S κ) ⊗ (a κ) + v ⊗ k; reads S r.

    inputs: r, w, k, v, κ and a κ, each (length, heads of all sequences, d_head); state: (heads,
    d_head, d_head).
    """
    outputs = []
    for r, w, k, v, old, step in steps_over(0, *inputs):
        known = bmm(state, unsqueeze(old, -1))
        written = mul(unsqueeze(v, -1), unsqueeze(k, -2))
        state = add(sub(mul(state, unsqueeze(w, -2)), mul(known, unsqueeze(step, -2))), written)
        outputs.append(squeeze(bmm(state, unsqueeze(r, -1)), -1))
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
        mixed = add(x, mul(sub(previous(x, shift), x), select(mix, 0)))
        return value(power(relu(key(mixed)), 2))

    return forward
