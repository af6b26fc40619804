"""Mixture of experts whose sum gets a bias (Shen et al. 2024, JetMoE; `JetMoeMoE`)."""

from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.components.contract import Values
from modelbudget.components.feed_forward import moe
from modelbudget.components.feed_forward.moe import FIELDS, GROUP, SIZES
from modelbudget.memory.parameter_tensors import Tensor
from modelbudget.operations.part import parameter

__all__ = ["FIELDS", "GROUP", "SIZES"]

NAME = "moe"


def parameters(a: Fields) -> Values:
    """Count those of the mixture, and one number for each channel."""
    return moe.parameters(a) | {"": a.d_model}


def active_parameters(a: Fields) -> Values:
    """Count those that one token uses."""
    return moe.active_parameters(a) | {"": a.d_model}


def tensors(a: Fields) -> list[Tensor]:
    return [Tensor("", a.d_model), *moe.tensors(a)]


def program(a: Fields, r: Run):
    """States (batch, length, d_model) to states of the same shape."""
    bias = parameter("bias", a.d_model)
    mixture = moe.program(a, r)
    return lambda x: mixture(x) + bias
