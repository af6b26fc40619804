"""Mixture of experts (MoE): a router sends each token through a few of many MLPs."""

from typing import Annotated, Literal

from pydantic import Field

from modelbudget.architecture.adapter_methods import reaches_experts
from modelbudget.architecture.arithmetic import positive
from modelbudget.architecture.base import Size
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.run_values import (
    INDEX,
    bytes_of,
    computed_again,
    is_sharded,
    of_states,
    tokens,
)
from modelbudget.architecture.stored_formats import OF_STORED_EXPERTS
from modelbudget.architecture.terms import join
from modelbudget.components import expert_parallel
from modelbudget.components.contract import ALONE, Place, Values, valid_if
from modelbudget.components.expert_changes import Change, changed
from modelbudget.components.feed_forward import mlp
from modelbudget.components.feed_forward.mlp import MLPFields
from modelbudget.components.weight_formats import Matrix
from modelbudget.memory.parameter_tensors import Tensor, linear_tensors, matrix
from modelbudget.memory.timeline import (
    Allocation,
    Timeline,
    accumulate,
    gradients_done,
    linear_backward,
    times,
    within,
)
from modelbudget.operations.collectives import gathered as of_all_devices
from modelbudget.operations.collectives import summed
from modelbudget.operations.dequantised_product import dequantised
from modelbudget.operations.elementwise import add, div, mul, sigmoid, to, without_gradient
from modelbudget.operations.expert_exchange import on_other_devices
from modelbudget.operations.joining import gather, index_add
from modelbudget.operations.joining import rows as take_rows
from modelbudget.operations.linear_layer import make_linear, stored_parameters
from modelbudget.operations.memory_layout import at_least_float32
from modelbudget.operations.part import NotComputedError, make_part, parameter
from modelbudget.operations.products import grouped_mm, linear
from modelbudget.operations.reductions import softmax, sort, sum_over, topk
from modelbudget.operations.tape import Active, empty
from modelbudget.operations.views import chunk, flatten, unflatten, unsqueeze, view

GROUP = "experts"
DIVIDED = ()
DIVIDED_OF_ALL_TOKENS = ("d_expert", "d_shared")
OF_OWN_TOKENS = True
SIZES = ("n_expert", "n_expert_per_token", "d_expert")


class MoEFields(MLPFields):
    n_expert: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    n_expert_per_token: Size = 0
    d_expert: Size = 0
    d_shared: Size = 0
    shared_gate: bool = False
    router_bias: Literal["none", "logit", "selection"] = "none"


FIELDS = MoEFields


def is_packed(r: Run) -> bool:
    """Whether the stacks of gate and up are one: gathered, or with an adapter."""
    return r.expert_kernel == "gathered" or reaches_experts(r)


def received(a: Fields, r: Run):
    """Count the rows that the routed experts of a device compute: pairs of token and expert."""
    return tokens(r) * expert_parallel.received_per_token(a, r)


def gate_sums_channels(a: Fields, r: Run):
    """Not a gate of shared experts over a single channel, where torch has nothing to sum."""
    return 1 - a.shared_gate * (1 - positive(a.d_model - 1))


def parameters(a: Fields) -> Values:
    """All routed experts, the router, shared experts.

    Router and routed experts: Shazeer et al. 2017, §2; Fedus et al. 2022, §2.1. Shared experts:
    Dai et al. 2024 (DeepSeekMoE), §3.2. Gate of the shared experts: Qwen1.5-MoE.
    """
    return _parameters(a, expert_parallel.own_experts(a))


def active_parameters(a: Fields) -> Values:
    """Those that one token uses: of the routed experts, n_expert_per_token."""
    return _parameters(a, a.n_expert_per_token)


def _parameters(a: Fields, n_expert) -> Values:
    routed = mlp.parameters(a, a.d_expert)
    return {
        "router": a.d_model * a.n_expert + int(a.router_bias != "none") * a.n_expert,
        **{name: n_expert * value for name, value in routed.items()},
        **_shared(a, mlp.parameters(a, a.d_shared)),
        "shared_gate": a.shared_gate * a.d_model,
    }


def _shared(a: Fields, values: Values) -> Values:
    """Return the values of the shared experts, computed as one MLP; 0 if there are none."""
    return {join("shared", name): positive(a.d_shared) * value for name, value in values.items()}


def trained_parameters(a: Fields) -> Values:
    """Count the parameters that get a gradient.

    A bias that only changes the selection of experts gets none.
    """
    counts = parameters(a)
    no_gradient = int(a.router_bias == "selection") * a.n_expert
    return counts | {"router": counts["router"] - no_gradient}


def shards_have_gradients(a: Fields, r: Run):
    """Sharded, each tensor gets a gradient."""
    return 1 - is_sharded(r) * int(a.router_bias == "selection")


@valid_if(shards_have_gradients)
def tensors(a: Fields) -> list[Tensor]:
    """Return the parameter tensors in the order of the modules.

    The router, the stacked matrices of all routed experts, the shared experts, their gate.
    """
    shared = positive(a.d_shared)
    return [
        *linear_tensors("router", a.d_model, a.n_expert, int(a.router_bias == "logit")),
        *(
            _stacked(tensor, expert_parallel.own_experts(a))
            for tensor in mlp.tensors(a, a.d_expert)
        ),
        *(
            tensor._replace(name=join("shared", tensor.name), is_there=shared * tensor.is_there)
            for tensor in mlp.tensors(a, a.d_shared)
        ),
        matrix("shared_gate", 1, a.d_model, a.shared_gate),
    ]


def _stacked(tensor: Tensor, n_expert) -> Tensor:
    """Return the stack of the same tensor of several experts."""
    stack = matrix(tensor.name, n_expert, tensor.numbers, tensor.is_there)
    dims = None if tensor.dims is None else (n_expert, *tensor.dims)
    return stack._replace(is_routed=1, dims=dims)


def matrices(a: Fields) -> list[Matrix]:
    """Return those of all routed experts and of the shared ones; the router is not converted."""
    shared = mlp.matrices(a, a.d_shared, positive(a.d_shared))
    return [
        *mlp.matrices(a, a.d_expert, a.n_expert, 1),
        *(m._replace(name=join("shared", m.name)) for m in shared),
    ]


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
        **_shared(a, mlp.hidden(a, size * n * a.d_shared)),
    }


def flops(a: Fields, r: Run) -> Values:
    """Each token goes through the router, k routed experts and the shared ones."""
    r = of_states(r)
    routed, n_row = mlp.flops(a, r, a.d_expert), expert_parallel.received_per_token(a, r)
    return {
        "router": 2 * tokens(r) * a.d_model * a.n_expert,
        **{name: n_row * value for name, value in routed.items()},
        **_shared(a, mlp.flops(a, r, a.d_shared)),
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
    shared = sum(_shared(a, mlp.hidden(a, size * n * a.d_shared)).values())
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
    early = computed_again(r)
    of_rows = (1 + wide) * rows + (1 - early) * (rows + weights)
    computed = size * received(a, r) * a.d_model
    softmax = probabilities + weights + indices
    return [
        *times(shared, _shared_backward(a, r, states)),
        Allocation("gradients of the pairs", rows, place.given + rows),
        Allocation("weighting gradients", 2 * rows, early * (rows + weights)),
        Allocation("weight gradients summed over channels", wide * weights, of_rows),
        Allocation("weight gradients in the tokens' order", 2 * weights, 2 * weights + indices),
        *expert_parallel.to_experts(r, rows, computed),
        *within("routed experts", _routed_backward(a, r)),
        *expert_parallel.from_experts(r, rows, computed),
        Allocation("gradients of the tokens", 2 * states, states + rows + indices),
        *times(shared, accumulate(states)),
        Allocation("gradients of the chosen probabilities", 2 * probabilities, softmax),
        Allocation("softmax gradient", 2 * probabilities, 3 * probabilities),
        *_router_backward(a, r, place),
        *times(place.others, accumulate(states)),
    ]


def _router_backward(a: Fields, r: Run, place: Place) -> Timeline:
    """Gradients of the router's matrix, bias and input, which is added to that of the experts."""
    size, n = bytes_of(r.dtype), tokens(r)
    weight, states = (size * m * a.d_model for m in (a.n_expert, n))
    router = weight, size * int(a.router_bias == "logit") * a.n_expert, states
    saved_bytes = place.saves_input * states
    return [
        *linear_backward("router", *router, size * n * a.n_expert, saved_bytes, computed_again(r)),
        *accumulate(states),
        Allocation("router gradients done", gradients=sum(router[:2])),
    ]


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
        *gradients_done("gate or up", up),
    ]


def _shared_backward(a: Fields, r: Run, states) -> Timeline:
    """Return the backward timeline of the shared experts.

    The gate's product, sigmoid and projection; and the MLP.
    """
    weight, early = bytes_of(r.dtype) * tokens(r), computed_again(r)
    wide, of_gate = positive(a.d_model - 1), bytes_of(r.dtype) * a.d_model
    gate = [
        Allocation("gate product gradients", 2 * states, early * states),
        Allocation("gate gradient summed", wide * weight, (1 + wide - early) * states),
        Allocation("sigmoid gradient", weight, 2 * weight),
        *linear_backward("gate", of_gate, 0, states, weight, 0, 0),
        *gradients_done("gate", of_gate),
    ]
    place = Place(given=a.shared_gate * states, saves_input=0, others=a.shared_gate)
    of_mlp = mlp.backward(a, r, place, a.d_shared)
    return within("shared experts", [*times(a.shared_gate, gate), *of_mlp])


def cache(a: Fields, r: Run) -> Values:
    """Nothing: each token is computed alone."""
    return {}


def program(a: Fields, r: Run):
    """States (batch, length, d_model) to states of the same shape; no token is dropped."""
    gathers = r.expert_kernel == "gathered" and a.gated
    packs = is_packed(r) and a.gated
    n_device = 1 if r.sequence_parallel else r.tensor_parallel  # that divide each expert
    n_own = expert_parallel.own_experts(a)
    router = make_part("router", _router, a)
    if packs:
        gate_up = _experts("gate_up", n_own, a.d_model, 2 * a.d_expert, a.up_bias)
    elif a.gated:
        gate = _experts("gate", n_own, a.d_model, a.d_expert, a.up_bias)
    if not packs:
        up = _experts("up", n_own, a.d_model, a.d_expert, a.up_bias)
    down = _experts("down", n_own, a.d_expert, a.d_model, a.down_bias)
    activation = mlp.make_activation(a, r)
    shared = make_part("shared", mlp.program, a, r, a.d_shared) if a.d_shared else None
    shared_gate = make_linear("shared_gate", a.d_model, 1) if a.shared_gate else None
    changes = down.change, (gate_up if packs else up).change

    def forward(x):
        tokens = flatten(x, 0, 1)  # (tokens, d_model)
        if gathers:
            y = gathered(tokens)
        else:
            weights, chosen = choose(tokens)
            with changed(*changes):
                order = _argsort(flatten(chosen))  # (token, choice) pairs, by expert
                owner = without_gradient(order)
                if r.expert_parallel == 1:
                    outputs = routed(take_rows(read(tokens), owner))
                else:  # no name for the rows: they are freed once they are sent
                    n = tokens.shape[0] * expert_parallel.received_per_token(a, r)
                    outputs = on_other_devices(routed, take_rows(read(tokens), owner), n)
                weighted = mul(outputs, unsqueeze(take_rows(flatten(weights), order), 1))
                y = sum_terms(index_add(empty(tokens.shape, tokens.dtype), owner, weighted))
        if shared is not None:
            y = add(y, of_shared_experts(tokens))
        return view(y, x.shape)

    def choose(tokens, normalised=False):
        with changed(router.change):
            weights, chosen = router(tokens, normalised)
        return read(weights), chosen

    def read(x):
        """Return what all experts read; devices that divide them sum its gradient."""
        return x if n_device == 1 else of_all_devices(x, n_device, None)

    def sum_terms(y):
        return y if n_device == 1 else summed(y, n_device, None)

    def routed(x):
        if packs:
            of_gate, of_up = chunk(gate_up(x), 2)
            return down(mul(activation(of_gate), of_up))
        if not a.gated:
            return down(activation(up(x)))
        gated = activation(gate(x))
        return down(mul(gated, up(x)))

    def gathered(tokens):
        weights, chosen = choose(tokens, normalised=True)
        with changed(*changes):
            return gathered_outputs(tokens, weights, chosen)

    def gathered_outputs(tokens, weights, chosen):
        """Sum the weighted outputs of the experts, gathered in the order of the tokens."""
        _experts_in_order, order = sort(flatten(chosen))
        x = take_rows(read(tokens), without_gradient(order))
        weights = take_rows(flatten(weights), order)
        numbers = empty((a.n_expert,), "int64")
        ends = empty((a.n_expert,), "int32")
        of_gate, of_up = chunk(gate_up(x, ends), 2)
        outputs = down(mul(activation(of_gate), of_up), ends)
        weighted = mul(outputs, unsqueeze(weights, 1))
        places = empty(order.shape, "int64")
        written = empty(order.shape, "int64")  # arange, which is written into places
        del written
        # No name for the rows: they are freed once they are summed.
        return sum_terms(
            to(sum_over(unflatten(take_rows(weighted, places), 0, chosen.shape), [1]), tokens.dtype)
        )

    def of_shared_experts(tokens):
        assert shared is not None
        y = shared(tokens)
        return y if shared_gate is None else mul(y, sigmoid(shared_gate(tokens)))

    return forward


def _router(a: Fields):
    """Tokens (n, d_model) to weights and numbers of their experts, both (n, chosen)."""
    weight = parameter("weight", a.n_expert, a.d_model)
    change = _change("router", weight)
    selects = a.router_bias == "selection"
    bias = None
    if a.router_bias != "none":
        bias = parameter("bias", a.n_expert, is_trained=not selects)

    def forward(tokens, normalised=False):
        logits = linear(
            tokens, weight if change is None else change.read(), None if selects else bias
        )
        if normalised:
            return normalise(to(logits, at_least_float32(logits.dtype)))
        weights = softmax(logits)
        ranks = weights if bias is None or not selects else add(weights.detach(), bias)
        _, chosen = topk(ranks, a.n_expert_per_token)
        del _
        return gather(weights, chosen), chosen

    def normalise(logits):
        if selects:
            raise NotComputedError("expert_kernel: gathered with router_bias: selection")
        weights, chosen = topk(softmax(logits), a.n_expert_per_token)
        return div(weights, sum_over(weights, [-1], keepdim=True)), chosen

    forward.change = change
    return forward


def _experts(name: str, n_expert, d_in, d_out, bias: bool):
    """Make a linear layer for each expert, stacked: one tensor for all experts."""

    def make():
        of_run = Active.tape.weight_format
        weight_format = of_run and of_run.of_experts
        if weight_format is not None and weight_format.stores(Active.tape.scope, d_in, d_out, True):
            return stored(weight_format)
        weight = parameter("weight", n_expert, d_out, d_in)
        shift = parameter("bias", n_expert, d_out) if bias else None
        change = _change(name, weight)

        def forward(x, ends=None):
            return grouped_mm(x, weight if change is None else change.read(), shift, ends)

        forward.change = change
        return forward

    def stored(weight_format):
        weight, shift = stored_parameters(weight_format, (n_expert, d_out, d_in), bias, n_expert)
        before_copy = weight_format.made_for_product(d_in, d_out)

        def forward(x, ends=None):
            if Active.tape.records_graph:
                raise NotComputedError(OF_STORED_EXPERTS)
            dtype, x = x.dtype, to(x, weight.dtype)
            cast = None if shift is None else to(shift, weight.dtype)
            return to(grouped_mm(x, dequantised(weight, before_copy), cast, ends), dtype)

        forward.change = _change(name, weight, is_stored=True)
        return forward

    return make_part(name, make)


def _change(name: str, weight, is_stored: bool = False) -> Change | None:
    """Declare what an adapter adds to a weight of the part that is being made."""
    adapter = Active.tape.adapter
    return None if adapter is None else adapter.of_experts(name, weight, is_stored)


def _argsort(x):
    _, places = sort(x)
    return places
