"""Mixture of experts (MoE): a router sends each token through a few of many MLPs."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from modelbudget.architecture.base import Size
from modelbudget.architecture.constraint import Constraint
from modelbudget.architecture.fields import Fields, Run
from modelbudget.architecture.operations import positive
from modelbudget.architecture.run_config import INDEX, bytes_of, computed_again, one_token, tokens
from modelbudget.architecture.terms import join
from modelbudget.components.contract import ALONE, Place, Values, doubled, valid_if
from modelbudget.components.feed_forward import mlp
from modelbudget.components.feed_forward.mlp import MLPFields
from modelbudget.memory.activation_checkpointing import repeats_last_product
from modelbudget.memory.adamw_temporaries import Tensor, linear_tensors
from modelbudget.memory.timeline import (
    Allocation,
    Timeline,
    accumulate,
    linear_backward,
    times,
    within,
)

GROUP = "experts"
SIZES = ("n_expert", "n_expert_per_token", "d_expert")


class MoEFields(MLPFields):
    n_expert: Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        0, description="routed experts in a layer"
    )
    n_expert_per_token: Size = Field(0, description="routed experts that a token goes through")
    d_expert: Size = Field(0, description="hidden width of one routed expert")
    d_shared: Size = Field(
        0, description="hidden width of the experts that every token goes through, all together"
    )
    shared_gate: bool = Field(False, description="a learned gate scales the shared experts")
    router_bias: Literal["none", "logit", "selection"] = Field(
        "none",
        description="a bias for each expert: in the router's logits (gpt-oss), or in the choice "
        "of experts alone, where load and not a gradient updates it (DeepSeek-V3)",
    )

    constraints: ClassVar[tuple[Constraint, ...]] = (
        Constraint(
            "n_expert_per_token <= n_expert",
            "n_expert_per_token = {n_expert_per_token} is more than n_expert = {n_expert}",
        ),
        Constraint(
            "d_shared",
            "shared_gate = true needs shared experts: d_shared of at least 1",
            when="shared_gate",
        ),
    )


FIELDS = MoEFields


def gate_sums_channels(a: Fields, r: Run):
    """Not a gate of shared experts over a single channel, where torch has nothing to sum."""
    return 1 - a.shared_gate * (1 - positive(a.d_model - 1))


def parameters(a: Fields) -> Values:
    """All routed experts, the router, shared experts.

    Router and routed experts: Shazeer et al. 2017, §2; Fedus et al. 2022, §2.1. Shared experts:
    Dai et al. 2024 (DeepSeekMoE), §3.2. Gate of the shared experts: Qwen1.5-MoE.
    """
    return _parameters(a, a.n_expert)


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
    found = parameters(a)
    no_gradient = int(a.router_bias == "selection") * a.n_expert
    return found | {"router": found["router"] - no_gradient}


def tensors(a: Fields) -> list[Tensor]:
    """Return the parameter tensors in the order of the modules.

    The router, the stacked matrices of all routed experts, the shared experts, their gate.
    """
    shared = positive(a.d_shared)
    return [
        *linear_tensors("router", a.d_model, a.n_expert, int(a.router_bias == "logit")),
        *mlp.tensors(a, a.d_expert, a.n_expert),
        *(
            Tensor(join("shared", name), size, shared * is_there)
            for name, size, is_there in mlp.tensors(a, a.d_shared)
        ),
        Tensor("shared_gate", a.d_model, a.shared_gate),
    ]


def saved(a: Fields, r: Run, place: Place = ALONE) -> Values:
    """Bytes saved for backward, with each token k = n_expert_per_token times where it is routed.

    Router: the states, their probabilities, the chosen experts. Around the experts: the order of
    the k·N pairs of token and expert, the pairs' tokens, their weights and the experts' outputs,
    before and after they are weighted. Shared experts read the same states; their gate saves their
    output and its own value.
    """
    size, n = bytes_of(r.dtype), tokens(r)
    pairs = n * a.n_expert_per_token
    states = size * n * a.d_model
    rows = size * pairs * a.d_model
    routed = mlp.hidden(a, size * pairs * a.d_expert)
    weighting = 2 * INDEX * pairs + size * pairs + 2 * rows
    gate = a.shared_gate * (states + size * n)
    return {
        "router": place.saves_input * states + size * n * a.n_expert + INDEX * pairs,
        "gate": a.gated * rows,
        "up": (1 - a.gated) * rows,
        "down": routed["down"],
        "": routed[""] + weighting + gate,
        **_shared(a, mlp.hidden(a, size * n * a.d_shared)),
    }


def flops(a: Fields, r: Run) -> Values:
    """Each token goes through the router, k routed experts and the shared ones."""
    routed = mlp.flops(a, r, a.d_expert)
    return {
        "router": 2 * tokens(r) * a.d_model * a.n_expert,
        **{name: a.n_expert_per_token * value for name, value in routed.items()},
        **_shared(a, mlp.flops(a, r, a.d_shared)),
        "shared_gate": a.shared_gate * 2 * tokens(r) * a.d_model,
    }


def flops_backward(a: Fields, r: Run) -> Values:
    """Each product twice, for the gradients of both its factors."""
    return doubled(flops(a, r))


def flops_recomputed(a: Fields, r: Run) -> Values:
    """Count the FLOPs that full checkpointing repeats.

    All but the shared experts' last product, unless its result is saved: a gate saves it, as the
    weights save the routed experts' outputs.
    """
    if r.recompute != "full":
        return {}
    again = flops(a, r)
    repeats = 1 - (1 - repeats_last_product(a, r)) * (1 - a.shared_gate)
    return again | {"shared.down": again["shared.down"] * repeats}


def flops_decode(a: Fields, r: Run) -> Values:
    """Count the FLOPs of one decoded token."""
    return flops(a, one_token(r))


def forward(a: Fields, r: Run, place: Place) -> Timeline:
    """All that is saved, and the output.

    Live at the end, but not saved: the weights; the sum of the routed experts' outputs, or zeros
    before it; the shared experts' output. A repeated forward pass stops before the last sum.
    """
    size = bytes_of(r.dtype) * tokens(r)
    n_states = 1 + (1 - place.stops) * positive(a.d_shared)
    temporary = size * (n_states * a.d_model + a.n_expert_per_token)
    return [
        Allocation("saved", sum(saved(a, r, place).values())),
        Allocation("output", (1 - place.stops) * size * a.d_model + temporary, temporary),
    ]


@valid_if(gate_sums_channels)
def backward(a: Fields, r: Run, place: Place) -> Timeline:
    """Shared experts; weighting and routed experts; the router's softmax and projection."""
    size, n = bytes_of(r.dtype), tokens(r)
    pairs = n * a.n_expert_per_token
    states, rows = size * n * a.d_model, size * pairs * a.d_model
    weights, indices = size * pairs, INDEX * pairs
    probabilities = size * n * a.n_expert
    shared, wide = positive(a.d_shared), positive(a.d_model - 1)
    logit_bias, early = int(a.router_bias == "logit"), computed_again(r)
    router = size * a.n_expert * a.d_model, size * logit_bias * a.n_expert, states
    of_rows = (1 + wide) * rows + (1 - early) * (rows + weights)
    softmax = probabilities + weights + indices
    saved_input = place.saves_input * states
    return [
        *times(shared, _shared_backward(a, r, states)),
        Allocation("gradients of the pairs", rows, place.given + rows),
        Allocation("weighting gradients", 2 * rows, early * (rows + weights)),
        Allocation("weight gradients summed over channels", wide * weights, of_rows),
        Allocation("weight gradients in the tokens' order", 2 * weights, 2 * weights + indices),
        *within("routed experts", _routed_backward(a, r, rows)),
        Allocation("gradients of the tokens", 2 * states, states + rows + indices),
        *times(shared, accumulate(states)),
        Allocation("gradients of the chosen probabilities", 2 * probabilities, softmax),
        Allocation("softmax gradient", probabilities, 2 * probabilities),
        *linear_backward("router", *router, probabilities, saved_input, early),
        *accumulate(states),
        *times(place.others, accumulate(states)),
    ]


def _routed_backward(a: Fields, r: Run, rows) -> Timeline:
    """All experts at once; each product makes the gradients of its rows and of the whole stack."""
    size = bytes_of(r.dtype)
    inside = size * tokens(r) * a.n_expert_per_token * a.d_expert
    weight = size * a.n_expert * a.d_model * a.d_expert
    saved_by_down, of_product, of_activation = mlp.hidden_backward(a, inside)
    down = weight + size * a.n_expert * a.down_bias * a.d_model + inside
    up = weight + size * a.n_expert * a.up_bias * a.d_expert + rows
    return [
        Allocation("down gradients", down, rows + saved_by_down),
        *of_product,
        *times(a.gated, [Allocation("up gradients", up, inside)]),
        *of_activation,
        Allocation("gate or up gradients", up, inside + rows),
        *times(a.gated, accumulate(rows)),
    ]


def _shared_backward(a: Fields, r: Run, states) -> Timeline:
    """Return the backward timeline of the shared experts.

    The gate's product, sigmoid and projection; and the MLP.
    """
    weight, early = bytes_of(r.dtype) * tokens(r), computed_again(r)
    wide = positive(a.d_model - 1)
    gate = [
        Allocation("gate product gradients", 2 * states, early * states),
        Allocation("gate gradient summed", wide * weight, (1 + wide - early) * states),
        Allocation("sigmoid gradient", weight, 2 * weight),
        *linear_backward("gate", bytes_of(r.dtype) * a.d_model, 0, states, weight, 0, 0),
    ]
    place = Place(given=a.shared_gate * states, saves_input=0, others=a.shared_gate)
    of_mlp = mlp.backward(a, r, place, a.d_shared)
    return within("shared experts", [*times(a.shared_gate, gate), *of_mlp])


def cache(a: Fields, r: Run) -> Values:
    """Nothing: each token is computed alone."""
    return {}


def inference(a: Fields, r: Run, new) -> Timeline:
    """Return the timeline of a forward pass of `new` tokens, without autograd.

    The router's logits, probabilities, choice and weights; the order of the pairs of token and
    expert; their rows: gate or up, activation, up, product, and down; expert outputs, weighted and
    summed; the shared experts.
    """
    size, n = bytes_of(r.dtype), r.batch * new
    pairs, states = n * a.n_expert_per_token, bytes_of(r.dtype) * n * a.d_model
    routed, hidden = size * pairs * a.d_model, size * pairs * a.d_expert
    scores, weights, indices = size * n * a.n_expert, size * pairs, INDEX * pairs
    selects = int(a.router_bias == "selection")
    return [
        Allocation("router", (2 + selects) * scores + weights + indices, weights),
        Allocation("weights", weights, (2 + selects) * scores),
        Allocation("order of the pairs", 2 * indices, indices),
        Allocation("rows of the pairs", indices + routed),
        Allocation("gate or up", hidden),
        Allocation("activation", hidden, hidden),
        Allocation("up", a.gated * hidden),
        Allocation("gate product", a.gated * hidden, a.gated * hidden),
        Allocation("down", routed, (1 + a.gated) * hidden + routed),
        Allocation("weighted outputs", routed + weights, weights),
        Allocation("sum of the outputs", 2 * states, states),
        *times(positive(a.d_shared), within("shared experts", _shared_inference(a, r, new))),
        Allocation("routed outputs and indices", 0, weights + 3 * indices + 2 * routed),
    ]


def _shared_inference(a: Fields, r: Run, new) -> Timeline:
    """Return the timeline of the shared experts: output, scaled by their gate if any, and added."""
    gate = bytes_of(r.dtype) * r.batch * new
    states = gate * a.d_model
    scaling = [
        Allocation("gate", gate),
        Allocation("sigmoid", gate, gate),
        Allocation("gate product", states, states + gate),
    ]
    return [
        *mlp.inference(a, r, new, a.d_shared),
        *times(a.shared_gate, scaling),
        Allocation("sum with the routed experts", states, 2 * states),
    ]
