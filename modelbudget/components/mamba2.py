"""Mamba-2's mixer: one decay for each head, a matrix of states for each head."""

from typing import ClassVar

from pydantic import Field

from modelbudget.architecture.base import Architecture, Count, Parts
from modelbudget.architecture.constraint import Constraint
from modelbudget.architecture.fields import Fields, Run
from modelbudget.architecture.operations import positive
from modelbudget.architecture.run_values import bytes_of, exact_bytes, state_bytes, tokens
from modelbudget.components.contract import Values
from modelbudget.memory.adamw_temporaries import Tensor, counts


class StateSpaceDualFields(Architecture):
    d_model: Count = Field(description="width of the residual stream")
    d_inner: Count = Field(description="channels of the recurrence: n_head · d_head")
    n_head: Parts = Field(description="heads, each with one decay and one step")
    d_head: Count = Field(64, description="channels of one head")
    d_state: Count = Field(128, description="states of each channel")
    n_group: Count = Field(1, description="groups of heads; a group shares B, C and a norm")
    d_convolution: Count = Field(4, description="tokens that the convolution spans")

    derived: ClassVar[dict[str, str]] = {"d_inner": "2 * d_model", "n_head": "d_inner / d_head"}

    constraints: ClassVar[tuple[Constraint, ...]] = (
        Constraint(
            "n_head * d_head == d_inner",
            "n_head · d_head = {n_head * d_head} is not d_inner = {d_inner}; "
            "the heads share the channels out among them",
        ),
        Constraint(
            "n_head % n_group == 0",
            "n_group = {n_group} does not divide n_head = {n_head}; "
            "each group has the same number of heads",
        ),
    )


def parameters(a) -> dict:
    """Dao & Gu 2024, §7.1.

    `input` gives a gate, the recurrence's input, B and C, and the steps, all at once; the
    convolution runs over input, B and C and has a bias; `step` is the bias of the steps; `decay`
    the logarithm of −A; `skip` is D; `norm` an RMSNorm before the
    output, within each group.
    """
    d_convolved = a.d_inner + 2 * a.n_group * a.d_state
    return {
        "input": a.d_model * (a.d_inner + d_convolved + a.n_head),
        "convolution": d_convolved * a.d_convolution + d_convolved,
        "step": a.n_head,
        "decay": a.n_head,
        "skip": a.n_head,
        "norm": a.d_inner,
        "output": a.d_inner * a.d_model,
    }


def tensors(a: Fields) -> list[Tensor]:
    """Each component is one tensor, and the bias of the convolution another."""
    d_convolved = a.d_inner + 2 * a.n_group * a.d_state
    found = parameters(a) | {"convolution": d_convolved * a.d_convolution}
    return [
        *(Tensor(name, numbers) for name, numbers in found.items()),
        Tensor("convolution", d_convolved),
    ]


def n_tensors(a: Fields) -> Values:
    """Count the parameter tensors of each component."""
    return counts(tensors(a))


def saved(a: Fields, r: Run) -> Values:
    """Return the bytes saved for backward by each component.

    Inputs of projections, and of the convolution with its padding; arguments of both SiLUs, of
    softplus and of exp; and the factors of the recurrence: steps and decays of the heads, the
    convolution's results, inputs times steps, write and read weights of every head, and all states
    (Dao & Gu 2024, §2.4). The recurrence is written out, so that the states are saved. The norm
    saves its input, the statistics of each group, and what its scale multiplies.
    """
    size, n = bytes_of(r.dtype), tokens(r)
    d_convolved = a.d_inner + 2 * a.n_group * a.d_state
    inner, of_heads = size * n * a.d_inner, size * n * a.n_head
    convolved = size * n * d_convolved
    projected = inner + convolved + of_heads
    states = size * r.batch * (r.length + 1) * a.d_inner * a.d_state
    factors = 3 * of_heads + 2 * size * a.n_head + 2 * of_heads * a.d_state + inner
    return {
        "input": size * n * a.d_model,
        "convolution": size * r.batch * d_convolved * (r.length + a.d_convolution - 1),
        "": projected + 2 * convolved + factors + states + 2 * inner,
        "norm": 2 * inner + exact_bytes(r.dtype) * n * a.n_group,
        "output": inner,
    }


def flops(a: Fields, r: Run) -> Values:
    """Two operations for each weight and token, and for each state that is read.

    Reading the only state of a channel is no matrix product.
    """
    n = 2 * tokens(r)
    d_convolved = a.d_inner + 2 * a.n_group * a.d_state
    return {
        "input": n * a.d_model * (a.d_inner + d_convolved + a.n_head),
        "convolution": n * d_convolved * a.d_convolution,
        "": n * a.d_inner * a.d_state * positive(a.d_state - 1),
        "output": n * a.d_inner * a.d_model,
    }


def cached(a, r) -> dict:
    """Return the bytes of the recurrent state and of the tokens that the convolution spans.

    d_state states for each channel; the convolution also spans B and C (Dao & Gu 2024, §7.1 and
    their code).
    """
    convolved = a.d_inner + 2 * a.n_group * a.d_state
    return {
        "": state_bytes(r) * r.batch * a.d_inner * a.d_state,
        "convolution": bytes_of(r.dtype) * r.batch * convolved * a.d_convolution,
    }
