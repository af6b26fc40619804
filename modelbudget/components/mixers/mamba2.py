"""Mamba-2's mixer in a layer of a decoder: hybrids of state space models and attention."""

from types import SimpleNamespace

from modelbudget.architecture.base import Architecture, Count, Size
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.components import mamba2_block
from modelbudget.components.weight_formats import Matrix
from modelbudget.memory.parameter_tensors import Tensor, counted

GROUP = "state space"
LOOPS_OVER_TOKENS = True
SIZES = ("n_mamba_head", "d_mamba_head", "n_mamba_group", "d_mamba_state", "d_mamba_convolution")


class Mamba2Fields(Architecture):
    d_model: Count
    n_mamba_head: Size = 0
    d_mamba_head: Size = 0
    n_mamba_group: Size = 0
    d_mamba_state: Size = 0
    d_mamba_convolution: Size = 0
    mamba_norm: bool = True


FIELDS = Mamba2Fields


def as_mamba2(a: Fields) -> SimpleNamespace:
    """Return the sizes under the names of Mamba-2's own family."""
    return SimpleNamespace(
        d_model=a.d_model,
        d_inner=a.n_mamba_head * a.d_mamba_head,
        n_head=a.n_mamba_head,
        d_head=a.d_mamba_head,
        n_group=a.n_mamba_group,
        d_state=a.d_mamba_state,
        d_convolution=a.d_mamba_convolution,
    )


def matrices(a: Fields) -> list[Matrix]:
    return mamba2_block.matrices(as_mamba2(a))


def tensors(a: Fields) -> list[Tensor]:
    """Dao & Gu 2024, §7.1; Falcon-H1 leaves the norm out."""
    return [
        tensor._replace(is_there=a.mamba_norm) if tensor.name == "norm" else tensor
        for tensor in mamba2_block.tensors(as_mamba2(a))
    ]


parameters = counted(tensors)


def program(a: Fields, r: Run):
    """States (batch, length, d_model) to states of the same shape."""
    return mamba2_block.program(as_mamba2(a), r, a.mamba_norm)
