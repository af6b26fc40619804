"""RWKV-6 (Finch): as RWKV-5, with mixes and decays that depend on the token."""

from modelbudget.architecture.base import Count
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.components import rwkv5
from modelbudget.components.contract import Values
from modelbudget.components.rwkv5 import PROJECTIONS, RWKV5Fields
from modelbudget.components.rwkv_heads import Heads, low_rank, make_low_rank, scan
from modelbudget.operations.elementwise import silu, tanh
from modelbudget.operations.linear_layer import make_linear
from modelbudget.operations.part import make_part, parameter
from modelbudget.operations.products import bmm


class RWKV6Fields(RWKV5Fields):
    d_mix: Count = 32
    d_decay: Count = 64


channel, channel_program = rwkv5.channel, rwkv5.channel_program

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


def time_program(a: Fields, r: Run):
    """States (batch, length, d_model) to states of the same shape, token by token."""
    heads = Heads(a, 1 + N_MIX)
    mix_down = make_linear("mix_down", a.d_model, N_MIX * a.d_mix)
    mix_up = make_part("mix_up", _mix_up, a)
    decay_of = make_low_rank("decay", a.d_model, a.d_decay, tanh)
    gate = make_linear("gate", a.d_model, a.d_model)

    def forward(x):
        change = heads.previous(x) - x
        low = mix_down(x + change * heads.mix.select(0)).tanh()
        low = low.flatten(0, 1).unflatten(1, (N_MIX, a.d_mix)).transpose(0, 1)
        mixes = mix_up(low).unflatten(1, x.shape[:2])
        mixes = mixes + heads.mix.narrow(0, N_MIX, is_first=False).unsqueeze(1).unsqueeze(1)
        blends = [x + change * mix for mix in mixes.unbind()]
        for_receptance, for_key, for_value, for_gate, for_decay = blends
        decay = (-decay_of(for_decay).to(heads.precise).exp()).exp()
        inputs = heads.receptance(for_receptance), heads.key(for_key), heads.value(for_value), decay
        r, k, v, w = heads.by_token(*inputs)
        bonus = heads.of_sequences(heads.bonus, x.shape[0])
        read, _state = scan(
            r, k, v, w.unsqueeze(-1).unbind(0, by_step=True), bonus, heads.before(x)
        )
        return heads.output(heads.normed(read, x) * silu(gate(for_gate)))

    return forward


def _mix_up(a: Fields):
    """(mixes, tokens, d_mix) to (mixes, tokens, d_model): a matrix for each mix."""
    weight = parameter("weight", N_MIX, a.d_mix, a.d_model)
    return lambda x: bmm(x, weight)
