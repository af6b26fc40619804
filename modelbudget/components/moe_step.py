"""A mixture of experts in a training step, by closed formulas: saved bytes, FLOPs, timelines."""

from modelbudget.architecture.arithmetic import positive
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.run_values import INDEX, bytes_of, computed_again, of_states, tokens
from modelbudget.architecture.terms import join
from modelbudget.components.contract import ALONE, Place, Values, valid_if
from modelbudget.components.feed_forward import mlp
from modelbudget.components.parallel import expert_parallel
from modelbudget.memory.timeline import (
    Allocation,
    Timeline,
    accumulate,
    linear_backward,
    times,
)


def of_shared(a: Fields, values: Values) -> Values:
    """Return the values of the shared experts, computed as one MLP; 0 if there are none."""
    return {join("shared", name): positive(a.d_shared) * value for name, value in values.items()}


def received(a: Fields, r: Run):
    """Count the rows that the routed experts of a device compute: pairs of token and expert."""
    return tokens(r) * expert_parallel.received_per_token(a, r)


def gate_sums_channels(a: Fields, r: Run):
    """Not a gate of shared experts over a single channel, where torch has nothing to sum."""
    return 1 - a.shared_gate * (1 - positive(a.d_model - 1))


def saved(a: Fields, r: Run, place: Place = ALONE) -> Values:
    """Bytes saved for backward, with each token k = n_expert_per_token times where it is routed.

    Router: the states, their probabilities, the chosen experts. Around the experts: the order of
    the k·N pairs of token and expert, the pairs' tokens, their weights and the experts' outputs,
    before and after they are weighted. Shared experts read the same states; their gate saves their
    output and its own value. Experts of several devices save the rows that they have received;
    those that divide the length have a part of the tokens.
    """
    r = of_states(r)
    size, n = bytes_of(r.dtype), tokens(r)
    pairs = n * a.n_expert_per_token
    states = size * n * a.d_model
    rows = size * pairs * a.d_model
    of_experts = size * received(a, r)
    routed = mlp.hidden(a, of_experts * a.d_expert)
    weighting = 2 * INDEX * pairs + size * pairs + 2 * rows
    gate = a.shared_gate * (states + size * n)
    return {
        "router": place.saves_input * states + size * n * a.n_expert + INDEX * pairs,
        "gate": a.gated * of_experts * a.d_model,
        "up": (1 - a.gated) * of_experts * a.d_model,
        "down": routed["down"],
        "": routed[""] + weighting + gate,
        **of_shared(a, mlp.hidden(a, size * n * a.d_shared)),
    }


def flops(a: Fields, r: Run) -> Values:
    """Each token goes through the router, k routed experts and the shared ones."""
    r = of_states(r)
    routed, n_row = mlp.flops(a, r, a.d_expert), expert_parallel.received_per_token(a, r)
    return {
        "router": 2 * tokens(r) * a.d_model * a.n_expert,
        **{name: n_row * value for name, value in routed.items()},
        **of_shared(a, mlp.flops(a, r, a.d_shared)),
        "shared_gate": a.shared_gate * 2 * tokens(r) * a.d_model,
    }


def flops_recomputed(a: Fields, r: Run) -> Values:
    """Count the FLOPs that full checkpointing repeats.

    All but the shared experts' last product, unless its result is saved: a gate saves it, as the
    weights save the routed experts' outputs.
    """
    again = flops(a, r)
    repeats = 1 - (1 - mlp.repeats_last_product(a)) * (1 - a.shared_gate)
    return again | {"shared.down": again["shared.down"] * repeats}


def forward(a: Fields, r: Run, place: Place) -> Timeline:
    """All that is saved, and the output.

    Live at the end, but not saved: the weights; the sum of the routed experts' outputs, or zeros
    before it; the shared experts' output. A repeated forward pass stops before the last sum.
    """
    r = of_states(r)
    size = bytes_of(r.dtype) * tokens(r)
    shared, output = (1 - place.stops) * positive(a.d_shared), size * a.d_model
    temporary = (1 + shared) * output + size * a.n_expert_per_token
    temporary = temporary + _exchanged(a, r, (1 - place.stops) * output + temporary)
    return [
        Allocation("saved", sum(saved(a, r, place).values())),
        Allocation("output", (1 - place.stops) * output + temporary, temporary),
    ]


def _exchanged(a: Fields, r: Run, at_end):
    """Bytes by which sending the experts' results back needs more than the end of the forward pass.

    Of what is saved, the results before and after they are weighted, and all of the shared experts,
    come later; at the end, `at_end` bytes are live that are not saved.
    """
    n, size = tokens(r), bytes_of(r.dtype)
    rows = size * n * a.n_expert_per_token * a.d_model
    shared = sum(of_shared(a, mlp.hidden(a, size * n * a.d_shared)).values())
    shared = shared + a.shared_gate * size * n * (a.d_model + 1)
    then = 2 * rows + shared + at_end
    return expert_parallel.forward_beyond(r, size * received(a, r) * a.d_model, then)


@valid_if(gate_sums_channels, mlp.one_operation)
def backward(a: Fields, r: Run, place: Place) -> Timeline:
    """Shared experts; weighting and routed experts; the router's softmax and projection."""
    r = of_states(r)
    size, n = bytes_of(r.dtype), tokens(r)
    pairs = n * a.n_expert_per_token
    states, rows = size * n * a.d_model, size * pairs * a.d_model
    weights, indices = size * pairs, INDEX * pairs
    probabilities = size * n * a.n_expert
    shared, wide = positive(a.d_shared), positive(a.d_model - 1)
    again = computed_again(r)
    of_rows = (1 + wide) * rows + (1 - again) * (rows + weights)
    computed = size * received(a, r) * a.d_model
    softmax = probabilities + weights + indices
    return [
        *times(shared, _shared_backward(a, r, states)),
        Allocation("gradients of the pairs", rows, place.gradient + rows),
        Allocation("weighting gradients", 2 * rows, again * (rows + weights)),
        Allocation("weight gradients summed over channels", wide * weights, of_rows),
        Allocation("weight gradients in the tokens' order", 2 * weights, 2 * weights + indices),
        *expert_parallel.to_experts(r, rows, computed),
        *_routed_backward(a, r),
        *expert_parallel.from_experts(r, rows, computed),
        Allocation("gradients of the tokens", 2 * states, states + rows + indices),
        *times(shared, accumulate(states)),
        Allocation("gradients of the chosen probabilities", 2 * probabilities, softmax),
        Allocation("softmax gradient", 2 * probabilities, 3 * probabilities),
        *_router_backward(a, r, place),
        *times(place.accumulates, accumulate(states)),
    ]


def _router_backward(a: Fields, r: Run, place: Place) -> Timeline:
    """Gradients of the router's matrix, bias and input, which is added to that of the experts."""
    size, n = bytes_of(r.dtype), tokens(r)
    weight, states = (size * m * a.d_model for m in (a.n_expert, n))
    router = weight, size * int(a.router_bias == "logit") * a.n_expert, states
    freed = size * n * a.n_expert, place.saves_input * states
    return linear_backward("router", *router, *freed, computed_again(r), accumulate(states))


def _routed_backward(a: Fields, r: Run) -> Timeline:
    """All experts at once; each product makes the gradients of its rows and of the whole stack."""
    size, n_expert = bytes_of(r.dtype), expert_parallel.own_experts(a)
    rows, inside = (size * received(a, r) * width for width in (a.d_model, a.d_expert))
    weight = size * n_expert * a.d_model * a.d_expert
    saved_by_down, of_product, of_activation = mlp.hidden_backward(a, inside)
    down = weight + size * n_expert * a.down_bias * a.d_model
    up = weight + size * n_expert * a.up_bias * a.d_expert
    of_down = Allocation("down gradients", down + inside, rows + saved_by_down, gradients=down)
    return [
        of_down,
        *of_product,
        *times(a.gated, [Allocation("up gradients", up + rows, inside, gradients=up)]),
        *of_activation,
        Allocation("gate or up gradients", up + rows, inside + rows),
        *times(a.gated, accumulate(rows)),
        Allocation("gate or up gradients done", gradients=up),
    ]


def _shared_backward(a: Fields, r: Run, states) -> Timeline:
    """Return the backward timeline of the shared experts.

    The gate's product, sigmoid and projection; and the MLP.
    """
    weight, again = bytes_of(r.dtype) * tokens(r), computed_again(r)
    wide, of_gate = positive(a.d_model - 1), bytes_of(r.dtype) * a.d_model
    gate = [
        Allocation("gate product gradients", 2 * states, again * states),
        Allocation("gate gradient summed", wide * weight, (1 + wide - again) * states),
        Allocation("sigmoid gradient", weight, 2 * weight),
        *linear_backward("gate", of_gate, 0, states, weight, 0, 0),
    ]
    place = Place(gradient=a.shared_gate * states, saves_input=0, accumulates=a.shared_gate)
    of_mlp = mlp.backward(a, r, place, a.d_shared)
    return [*times(a.shared_gate, gate), *of_mlp]
