"""Mamba's mixer in a layer: hybrids of Mamba and attention (Jamba, Zamba)."""

from types import SimpleNamespace

from modelbudget.architecture.base import Architecture, Count, Size
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.components import mamba_block
from modelbudget.components.contract import Values
from modelbudget.components.mixers.gated_deltanet import head_norm
from modelbudget.components.weight_formats import Matrix
from modelbudget.memory.parameter_tensors import Tensor, counted
from modelbudget.operations.part import make_part

GROUP = "state space"
LOOPS_OVER_TOKENS = True
SIZES = ("d_scan", "d_scan_state", "d_scan_step", "d_scan_convolution")


class SelectiveScanFields(Architecture):
    d_model: Count
    d_scan: Size = 0
    d_scan_state: Size = 0
    d_scan_step: Size = 0
    d_scan_convolution: Size = 0
    scan_norm: bool = True
    n_scan_head: Count = 1


FIELDS = SelectiveScanFields


def _as_mamba(a: Fields) -> SimpleNamespace:
    """Return the sizes under the names of Mamba's own family."""
    return SimpleNamespace(
        d_model=a.d_model,
        d_inner=a.d_scan,
        d_state=a.d_scan_state,
        d_step=a.d_scan_step,
        d_convolution=a.d_scan_convolution,
        inner_norm=0,
    )


def matrices(a: Fields) -> list[Matrix]:
    """Return the linear layers; with heads, selection and step are stacks, which are none."""
    of_mamba = mamba_block.matrices(_as_mamba(a))
    return of_mamba if a.scan_norm else [of_mamba[0], of_mamba[-1]]


def _norms(a: Fields) -> Values:
    """Widths of the norms of step, write and read weights (Lieber et al. 2024, §6.3)."""
    return {
        "step_norm": a.d_scan_step,
        "write_norm": a.d_scan_state,
        "read_norm": a.d_scan_state,
    }


def tensors(a: Fields) -> list[Tensor]:
    """Gu & Dao 2023, §3.2, §3.4 and §3.6, with a norm for each of the selected weights.

    Heads select from their own channels and have steps for these alone, so that their number makes
    no difference to the count (Glorioso et al. 2024, Zamba's code).
    """
    norms = (Tensor(name, width, a.scan_norm) for name, width in _norms(a).items())
    return [*mamba_block.tensors(_as_mamba(a)), *norms]


parameters = counted(tensors)


def program(a: Fields, r: Run):
    """States (batch, length, d_model) to states of the same shape."""
    if not a.scan_norm:
        return mamba_block.program(_as_mamba(a), r, n_head=a.n_scan_head)

    def norms():
        return [make_part(name, head_norm, r, width) for name, width in _norms(a).items()]

    return mamba_block.program(_as_mamba(a), r, norms)
