"""Gated DeltaNet (Yang et al. 2024, arXiv 2412.06464), as in Qwen3-Next.

The formulas are of one implementation: plain PyTorch, chunk by chunk
(`modules/mixers/gated_deltanet.py`). The peak of training has none.
"""

from types import SimpleNamespace
from typing import ClassVar

from pydantic import Field

from modelbudget.architecture.base import Architecture, Count, Size
from modelbudget.architecture.constraint import Constraint
from modelbudget.architecture.fields import Fields, Run
from modelbudget.architecture.operations import ceil_div, largest, positive
from modelbudget.architecture.run_config import bytes_of, exact_bytes, tokens
from modelbudget.components.contract import ALONE, Place, Values, doubled
from modelbudget.memory.adamw_temporaries import Tensor

GROUP = "recurrence"
SIZES = (
    "n_linear_head", "n_linear_key_head", "d_linear_key", "d_linear_value", "d_linear_convolution",
)  # fmt: skip

CHUNK = 64
"""Tokens of a chunk; a shorter one is padded."""


class GatedDeltaNetFields(Architecture):
    d_model: Count = Field(description="width of the residual stream")
    n_linear_head: Size = Field(0, description="mixers: gated_deltanet: heads, each with a state")
    n_linear_key_head: Size = Field(
        0, description="mixers: gated_deltanet: heads of queries and keys, shared in groups"
    )
    d_linear_key: Size = Field(0, description="mixers: gated_deltanet: width of a query and key")
    d_linear_value: Size = Field(0, description="mixers: gated_deltanet: width of a value")
    d_linear_convolution: Size = Field(
        0, description="mixers: gated_deltanet: tokens that the convolution spans"
    )

    constraints: ClassVar[tuple[Constraint, ...]] = (
        Constraint(
            "n_linear_head % n_linear_key_head == 0",
            "n_linear_key_head = {n_linear_key_head} does not divide n_linear_head = "
            "{n_linear_head}; each key head serves the same number of heads",
            when="n_linear_key_head",
        ),
    )


FIELDS = GatedDeltaNetFields


def _d_values(a: Fields):
    return a.n_linear_head * a.d_linear_value


def _d_mixed(a: Fields):
    """Channels of queries, keys and values together."""
    return 2 * a.n_linear_key_head * a.d_linear_key + _d_values(a)


def parameters(a: Fields) -> Values:
    """Yang et al. 2024, §3.4: queries, keys and values through a convolution; β, decay (a rate and
    a step for each head, as in Mamba-2), gate, a norm of each head, output.
    """
    return {
        "rate": a.n_linear_head,
        "step": a.n_linear_head,
        "query_key_value": a.d_model * _d_mixed(a),
        "convolution": _d_mixed(a) * a.d_linear_convolution,
        "beta": a.d_model * a.n_linear_head,
        "decay": a.d_model * a.n_linear_head,
        "gate": a.d_model * _d_values(a),
        "norm": a.d_linear_value,
        "output": _d_values(a) * a.d_model,
    }


def tensors(a: Fields) -> list[Tensor]:
    """Each component is one tensor."""
    return [Tensor(name, numbers) for name, numbers in parameters(a).items()]


def _chunked(a: Fields, r: Run) -> SimpleNamespace:
    """Bytes in at least single precision of what chunks hold, and their number.

    `query`, `value`, `scores`, `scalar`: of all padded tokens and heads; `one_*`: of one chunk of
    each sequence; `state`: of one state of each sequence.
    """
    exact, n_chunk = exact_bytes(r.dtype), ceil_div(r.length, CHUNK)
    one_scalar = exact * r.batch * a.n_linear_head * CHUNK
    scalar = n_chunk * one_scalar
    return SimpleNamespace(
        n=n_chunk,
        tokens=r.batch * n_chunk * CHUNK,
        query=scalar * a.d_linear_key,
        value=scalar * a.d_linear_value,
        scores=scalar * CHUNK,
        scalar=scalar,
        one_query=one_scalar * a.d_linear_key,
        one_value=one_scalar * a.d_linear_value,
        one_scalar=one_scalar,
        rate=exact * a.n_linear_head,
        state=exact * r.batch * a.n_linear_head * a.d_linear_key * a.d_linear_value,
    )


def saved(a: Fields, r: Run, place: Place = ALONE) -> Values:
    """Bytes saved for backward: inputs of the projections and of the convolution; queries, keys and
    values before and after the activation; factors of the rule; the gate and what it multiplies.
    """
    size, exact, n, c = bytes_of(r.dtype), exact_bytes(r.dtype), tokens(r), _chunked(a, r)
    half, values, mixed = int(size < exact), n * _d_values(a), c.tokens * _d_mixed(a)
    lengths = 2 * exact * c.tokens * a.n_linear_key_head  # of queries and keys, to divide by
    beta = size * n * a.n_linear_head + c.scalar
    decay = 2 * exact * n * a.n_linear_head + 2 * c.rate
    normed = half * size * values + (1 - half) * c.value
    statistics = exact * n * a.n_linear_head
    unscaled = int(r.backend == "cpu") * size * values
    gate = 3 * size * values  # before and after SiLU, and the normalised outputs
    return {
        "query_key_value": size * n * a.d_model,
        "convolution": size * r.batch * _d_mixed(a) * (c.n * CHUNK + a.d_linear_convolution - 1),
        "": size * mixed + exact * mixed + lengths + beta + decay + _saved_by_chunks(a, r) + gate,
        "norm": normed + statistics + unscaled,
        "output": size * values,
    }


def _saved_by_chunks(a: Fields, r: Run):
    """Within chunks: queries, keys, keys times β; decays from token to token, both products before
    and after them, and from the start; the solutions of the triangular systems; the causal mask.
    From the second chunk on: values, keys read and written, decays to the end, states.
    """
    c = _chunked(a, r)
    later = c.n - 1
    within = 3 * c.query + 5 * c.scores + c.scalar + c.query + c.value + CHUNK * CHUNK
    between = c.one_value + 2 * c.one_query + c.one_scalar + c.state
    return within + later * between + largest(c.n - 2, 0) * r.batch * c.rate


def flops(a: Fields, r: Run) -> Values:
    """Projections; keys by keys, queries by keys and scores by values within chunks; old values,
    outputs and new states from chunk to chunk.
    """
    n, c = 2 * tokens(r), _chunked(a, r)
    heads = 2 * r.batch * a.n_linear_head
    within = c.n * CHUNK * CHUNK * (2 * a.d_linear_key + a.d_linear_value)
    between = (c.n - 1) * 3 * CHUNK * a.d_linear_key * a.d_linear_value
    return _projections(a, n) | {"": heads * (within + between)}


def _projections(a: Fields, n) -> Values:
    return {
        "query_key_value": n * a.d_model * _d_mixed(a),
        "beta": n * a.d_model * a.n_linear_head,
        "decay": n * a.d_model * a.n_linear_head,
        "gate": n * a.d_model * _d_values(a),
        "output": n * _d_values(a) * a.d_model,
    }


def flops_backward(a: Fields, r: Run) -> Values:
    """Each product twice; and one product for the gradient of each triangular system, of which
    one chunk alone needs the values' only.
    """
    c, found = _chunked(a, r), doubled(flops(a, r))
    systems = 2 * r.batch * a.n_linear_head * c.n * CHUNK * CHUNK
    return found | {
        "": found[""] + systems * (positive(c.n - 1) * a.d_linear_key + a.d_linear_value)
    }


def flops_recomputed(a: Fields, r: Run) -> Values:
    """Full checkpointing repeats the forward pass; there is no core of attention to repeat."""
    return flops(a, r) if r.recompute == "full" else {}


def flops_decode(a: Fields, r: Run) -> Values:
    """Projections of one token; its key and its query read the state."""
    reads = 2 * 2 * r.batch * a.n_linear_head * a.d_linear_key * a.d_linear_value
    return _projections(a, 2 * r.batch) | {"": reads}


def cache(a: Fields, r: Run) -> Values:
    """Bytes of the state of each head, in at least single precision, and of the tokens that the
    convolution spans, for any number of tokens.
    """
    span = bytes_of(r.dtype) * r.batch * _d_mixed(a) * a.d_linear_convolution
    return {"": _chunked(a, r).state, "convolution": span}
