"""Mixture of experts (MoE): a router sends each token through a few of many MLPs."""

from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import Field

from modelbudget.architecture.adapter_methods import reaches_experts
from modelbudget.architecture.arithmetic import positive
from modelbudget.architecture.base import Size
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.run_values import is_sharded
from modelbudget.architecture.stored_formats import OF_STORED_EXPERTS
from modelbudget.architecture.terms import join
from modelbudget.common.attributes import with_attributes
from modelbudget.components import moe_step
from modelbudget.components.adapter import WeightChange, changed
from modelbudget.components.contract import Values, valid_if
from modelbudget.components.feed_forward import mlp
from modelbudget.components.feed_forward.mlp import MLPFields
from modelbudget.components.parallel import expert_parallel
from modelbudget.components.weight_formats import Matrix
from modelbudget.memory.parameter_tensors import Tensor, linear_tensors, matrix, numbers, vector
from modelbudget.operations.collectives import gathered as of_all_devices
from modelbudget.operations.collectives import summed
from modelbudget.operations.elementwise import without_gradient
from modelbudget.operations.expert_exchange import on_other_devices
from modelbudget.operations.joining import gather, index_add
from modelbudget.operations.joining import rows as take_rows
from modelbudget.operations.linear_layer import make_linear, stored_parameters
from modelbudget.operations.memory_layout import at_least_float32
from modelbudget.operations.part import NotComputedError, make_part, parameter
from modelbudget.operations.products import grouped_mm, linear
from modelbudget.operations.reductions import softmax, sort
from modelbudget.operations.stored_products import dequantised
from modelbudget.operations.tape import Active, empty

GROUP = "experts"
DIVIDED = ()
DIVIDED_OF_ALL_TOKENS = ("d_expert", "d_shared")
OF_OWN_TOKENS = True
SIZES = ("n_expert", "n_expert_per_token", "d_expert")

saved, forward, backward = moe_step.saved, moe_step.forward, moe_step.backward
flops, flops_recomputed = moe_step.flops, moe_step.flops_recomputed


class MoEFields(MLPFields):
    n_expert: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    n_expert_per_token: Size = 0
    d_expert: Size = 0
    d_shared: Size = 0
    shared_gate: bool = False
    router_bias: Literal["none", "logit", "selection"] = "none"
    moe_bias: bool = False


FIELDS = MoEFields


def is_packed(r: Run) -> bool:
    """Whether the stacks of gate and up are one: gathered, or with an adapter."""
    return r.expert_kernel == "gathered" or reaches_experts(r)


def parameters(a: Fields) -> Values:
    """All routed experts, the router, shared experts.

    Router and routed experts: Shazeer et al. 2017, §2; Fedus et al. 2022, §2.1. Shared experts:
    Dai et al. 2024 (DeepSeekMoE), §3.2. Gate of the shared experts: Qwen1.5-MoE. Bias of the sum:
    Shen et al. 2024 (JetMoE), `JetMoeMoE`.
    """
    return numbers(all_tensors(a, expert_parallel.own_experts(a)))


def active_parameters(a: Fields) -> Values:
    """Those that one token uses: of the routed experts, n_expert_per_token."""
    return numbers(all_tensors(a, a.n_expert_per_token))


def shards_have_gradients(a: Fields, r: Run):
    """Sharded, each tensor gets a gradient."""
    return 1 - is_sharded(r) * int(a.router_bias == "selection")


@valid_if(shards_have_gradients)
def tensors(a: Fields) -> list[Tensor]:
    """Return the parameter tensors that get a gradient, in the order of the modules.

    A bias that only changes the selection of experts gets none.
    """
    return all_tensors(a, expert_parallel.own_experts(a), ("logit",))


def all_tensors(a: Fields, n_expert, biases=("logit", "selection")) -> list[Tensor]:
    """List router, with one of `biases`, stacks of routed experts, shared experts, their gate."""
    shared = positive(a.d_shared)
    return [
        vector("", a.d_model, a.moe_bias),
        *linear_tensors("router", a.d_model, a.n_expert, int(a.router_bias in biases)),
        *(_stacked(tensor, n_expert) for tensor in mlp.tensors(a, a.d_expert)),
        *(
            tensor._replace(name=join("shared", tensor.name), is_there=shared * tensor.is_there)
            for tensor in mlp.tensors(a, a.d_shared)
        ),
        matrix("shared_gate", 1, a.d_model, a.shared_gate),
    ]


def _stacked(tensor: Tensor, n_expert) -> Tensor:
    """Return the stack of the same tensor of several experts."""
    shape = tensor.shape and (n_expert, *tensor.shape)
    return tensor._replace(numbers=n_expert * tensor.numbers, shape=shape, is_routed=1)


def matrices(a: Fields) -> list[Matrix]:
    """Return those of all routed experts and of the shared ones; the router is not converted."""
    shared = mlp.matrices(a, a.d_shared, positive(a.d_shared))
    return [
        *mlp.matrices(a, a.d_expert, a.n_expert, 1),
        *(m._replace(name=join("shared", m.name)) for m in shared),
        Matrix("shared_gate", a.d_model, 1 * a.shared_gate, a.shared_gate),
    ]


def cache(a: Fields, r: Run) -> Values:
    """Nothing: each token is computed alone."""
    return {}


def program(a: Fields, r: Run, router_program: Callable | None = None):
    """States (batch, length, d_model) to states of the same shape; no token is dropped.

    `routed_by` of the forward function: the states that the router reads, where they are others.
    """
    gathers = r.expert_kernel == "gathered" and a.gated
    packs = is_packed(r) and a.gated
    n_device = 1 if r.sequence_parallel else r.tensor_parallel  # that divide each expert
    n_own = expert_parallel.own_experts(a)
    bias = parameter("bias", a.d_model) if a.moe_bias else None
    router = make_part("router", router_program or router_of, a)
    gate = None
    if a.gated and not packs:
        gate = _experts("gate", n_own, a.d_model, a.d_expert, a.up_bias)
    name, d_up = ("gate_up", 2 * a.d_expert) if packs else ("up", a.d_expert)
    up = _experts(name, n_own, a.d_model, d_up, a.up_bias)
    down = _experts("down", n_own, a.d_expert, a.d_model, a.down_bias)
    activation = mlp.make_activation(a, r)
    shared = make_part("shared", mlp.program, a, r, a.d_shared) if a.d_shared else None
    shared_gate = make_linear("shared_gate", a.d_model, 1) if a.shared_gate else None
    changes = down.change, up.change

    def forward(x, routed_by=None):
        tokens = x.flatten(0, 1)  # (tokens, d_model)
        if gathers:
            y = gathered(tokens)
        else:
            weights, chosen = choose(tokens if routed_by is None else routed_by.flatten(0, 1))
            with changed(*changes):
                order = _argsort(chosen.flatten())  # (token, choice) pairs, by expert
                owner = without_gradient(order)
                if r.expert_parallel == 1:
                    outputs = routed(take_rows(read(tokens), owner))
                else:  # no name for the rows: they are freed once they are sent
                    n = tokens.shape[0] * expert_parallel.received_per_token(a, r)
                    outputs = on_other_devices(routed, take_rows(read(tokens), owner), n)
                weighted = outputs * take_rows(weights.flatten(), order).unsqueeze(1)
                y = sum_terms(index_add(empty(tokens.shape, tokens.dtype), owner, weighted))
        if shared is not None:
            y = y + of_shared_experts(tokens)
        y = y.view(x.shape)
        return y if bias is None else y + bias

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
            of_gate, of_up = up(x).chunk(2)
            return down(activation(of_gate) * of_up)
        if gate is None:
            return down(activation(up(x)))
        gated = activation(gate(x))
        return down(gated * up(x))

    def gathered(tokens):
        weights, chosen = choose(tokens, normalised=True)
        with changed(*changes):
            return gathered_outputs(tokens, weights, chosen)

    def gathered_outputs(tokens, weights, chosen):
        """Sum the weighted outputs of the experts, gathered in the order of the tokens."""
        _experts_in_order, order = sort(chosen.flatten())
        x = take_rows(read(tokens), without_gradient(order))
        weights = take_rows(weights.flatten(), order)
        numbers = empty((a.n_expert,), "int64")
        ends = empty((a.n_expert,), "int32")
        of_gate, of_up = up(x, ends).chunk(2)
        outputs = down(activation(of_gate) * of_up, ends)
        weighted = outputs * weights.unsqueeze(1)
        places = empty(order.shape, "int64")
        written = empty(order.shape, "int64")  # arange, which is written into places
        del written
        # No name for the rows: they are freed once they are summed.
        return sum_terms(
            take_rows(weighted, places).unflatten(0, chosen.shape).sum([1]).to(tokens.dtype)
        )

    def of_shared_experts(tokens):
        assert shared is not None
        y = shared(tokens)
        return y if shared_gate is None else y * shared_gate(tokens).sigmoid()

    return forward


def router_of(a: Fields):
    """Tokens (n, d_model) to weights and numbers of their experts, both (n, chosen)."""
    weight = parameter("weight", a.n_expert, a.d_model)
    selects = a.router_bias == "selection"
    bias = None
    if a.router_bias != "none":
        bias = parameter("bias", a.n_expert, is_trained=not selects)
    change = _change("router", weight)  # an adapter's tensors come after the layer's own

    def forward(tokens, normalised=False):
        logits = linear(
            tokens, weight if change is None else change.read(), None if selects else bias
        )
        if normalised:
            return normalise(logits.to(at_least_float32(logits.dtype)))
        weights = softmax(logits)
        ranks = weights if bias is None or not selects else weights.detach() + bias
        _, chosen = ranks.topk(a.n_expert_per_token)
        del _
        return gather(weights, chosen), chosen

    def normalise(logits):
        if selects:
            raise NotComputedError("expert_kernel: gathered with router_bias: selection")
        weights, chosen = softmax(logits).topk(a.n_expert_per_token)
        return weights / weights.sum([-1], keepdim=True), chosen

    return with_attributes(forward, change=change)


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

        return with_attributes(forward, change=change)

    def stored(weight_format):
        weight, shift = stored_parameters(weight_format, (n_expert, d_out, d_in), bias, n_expert)
        before_copy = weight_format.made_for_product(d_in, d_out)

        def forward(x, ends=None):
            if Active.tape.records_graph:
                raise NotComputedError(OF_STORED_EXPERTS)
            dtype, x = x.dtype, x.to(weight.dtype)
            cast = None if shift is None else shift.to(weight.dtype)
            return grouped_mm(x, dequantised(weight, before_copy), cast, ends).to(dtype)

        return with_attributes(forward, change=_change(name, weight, is_stored=True))

    return make_part(name, make)


def _change(name: str, weight, is_stored: bool = False) -> WeightChange | None:
    """Declare what an adapter adds to a weight of the part that is being made."""
    adapter = Active.tape.adapter
    return None if adapter is None else adapter.of_experts(name, weight, is_stored)


def _argsort(x):
    _, places = sort(x)
    return places
