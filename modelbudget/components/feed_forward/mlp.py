"""The MLP of a layer: plain (up, down) or gated (gate, up, down)."""

from typing import ClassVar, Literal

from pydantic import Field

from modelbudget.architecture.base import Architecture, Count
from modelbudget.architecture.fields import Fields, Run
from modelbudget.architecture.run_config import bytes_of, computed_again, one_token, tokens
from modelbudget.components.contract import ALONE, Place, Values, doubled
from modelbudget.memory.activation_checkpointing import repeats_last_product
from modelbudget.memory.adamw_temporaries import Tensor, linear_tensors
from modelbudget.memory.timeline import Allocation, Timeline, accumulate, linear_backward, times

GROUP = "MLP"
SIZES = ()


class MLPFields(Architecture):
    d_model: Count = Field(description="width of the residual stream")
    d_ff: Count = Field(description="hidden width of the MLP")
    gated: bool = Field(False, description="a third matrix gates the hidden state (SwiGLU, GEGLU)")
    activation: Literal["gelu", "relu", "silu"] = "gelu"
    up_bias: bool = Field(False, description="bias of the up and gate projections")
    down_bias: bool = False

    derived: ClassVar[dict[str, str]] = {"d_ff": "4 * d_model"}


FIELDS = MLPFields


def parameters(a: Fields, d_ff=None) -> Values:
    """Plain: Vaswani et al. 2017, §3.3, eq. 2. Gated: Shazeer 2020, eq. 5 and 6.

    `d_ff`: the hidden width (a.d_ff); experts have their own.
    """
    d_ff = a.d_ff if d_ff is None else d_ff
    up = a.d_model * d_ff + a.up_bias * d_ff
    return {
        "gate": a.gated * up,
        "up": up,
        "down": d_ff * a.d_model + a.down_bias * a.d_model,
    }


def tensors(a: Fields, d_ff=None, n=1) -> list[Tensor]:
    """Weights and biases; of `n` experts each is one tensor."""
    d_ff = a.d_ff if d_ff is None else d_ff
    up = linear_tensors("up", a.d_model, n * d_ff, a.up_bias)
    return [
        *(Tensor("gate", size, a.gated * is_there) for _, size, is_there in up),
        *up,
        Tensor("down", n * d_ff * a.d_model),
        Tensor("down", n * a.d_model, a.down_bias),
    ]


def saved(a: Fields, r: Run, place: Place = ALONE) -> Values:
    """Bytes saved for backward: the input, which gate and up share, and the hidden states."""
    states = place.saves_input * bytes_of(r.dtype) * tokens(r) * a.d_model
    return {
        "gate": a.gated * states,
        "up": (1 - a.gated) * states,
        **hidden(a, bytes_of(r.dtype) * tokens(r) * a.d_ff),
    }


def hidden(a: Fields, states) -> Values:
    """Return the bytes saved between the projections, where hidden states take `states` bytes.

    The argument of the activation (ReLU: its value instead), both factors of a gate, and the input
    of the down projection.
    """
    if a.activation == "relu":
        return {"": (1 + a.gated) * states, "down": a.gated * states}
    return {"": (1 + 2 * a.gated) * states, "down": states}


def flops(a: Fields, r: Run, d_ff=None) -> Values:
    """Two operations for each weight and token: a multiplication and a sum."""
    d_ff = a.d_ff if d_ff is None else d_ff
    product = 2 * tokens(r) * a.d_model * d_ff
    return {"gate": a.gated * product, "up": product, "down": product}


def flops_backward(a: Fields, r: Run) -> Values:
    """Each product twice, for the gradients of both its factors."""
    return doubled(flops(a, r))


def flops_recomputed(a: Fields, r: Run) -> Values:
    """Full checkpointing repeats all but, where nothing saves its result, the last product."""
    if r.recompute != "full":
        return {}
    again = flops(a, r)
    return again | {"down": again["down"] * repeats_last_product(a, r)}


def flops_decode(a: Fields, r: Run) -> Values:
    """Count the FLOPs of one decoded token."""
    return flops(a, one_token(r))


def forward(a: Fields, r: Run, place: Place) -> Timeline:
    """All that is saved, and the output."""
    states = bytes_of(r.dtype) * tokens(r) * a.d_model
    return [
        Allocation("saved", sum(saved(a, r, place).values())),
        Allocation("down", (1 - place.stops) * states),
    ]


def backward(a: Fields, r: Run, place: Place, d_ff=None) -> Timeline:
    """Down; the gate's product; up, where there is a gate; the activation; the first projection.

    The saved input is freed if no other part saves it.
    """
    d_ff = a.d_ff if d_ff is None else d_ff
    size, early = bytes_of(r.dtype), computed_again(r)
    states, inside = size * tokens(r) * a.d_model, size * tokens(r) * d_ff
    weight = size * a.d_model * d_ff
    down = weight, size * a.down_bias * a.d_model, inside
    up = weight, size * a.up_bias * d_ff, states
    saved_by_down, of_product, of_activation = hidden_backward(a, inside)
    both = 1 - (1 - place.others) * (1 - a.gated)
    saved_input = place.saves_input * states
    return [
        *linear_backward("down", *down, place.given, saved_by_down, early),
        *of_product,
        *times(a.gated, linear_backward("up", *up, inside, 0, early)),
        *times(a.gated * place.others, accumulate(states)),
        *of_activation,
        *linear_backward("gate or up", *up, inside, saved_input, early),
        *times(both, accumulate(states)),
    ]


def hidden_backward(a: Fields, inside) -> tuple[object, Timeline, Timeline]:
    """Return what backward frees and computes between the projections.

    `inside`: bytes of the hidden states. Bytes saved by the down projection, the timeline of the
    gate's product, and that of the activation.
    """
    relu = int(a.activation == "relu")  # saves its value, which down or the product reads too
    product = [Allocation("gate product gradients", 2 * inside, (3 - relu) * inside)]
    saved_by_down = (1 - relu * (1 - a.gated)) * inside
    activation = [Allocation("activation gradient", inside, 2 * inside)]
    return saved_by_down, times(a.gated, product), activation


def cache(a: Fields, r: Run) -> Values:
    """Nothing: each token is computed alone."""
    return {}


def inference(a: Fields, r: Run, new, d_ff=None) -> Timeline:
    """Gate projection and activation; up projection (and activation if not gated); down."""
    size = bytes_of(r.dtype) * r.batch * new
    inside = size * (a.d_ff if d_ff is None else d_ff)
    return [
        Allocation("gate", a.gated * inside),
        Allocation("gate activation", a.gated * inside, a.gated * inside),
        Allocation("up", inside),
        Allocation("activation or product", inside, (1 + a.gated) * inside),
        Allocation("down", size * a.d_model, inside),
    ]
