"""What RWKV-5, 6 and 7 share: heads whose state is a matrix, and the norm of what they read."""

from typing import ClassVar

from pydantic import Field

from modelbudget.architecture.base import Architecture, Count, Parts
from modelbudget.architecture.constraint import Constraint
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.operations import positive
from modelbudget.architecture.run_values import bytes_of, exact_bytes, tokens
from modelbudget.components.contract import Values

SQUARE = ("receptance", "key", "value", "output")


class MatrixRWKVFields(Architecture):
    d_model: Count = Field(description="width of the residual stream")
    d_ff: Count = Field(description="hidden width of the channel mixer")
    n_head: Parts = Field(description="heads, each with one matrix as its state")
    d_head: Count = Field(64, description="channels of one head")

    derived: ClassVar[dict[str, str]] = {"n_head": "d_model / d_head"}

    constraints: ClassVar[tuple[Constraint, ...]] = (
        Constraint(
            "n_head * d_head == d_model",
            "n_head · d_head = {n_head * d_head} is not d_model = {d_model}; "
            "the heads share the channels out among them",
        ),
    )


def low_rank(name: str, a: Fields, rank, bias: int = 1) -> Values:
    """Count two matrices in a row, of which the second may have a bias: the base of a LoRA."""
    return {f"{name}.down": a.d_model * rank, f"{name}.up": (rank + bias) * a.d_model}


def cached(a: Fields, r: Run) -> Values:
    """Return the bytes of the state of each mixer: both keep the previous token.

    The time mixer also keeps a matrix of d_head × d_head for each head, in at least single
    precision (Peng et al. 2024, arXiv 2404.05892, §4.1; kernels of BlinkDL/RWKV-LM).
    """
    before = bytes_of(r.dtype) * r.batch * a.d_model
    return {"time": before + _state(a, r), "channel": before}


def _state(a: Fields, r: Run):
    return exact_bytes(r.dtype) * r.batch * a.d_model * a.d_head


def states(a: Fields, r: Run):
    """Bytes of one number for each token and channel."""
    return bytes_of(r.dtype) * tokens(r) * a.d_model


def exact_states(a: Fields, r: Run):
    """Bytes of the same in at least single precision, in which the recurrence is computed."""
    return exact_bytes(r.dtype) * tokens(r) * a.d_model


def norm_saved(a: Fields, r: Run):
    """Bytes saved by a norm of each head: input, two statistics, and what its scale multiplies."""
    return 2 * states(a, r) + 2 * exact_bytes(r.dtype) * tokens(r) * a.n_head


def recurrence_saved(a: Fields, r: Run, n_input: int):
    """Bytes saved by the recurrence of RWKV-5 and 6, without what the decays save.

    In its own precision: its inputs (receptance, keys, values, decays of tokens), in their own
    order; the bonus for each sequence; the product of key and value and what is read of each token;
    and each state that decays, of which the last is not read.
    """
    bonus = exact_bytes(r.dtype) * r.batch * a.d_model
    return n_input * exact_states(a, r) + bonus + (3 * r.length - 1) * _state(a, r)


def has_two_tokens(r: Run):
    """1 where a decayed state is read, so that decays have a gradient, else 0."""
    return positive(r.length - 1)


def delta_saved(a: Fields, r: Run):
    """Bytes saved by the recurrence of RWKV-7.

    In its own precision: its six inputs, in their own order; all states; and for each token what
    the state holds for its key.
    """
    return 7 * exact_states(a, r) + (r.length + 1) * _state(a, r)
