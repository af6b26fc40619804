"""The feed-forward part of a layer: plain (up, down) or gated (gate, up, down)."""

from typing import ClassVar, Literal

from pydantic import Field

from modelbudget.architecture.base import Architecture, Count
from modelbudget.architecture.run_config import bytes_of, computed_again, tokens
from modelbudget.memory.timeline import Node, added, linear, times


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


def tensors(a) -> dict:
    """A matrix and a bias, where it has one, are a tensor each."""
    return {
        "gate": a.gated * (1 + a.up_bias),
        "up": 1 + a.up_bias,
        "down": 1 + a.down_bias,
    }


def saved(a, r, reads_alone=1) -> dict:
    """Bytes that backward needs: the input (unless somebody else has saved it: `reads_alone` 0),
    which gate and up share, and what `hidden` says.
    """
    states = reads_alone * bytes_of(r.dtype) * tokens(r) * a.d_model
    return {
        "gate": a.gated * states,
        "up": (1 - a.gated) * states,
        **hidden(a, bytes_of(r.dtype) * tokens(r) * a.d_ff),
    }


def hidden(a, states) -> dict:
    """Between the projections, with hidden states of so many bytes: the argument of the activation
    (ReLU: its value instead), both factors of a gate, and the input of down.
    """
    if a.activation == "relu":
        return {"": (1 + a.gated) * states, "down": a.gated * states}
    return {"": (1 + 2 * a.gated) * states, "down": states}


def flops(a, r, d_ff=None) -> dict:
    """Two operations for each weight and token: a product and a sum."""
    d_ff = a.d_ff if d_ff is None else d_ff
    product = 2 * tokens(r) * a.d_model * d_ff
    return {"gate": a.gated * product, "up": product, "down": product}


def backward(a, r, given, reads_alone=1, others=0, width=None) -> list[Node]:
    """From the gradient of the output, of which the last reader frees `given` bytes, to that of
    the input, which is freed if nobody else needs it (`reads_alone`); where others (1 or 0) read
    the input, their gradient is there already.

    Down; the gate's product; up, where there is a gate; the activation; the first projection.
    """
    d_ff = a.d_ff if width is None else width
    size, early = bytes_of(r.dtype), computed_again(r)
    states, inside = size * tokens(r) * a.d_model, size * tokens(r) * d_ff
    matrix = size * a.d_model * d_ff
    down = matrix, size * a.down_bias * a.d_model, inside
    up = matrix, size * a.up_bias * d_ff, states
    of_down, of_product, of_bend = hidden_backward(a, inside)
    both = 1 - (1 - others) * (1 - a.gated)
    return [
        *linear(*down, given, of_down, early),
        *of_product,
        *times(a.gated, linear(*up, inside, 0, early)),
        *times(a.gated * others, added(states)),
        *of_bend,
        *linear(*up, inside, reads_alone * states, early),
        *times(both, added(states)),
    ]


def hidden_backward(a, inside) -> tuple[object, list[Node], list[Node]]:
    """Between the projections, with hidden states of so many bytes: what down has saved, the
    gate's product, the activation.
    """
    relu = int(a.activation == "relu")  # keeps its value, which down or the product reads too
    product = [(2 * inside, (3 - relu) * inside)]
    saved_of_down = (1 - relu * (1 - a.gated)) * inside
    return saved_of_down, times(a.gated, product), [(inside, 2 * inside)]
