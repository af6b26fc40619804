"""Mamba-2's mixer: one decay for each head, a matrix of states for each head."""

from typing import ClassVar

from pydantic import Field

from modelbudget.architecture.base import Architecture, Count, Parts
from modelbudget.architecture.constraint import Constraint
from modelbudget.architecture.run_config import bytes_of


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


def cached(a, r) -> dict:
    """Return the bytes of the recurrent state and of the tokens that the convolution spans.

    d_state states for each channel; the convolution also spans B and C (Dao & Gu 2024, §7.1 and
    their code).
    """
    size = bytes_of(r.dtype) * r.batch
    convolved = a.d_inner + 2 * a.n_group * a.d_state
    return {"": size * a.d_inner * a.d_state, "convolution": size * convolved * a.d_convolution}
