"""Learned augmented residual: a product of two thin matrices beside attention.

Menghani et al. 2024 (LAuReL), §2.2 (low rank); transformers, models/gemma3n/modeling_gemma3n.py:
`Gemma3nTextLaurelBlock`.
"""

from modelbudget.architecture.arithmetic import positive
from modelbudget.architecture.base import Architecture, Size
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.components import norm
from modelbudget.memory.parameter_tensors import Tensor, matrix
from modelbudget.operations.linear_layer import make_linear


class LaurelFields(Architecture):
    d_laurel: Size = 0


def of_layer(a: Fields) -> list[Tensor]:
    """Return both matrices and the norm."""
    is_there = positive(a.d_laurel)
    return [
        matrix("down", a.d_laurel, a.d_model, is_there),
        matrix("up", a.d_model, a.d_laurel, is_there),
        *norm.tensors(a, "norm", is_there),
    ]


def program(a: Fields, r: Run):
    """States (batch, length, d_model) to states of the same shape."""
    down = make_linear("down", a.d_model, a.d_laurel)
    up = make_linear("up", a.d_laurel, a.d_model)
    norm_ = norm.make("norm", a, r)
    return lambda x: x + norm_(up(down(x)))
