"""A mixture of experts: a router sends each token through a few of many MLPs."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from modelbudget.architecture.base import Size
from modelbudget.architecture.constraint import Constraint
from modelbudget.architecture.operations import positive
from modelbudget.architecture.run_config import bytes_of, computed_again, tokens
from modelbudget.architecture.terms import join
from modelbudget.components import mlp
from modelbudget.components.mlp import MLPFields
from modelbudget.memory.timeline import Node, added, linear, times

INDEX = 8
"""Bytes of an index: torch's indices are 64-bit integers."""


class ExpertsFields(MLPFields):
    n_expert: Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        0, description="routed experts in a layer"
    )
    n_expert_per_token: Size = Field(0, description="routed experts that a token goes through")
    d_expert: Size = Field(0, description="hidden width of one routed expert")
    d_shared: Size = Field(
        0, description="hidden width of the experts that every token goes through, all together"
    )
    shared_gate: bool = Field(False, description="a learned gate weighs the shared experts")
    router_bias: Literal["none", "logit", "selection"] = Field(
        "none",
        description="a bias for each expert: in the router's logits (gpt-oss), or in the choice "
        "of experts alone, where load and not a gradient moves it (DeepSeek-V3)",
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


def parameters(a, n_expert) -> dict:
    """n_expert routed experts (all, or those that one token uses), the router, shared experts.

    Router and routed experts: Shazeer et al. 2017, §2; Fedus et al. 2022, §2.1. Shared experts:
    Dai et al. 2024 (DeepSeekMoE), §3.2. Gate of the shared experts: Qwen1.5-MoE.
    """
    routed = mlp.parameters(a, a.d_expert)
    return {
        "router": a.d_model * a.n_expert + int(a.router_bias != "none") * a.n_expert,
        **{name: n_expert * value for name, value in routed.items()},
        **_shared(a, mlp.parameters(a, a.d_shared)),
        "shared_gate": a.shared_gate * a.d_model,
    }


def _shared(a, values: dict) -> dict:
    """The shared experts are one MLP, if there are any."""
    return {join("shared", name): positive(a.d_shared) * value for name, value in values.items()}


def trained(a) -> dict:
    """The parameters that get a gradient: a bias that only moves the choice gets none."""
    all_of_them = parameters(a, a.n_expert)
    no_gradient = int(a.router_bias == "selection") * a.n_expert
    return all_of_them | {"router": all_of_them["router"] - no_gradient}


def tensors(a) -> dict:
    """Tensors that get a gradient; the matrices of all routed experts are one."""
    return {
        "router": 1 + int(a.router_bias == "logit"),
        **mlp.tensors(a),
        **_shared(a, mlp.tensors(a)),
        "shared_gate": a.shared_gate,
    }


def saved(a, r, reads_alone=1) -> dict:
    """Bytes that backward needs, with each token k = n_expert_per_token times where it is routed.

    Router: the states (unless somebody else has saved them: `reads_alone` 0), their probabilities,
    the chosen experts. Around the experts: the order of the k·N pairs, their owners, their weights
    and, before and after they are weighed, the experts' outputs. Shared experts read the same
    states; their gate saves their output and its own value.
    """
    size, n = bytes_of(r.dtype), tokens(r)
    pairs = n * a.n_expert_per_token
    states = size * n * a.d_model
    rows = size * pairs * a.d_model
    routed = mlp.hidden(a, size * pairs * a.d_expert)
    weighing = 2 * INDEX * pairs + size * pairs + 2 * rows
    gate = a.shared_gate * (states + size * n)
    return {
        "router": reads_alone * states + size * n * a.n_expert + INDEX * pairs,
        "gate": a.gated * rows,
        "up": (1 - a.gated) * rows,
        "down": routed["down"],
        "": routed[""] + weighing + gate,
        **_shared(a, mlp.hidden(a, size * n * a.d_shared)),
    }


def flops(a, r) -> dict:
    """Each token goes through the router, k routed experts and the shared ones."""
    routed = mlp.flops(a, r, a.d_expert)
    return {
        "router": 2 * tokens(r) * a.d_model * a.n_expert,
        **{name: a.n_expert_per_token * value for name, value in routed.items()},
        **_shared(a, mlp.flops(a, r, a.d_shared)),
        "shared_gate": a.shared_gate * 2 * tokens(r) * a.d_model,
    }


def summed(a, r, stops=0):
    """Bytes of what lives at the end of forward beside the output, but is not kept: the weights;
    zeros, to which what the routed experts say is added, or that, and what the shared ones say. One
    of these lives where forward, computed again, `stops` (1) before the last sum.
    """
    size = bytes_of(r.dtype) * tokens(r)
    n_states = 1 + (1 - stops) * positive(a.d_shared)
    return size * (n_states * a.d_model + a.n_expert_per_token)


def backward(a, r, given, reads_alone=1, others=0) -> list[Node]:
    """From the gradient of the output, of which the last reader frees `given` bytes, to that of
    the input, which is freed if nobody else needs it (`reads_alone`); where others (1 or 0) read
    the input, their gradient is there already.
    """
    size, n = bytes_of(r.dtype), tokens(r)
    pairs = n * a.n_expert_per_token
    states, rows = size * n * a.d_model, size * pairs * a.d_model
    weights, indices = size * pairs, INDEX * pairs
    probabilities = size * n * a.n_expert
    shared, wide = positive(a.d_shared), positive(a.d_model - 1)
    logit_bias, early = int(a.router_bias == "logit"), computed_again(r)
    router = size * a.n_expert * a.d_model, size * logit_bias * a.n_expert, states
    return [
        *times(shared, _shared_backward(a, r, states)),
        (rows, given + rows),  # to each pair its token's, and
        (2 * rows, early * (rows + weights)),  # weighed
        # The weights', summed over the channels, if there are several.
        (wide * weights, (1 + wide) * rows + (1 - early) * (rows + weights)),
        (2 * weights, 2 * weights + indices),
        *_routed_backward(a, r, rows),
        (2 * states, states + rows + indices),
        *times(shared, added(states)),
        (2 * probabilities, probabilities + weights + indices),
        (probabilities, 2 * probabilities),
        *linear(*router, probabilities, reads_alone * states, early),
        *added(states),
        *times(others, added(states)),
    ]


def _routed_backward(a, r, rows) -> list[Node]:
    """All experts at once; each product makes the gradients of its rows and of the whole stack."""
    size = bytes_of(r.dtype)
    inside = size * tokens(r) * a.n_expert_per_token * a.d_expert
    matrix = size * a.n_expert * a.d_model * a.d_expert
    of_down, of_product, of_bend = mlp.hidden_backward(a, inside)
    up = matrix + size * a.n_expert * a.up_bias * a.d_expert + rows
    return [
        (matrix + size * a.n_expert * a.down_bias * a.d_model + inside, rows + of_down),
        *of_product,
        *times(a.gated, [(up, inside)]),
        *of_bend,
        (up, inside + rows),
        *times(a.gated, added(rows)),
    ]


def _shared_backward(a, r, states) -> list[Node]:
    """The gate's product, sigmoid and projection; and the MLP."""
    weight, early = bytes_of(r.dtype) * tokens(r), computed_again(r)
    wide = positive(a.d_model - 1)
    gate = [
        (2 * states, early * states),
        (wide * weight, (1 + wide - early) * states),  # summed over the channels
        (weight, 2 * weight),
        *linear(bytes_of(r.dtype) * a.d_model, 0, states, weight, 0, 0),
    ]
    of_mlp = mlp.backward(a, r, a.shared_gate * states, 0, a.shared_gate, a.d_shared)
    return [*times(a.shared_gate, gate), *of_mlp]
