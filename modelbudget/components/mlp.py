"""The feed-forward part of a layer: plain (up, down) or gated (gate, up, down)."""

from typing import ClassVar, Literal

from pydantic import Field

from modelbudget.architecture import Architecture, Count


class MLPFields(Architecture):
    d_model: Count = Field(description="width of the residual stream")
    d_ff: Count = Field(description="hidden width of the MLP")
    gated: bool = Field(False, description="a third matrix gates the hidden state (SwiGLU, GEGLU)")
    activation: Literal["gelu", "relu", "silu"] = "gelu"
    up_bias: bool = Field(False, description="bias of the up and gate projections")
    down_bias: bool = False

    derived: ClassVar[dict[str, str]] = {"d_ff": "4 * d_model"}


def parameters(a, d_ff=None) -> dict:
    """Plain: Vaswani et al. 2017, §3.3, eq. 2. Gated: Shazeer 2020, eq. 5 and 6.

    The hidden width is a.d_ff unless told: experts have their own.
    """
    d_ff = a.d_ff if d_ff is None else d_ff
    up = a.d_model * d_ff + a.up_bias * d_ff
    return {
        "gate": a.gated * up,
        "up": up,
        "down": d_ff * a.d_model + a.down_bias * a.d_model,
    }
