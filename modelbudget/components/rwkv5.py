"""RWKV-5 (Eagle): as RWKV-4, with heads, a gate, and a state that is a matrix."""

from typing import ClassVar

from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.components import rwkv_mixers
from modelbudget.components.contract import Values
from modelbudget.components.rwkv_heads import SQUARE, Heads, MatrixRWKVFields, scan
from modelbudget.operations.elementwise import silu
from modelbudget.operations.linear_layer import make_linear
from modelbudget.operations.tape import steps_of


class RWKV5Fields(MatrixRWKVFields):
    derived: ClassVar[dict[str, str]] = {"d_ff": "32 * floor(3.5 * d_model / 32)"}


PROJECTIONS = (*SQUARE, "gate")

channel, channel_program = rwkv_mixers.channel, rwkv_mixers.channel_program
"""The channel mixer is that of RWKV-4, with a smaller hidden width."""


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


def time_program(a: Fields, r: Run):
    """States (batch, length, d_model) to states of the same shape, token by token."""
    heads = Heads(a, 4, "decay")
    gate = make_linear("gate", a.d_model, a.d_model)
    (log_rate,) = heads.own

    def forward(x):
        blends = rwkv_mixers.blend(x, heads.previous(x), heads.mix)
        for_receptance, for_key, for_value, for_gate = blends
        del blends
        inputs = heads.receptance(for_receptance), heads.key(for_key), heads.value(for_value)
        decay = (-log_rate.to(heads.precise).exp()).exp()
        decays = [heads.of_sequences(decay, x.shape[0])] * len(steps_of(x.shape[1]))
        bonus = heads.of_sequences(heads.bonus, x.shape[0])
        r, k, v = heads.by_token(*inputs)
        read, _state = scan(r, k, v, decays, bonus, heads.before(x))
        return heads.output(heads.normed(read, x) * silu(gate(for_gate)))

    return forward
