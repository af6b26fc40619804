"""The MLP of a layer: plain (up, down) or gated (gate, up, down)."""

from collections.abc import Callable
from functools import partial
from typing import Literal

from modelbudget.architecture.base import Architecture, Count
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.run_values import bytes_of, computed_again, fuses_gradients, tokens
from modelbudget.components import norm
from modelbudget.components.contract import ALONE, Place, Values, valid_if
from modelbudget.components.weight_formats import Matrix
from modelbudget.memory.parameter_tensors import Tensor, counted, linear_tensors, vector
from modelbudget.memory.timeline import (
    Allocation,
    Timeline,
    accumulate,
    all_reduce,
    linear_backward,
    times,
)
from modelbudget.operations import elementwise
from modelbudget.operations.autograd import with_node
from modelbudget.operations.elementwise import compare, softplus, where
from modelbudget.operations.linear_layer import make_linear
from modelbudget.operations.operation import operation
from modelbudget.operations.part import NoProgramError, make_part, parameter
from modelbudget.operations.tape import empty

GROUP = "MLP"
SIZES = ()
DIVIDED = ("d_ff",)
FUSES_GRADIENTS = True

LEARNED = ("activation.positive", "activation.negative")
"""Numbers of an activation with parameters."""


class MLPFields(Architecture):
    d_model: Count
    d_ff: Count
    gated: bool = False
    activation: Literal["gelu", "relu", "relu2", "silu", "xielu"] = "gelu"
    up_bias: bool = False
    down_bias: bool = False


FIELDS = MLPFields


def knows_norm(a: Fields) -> bool:
    """Return whether hidden states can be normalised: in families with attention."""
    return hasattr(a, "inner_norm")


def has_plain_hidden(a: Fields, r: Run):
    """Return 1 unless hidden states are normalised, or the activation has parameters."""
    return (1 - getattr(a, "inner_norm", 0)) * (1 - is_learned(a))


def one_operation(a: Fields, r: Run):
    """Not squared ReLU, which has an operation more, nor xIELU, which has several."""
    return int(a.activation not in ("relu2", "xielu"))


def is_learned(a: Fields) -> int:
    """1 where the activation has parameters."""
    return int(a.activation == "xielu")


def is_packed(r: Run) -> int:
    """1 where gate and up are one matrix product."""
    return int(r.gate_and_up == "packed")


def tensors(a: Fields, d_ff=None) -> list[Tensor]:
    """Plain: Vaswani et al. 2017, §3.3, eq. 2. Gated: Shazeer 2020, eq. 5 and 6.

    `d_ff`: the hidden width (a.d_ff); experts have their own.
    """
    d_ff = a.d_ff if d_ff is None else d_ff
    up = linear_tensors("up", a.d_model, d_ff, a.up_bias)
    return [
        *(tensor._replace(name="gate", is_there=a.gated * tensor.is_there) for tensor in up),
        *up,
        *linear_tensors("down", d_ff, a.d_model, a.down_bias),
        *(
            norm.tensors(a, "norm", a.inner_norm, norm.whole_width(a, d_ff))
            if knows_norm(a)
            else ()
        ),
        *(vector(name, 1) for name in LEARNED if is_learned(a)),
    ]


parameters = counted(tensors)


def matrices(a: Fields, d_ff=None, n=1, routed=0) -> list[Matrix]:
    """Return the projections, of `n` MLPs."""
    d_ff = a.d_ff if d_ff is None else d_ff
    return [
        Matrix("gate", a.d_model, d_ff, n * a.gated, routed, a.up_bias),
        Matrix("up", a.d_model, d_ff, n, routed, a.up_bias),
        Matrix("down", d_ff, a.d_model, n, routed, a.down_bias),
    ]


@valid_if(has_plain_hidden)
def saved(a: Fields, r: Run, place: Place = ALONE) -> Values:
    """Return the bytes saved for backward: the input, shared by gate and up, and hidden states."""
    numbers = bytes_of(r.dtype) * tokens(r)
    states = place.saves_input * numbers * a.d_model
    return {"gate": a.gated * states, "up": (1 - a.gated) * states, **hidden(a, numbers * a.d_ff)}


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


def flops_recomputed(a: Fields, r: Run) -> Values:
    """Full checkpointing repeats all but, where nothing saves its result, the last product."""
    again = flops(a, r)
    return again | {"down": again["down"] * repeats_last_product(a)}


def repeats_last_product(a: Fields) -> int:
    """1 where full checkpointing repeats the last product of a layer, else 0.

    Torch stops the repeated forward pass once it has all saved tensors. Without dropout, the last
    product's result is saved only where a norm follows.
    """
    return int(a.norm_placement != "pre")


def forward(a: Fields, r: Run, place: Place) -> Timeline:
    """Return what is live in the forward pass: all that is saved, and the output."""
    states = bytes_of(r.dtype) * tokens(r) * a.d_model
    return [
        Allocation("saved", sum(saved(a, r, place).values())),
        Allocation("down", (1 - place.stops) * states),
        *all_reduce(r, (1 - place.stops) * states),
    ]


@valid_if(one_operation)
def backward(a: Fields, r: Run, place: Place, d_ff=None) -> Timeline:
    """Down; the gate's product; up, where there is a gate; the activation; the first projection.

    The saved input is freed if no other part saves it. `d_ff`: the hidden width of shared experts.
    """
    # Shared experts read (tokens, channels).
    biased = int(d_ff is None) * a.up_bias
    d_ff = a.d_ff if d_ff is None else d_ff
    size, again = bytes_of(r.dtype), computed_again(r)
    states, inside = size * tokens(r) * a.d_model, size * tokens(r) * d_ff
    weight = size * a.d_model * d_ff
    down = weight, size * a.down_bias * a.d_model, inside
    up = weight, size * a.up_bias * d_ff, states
    saved_by_down, of_product, of_activation = hidden_backward(a, inside)
    added = times(place.accumulates, accumulate(states))
    added_to_both = times(1 - (1 - place.accumulates) * (1 - a.gated), accumulate(states))
    saved_input = place.saves_input * size * tokens(r) * a.d_model
    return [
        *linear_backward("down", *down, place.gradient, saved_by_down, again),
        *of_product,
        *times(a.gated, linear_backward("up", *up, inside, 0, again, added, biased)),
        *of_activation,
        *linear_backward("gate or up", *up, inside, saved_input, again, added_to_both, biased),
    ]


def hidden_backward(a: Fields, inside) -> tuple[object, Timeline, Timeline]:
    """Return what backward frees and computes between the projections.

    `inside`: bytes of the hidden states. Bytes saved by the down projection, the timeline of the
    gate's product, and that of the activation.
    """
    relu = int(a.activation == "relu")  # saves its value, which down or the product reads too
    product = [Allocation("gate product gradients", 2 * inside, (3 - relu) * inside)]
    activation = [Allocation("activation gradient", inside, 2 * inside)]
    return (1 - relu * (1 - a.gated)) * inside, times(a.gated, product), activation


def cache(a: Fields, r: Run) -> Values:
    """Nothing: each token is computed alone."""
    return {}


def program(a: Fields, r: Run, d_ff=None):
    """States (…, d_model) to states (…, d_model) through d_ff hidden units."""
    make_product = partial(make_linear, accumulates=bool(fuses_gradients(r)))
    d_ff = a.d_ff if d_ff is None else d_ff
    packed = is_packed(r) and a.gated
    if packed:
        gate_up = make_product("gate_up", a.d_model, 2 * d_ff, a.up_bias)
    elif a.gated:
        gate = make_product("gate", a.d_model, d_ff, a.up_bias)
    if not packed:
        up = make_product("up", a.d_model, d_ff, a.up_bias)
    down = make_product("down", d_ff, a.d_model, a.down_bias)
    activation = make_activation(a, r)
    has_norm = getattr(a, "inner_norm", False)
    normed = norm.make("norm", a, r, (norm.whole_width(a, d_ff),)) if has_norm else lambda x: x

    def forward(x):
        if packed and r.activation_kernel == "fused_gate":
            return down(normed(fused_gate(gate_up(x))))
        if packed:
            of_gate, of_up = gate_up(x).chunk(2)  # live until down is done
            return down(normed(activation(of_gate) * of_up))
        if not a.gated:
            return down(normed(activation(up(x))))
        return down(normed(activation(gate(x)) * up(x)))

    return forward


def make_activation(a: Fields, r: Run) -> Callable:
    """Return the activation function that the architecture names."""
    if a.activation == "xielu" and r.autocast != "none":
        raise NoProgramError("activation: xielu with autocast")
    if a.activation == "xielu":
        return make_part("activation", _xielu)
    if a.activation == "relu2":
        return lambda x: elementwise.relu(x) ** 2
    if a.activation == "gelu" and r.activation_kernel == "written_out":
        return _gelu_written_out
    if a.activation == "gelu" and r.activation_kernel == "written_out_factored":
        return _gelu_factored
    return getattr(elementwise, a.activation)


def _xielu():
    """Apply a quadratic for x > 0, an exponential below, each with a learned number."""
    learned = {name: parameter(name, 1) for name in ("positive", "negative")}

    def forward(x):
        positive = softplus(learned["positive"])
        negative = softplus(learned["negative"]) + 0.5
        below = (x.clamp().expm1() - x) * negative
        return where(compare(x), positive * x * x, below) + x * 0.5

    return forward


def _gelu_written_out(x):
    """GELU's tanh approximation, one operation at a time, as OpenAI's code for GPT-2."""
    half = x * 0.5
    return half * (((x + x**3 * 0.044715) * 0.8).tanh() + 1.0)


def _gelu_factored(x):
    """Write GELU with x as a factor of tanh's argument, as transformers' gelu_fast."""
    half = x * 0.5
    return half * ((x * 0.8 * (x * 0.04 * x + 1.0)).tanh() + 1.0)


@operation
def fused_gate(gate_and_up):
    """activation(gate) · up in one operation, which saves only its input (Megatron-Core)."""
    *outer, width = gate_and_up.shape
    y = empty((*outer, width // 2), gate_and_up.dtype)

    def gradients(saved, g):
        return empty(saved[0].shape, saved[0].dtype)

    return with_node("fused_gate", y, [gate_and_up], gradients, [gate_and_up])
