"""Attention and Mamba-2's mixer side by side, whose outputs are added (Falcon-H1).

Zuo et al. 2025 (arXiv 2507.22448), §2.1. Both read the same states; their components are named
after the part.
"""

from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.terms import join
from modelbudget.common.attributes import with_attributes
from modelbudget.components.mixers import attention, mamba2
from modelbudget.components.mixers.mamba2 import FIELDS, SIZES
from modelbudget.components.weight_formats import Matrix
from modelbudget.memory.parameter_tensors import Tensor, counted
from modelbudget.operations.part import NoProgramError, make_part

__all__ = ["FIELDS", "SIZES"]

GROUP = "attention"
ONLY_WITH = {"rope_tables": "layer", "projections": "separate"}
LOOPS_OVER_TOKENS = True


PARTS = {"attention": attention, "mamba2": mamba2}


def matrices(a: Fields) -> list[Matrix]:
    """Return the projections of both parts."""
    return [
        matrix._replace(name=join(name, matrix.name))
        for name, part in PARTS.items()
        for matrix in part.matrices(a)
    ]


def tensors(a: Fields) -> list[Tensor]:
    """Those of attention, then those of Mamba-2's mixer; the norm before them is the layer's."""
    return [
        tensor._replace(name=join(name, tensor.name))
        for name, part in PARTS.items()
        for tensor in part.tensors(a)
    ]


parameters = counted(tensors)


def program(a: Fields, r: Run):
    """States (batch, length, d_model) to the sum of both parts' outputs, of the same shape."""
    if r.attention_kernel == "written_out":
        raise NoProgramError("attention_kernel: written_out of attention_and_mamba2")
    attend = make_part("attention", attention.program, a, r)
    mix = make_part("mamba2", mamba2.program, a, r)

    def forward(x, bias=None, rotation=None):
        return attend(x, bias, rotation) + mix(x)

    return with_attributes(forward, reads_positions=True)
