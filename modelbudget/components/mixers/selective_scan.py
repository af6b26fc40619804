"""Mamba's mixer in a layer of a decoder: hybrids of Mamba and attention (Jamba)."""

from types import SimpleNamespace

from pydantic import Field

from modelbudget.architecture.base import Architecture, Count, Size
from modelbudget.architecture.fields import Fields, Run
from modelbudget.architecture.run_values import bytes_of, exact_bytes, tokens
from modelbudget.components import mamba
from modelbudget.components.contract import ALONE, Place, Values, no_autocast, valid_if
from modelbudget.components.mixers.gated_deltanet import fused_norm
from modelbudget.components.passes import backward_of, decode_of, recomputed_of
from modelbudget.memory.adamw_temporaries import Tensor

GROUP = "state space"
SIZES = ("d_scan", "d_scan_state", "d_scan_step", "d_scan_convolution")


class SelectiveScanFields(Architecture):
    d_model: Count = Field(description="width of the residual stream")
    d_scan: Size = Field(0, description="mixers: selective_scan: channels of the recurrence")
    d_scan_state: Size = Field(0, description="mixers: selective_scan: states of each channel")
    d_scan_step: Size = Field(
        0, description="mixers: selective_scan: rank of the map from a token to its steps"
    )
    d_scan_convolution: Size = Field(
        0, description="mixers: selective_scan: tokens that the convolution spans"
    )


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


def _norms(a: Fields) -> Values:
    """Widths of the norms of step, write and read weights (Lieber et al. 2024, §6.3)."""
    return {
        "step_norm": a.d_scan_step,
        "write_norm": a.d_scan_state,
        "read_norm": a.d_scan_state,
    }


def parameters(a: Fields) -> Values:
    """Gu & Dao 2023, §3.2, §3.4 and §3.6, with a norm for each of the selected weights."""
    return mamba.parameters(_as_mamba(a)) | _norms(a)


def tensors(a: Fields) -> list[Tensor]:
    """Each component is one tensor, and the biases of convolution and step two more."""
    weights = {
        "convolution": a.d_scan * a.d_scan_convolution,
        "step": a.d_scan_step * a.d_scan,
    }
    found = (Tensor(name, numbers) for name, numbers in (parameters(a) | weights).items())
    return [*found, *(Tensor(name, a.d_scan) for name in weights)]


@valid_if(no_autocast, fused_norm)
def saved(a: Fields, r: Run, place: Place = ALONE) -> Values:
    """Return the bytes saved for backward by each component.

    As in Mamba; the norms save what was selected, which they read as views of one tensor, and their
    statistics. Their outputs are saved by the step and by the recurrence. A CPU saves them also
    before the scale.
    """
    size, n = bytes_of(r.dtype), tokens(r)
    of_step, of_states = size * n * a.d_scan_step, 2 * size * n * a.d_scan_state
    found = mamba.saved(_as_mamba(a), r)
    found["input"] = place.saves_input * found["input"]
    found["step"] = of_step
    found[""] = found[""] + of_states
    unscaled = int(r.backend == "cpu")
    for name, width in _norms(a).items():
        found[name] = exact_bytes(r.dtype) * n + unscaled * size * n * width
    found["step_norm"] = found["step_norm"] + of_step + of_states
    return found


def flops(a: Fields, r: Run) -> Values:
    """Two operations for each weight and token, and for each state that is read."""
    return mamba.flops(_as_mamba(a), r)


flops_backward = backward_of(flops)
flops_recomputed = recomputed_of(flops)
flops_decode = decode_of(flops)


def cache(a: Fields, r: Run) -> Values:
    """Return the bytes of the recurrent state and of the tokens that the convolution spans."""
    return mamba.cached(_as_mamba(a), r)
