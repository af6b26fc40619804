"""Latent attention: queries, keys and values are read from narrow, normalised latents."""

from typing import ClassVar

from pydantic import Field

from modelbudget.architecture.base import Architecture, Count, Parts, Size
from modelbudget.architecture.constraint import Constraint
from modelbudget.architecture.operations import positive
from modelbudget.architecture.run_config import bytes_of, computed_again, tokens
from modelbudget.components import attention_core, norm, rope
from modelbudget.memory.timeline import Node, added, linear, times


class LatentFields(Architecture):
    d_model: Count = Field(description="width of the residual stream")
    n_head: Parts = Field(description="query heads")
    q_lora_rank: Size = Field(0, description="width of the queries' latent; 0: none, one matrix")
    kv_lora_rank: Size = Field(0, description="width of the latent of keys and values")
    d_nope: Size = Field(0, description="channels of a query head that know no position")
    d_rope: Size = Field(0, description="channels of a query head that are turned; one key of it")
    d_value: Size = Field(0, description="width of one value head")

    constraints: ClassVar[tuple[Constraint, ...]] = (
        Constraint("d_rope % 2 == 0", "d_rope = {d_rope} is odd; rotary positions turn pairs"),
    )


def parameters(a) -> dict:
    """DeepSeek-V2 (DeepSeek-AI 2024), §2.1: down to a latent, a norm, up to the heads.

    The rotary key is one for all heads and comes straight from the states. Without a latent of
    their own (q_lora_rank = 0, as in V2-Lite) queries are one projection.
    """
    d_query = a.n_head * (a.d_nope + a.d_rope)
    return {
        "query": (1 - positive(a.q_lora_rank)) * a.d_model * d_query,
        "query_down": a.d_model * a.q_lora_rank,
        "query_norm": norm.parameters(a, a.q_lora_rank),
        "query_up": a.q_lora_rank * d_query,
        "kv_down": a.d_model * (a.kv_lora_rank + a.d_rope),
        "kv_norm": norm.parameters(a, a.kv_lora_rank),
        "kv_up": a.kv_lora_rank * a.n_head * (a.d_nope + a.d_value),
        "output": a.n_head * a.d_value * a.d_model,
    }


def tensors(a) -> dict:
    """Every matrix and every norm's scale or shift is a tensor."""
    own, of_norm = positive(a.q_lora_rank), norm.tensors(a)
    return {
        "query": 1 - own,
        "query_down": own,
        "query_norm": own * of_norm,
        "query_up": own,
        "kv_down": 1,
        "kv_norm": of_norm,
        "kv_up": 1,
        "output": 1,
    }


def heads(a) -> attention_core.Heads:
    """Values lie beside those channels of the keys that know no position."""
    d_key = a.d_nope + a.d_rope
    return attention_core.Heads(a.n_head, a.n_head, d_key, a.d_value, a.d_nope + a.d_value, 1)


def saved(a, r) -> dict:
    """Bytes that backward needs: the input, which queries and keys share; inputs and outputs of the
    norms of the latents, of which that of keys and values lies beside the rotary key; sines and
    cosines; the core; the input of the output projection, where it is a copy.
    """
    size, own = bytes_of(r.dtype) * tokens(r), positive(a.q_lora_rank)
    states = size * a.d_model
    return {
        "query": (1 - own) * states,
        "query_down": own * states,
        "query_norm": own * norm.saved(a, r, a.q_lora_rank),
        "query_up": size * a.q_lora_rank,
        "": 2 * rope.tables(r, a.d_rope),
        "kv_norm": norm.saved(a, r, a.kv_lora_rank) + size * a.d_rope,
        "kv_up": size * a.kv_lora_rank,
        "core": attention_core.saved(heads(a), r),
        "output": attention_core.copied_result(heads(a), r),
    }


def flops(a, r, of_scores=2, of_values=2) -> dict:
    """Projections, two operations for each weight and token; and the core.

    `of_scores`, `of_values`: twice the number of products of length² with a query's channels, and
    with a value's.
    """
    n, d_query = tokens(r), a.n_head * (a.d_nope + a.d_rope)
    of_core = of_scores * d_query + of_values * a.n_head * a.d_value
    return {
        "query": (1 - positive(a.q_lora_rank)) * 2 * n * a.d_model * d_query,
        "query_down": 2 * n * a.d_model * a.q_lora_rank,
        "query_up": 2 * n * a.q_lora_rank * d_query,
        "kv_down": 2 * n * a.d_model * (a.kv_lora_rank + a.d_rope),
        "kv_up": 2 * n * a.kv_lora_rank * a.n_head * (a.d_nope + a.d_value),
        "core": of_core * n * r.length,
        "output": 2 * n * a.n_head * a.d_value * a.d_model,
    }


def forward(a, r) -> list[Node]:
    """From the input, which lives already, to the output and all that backward needs: queries; the
    latent of keys and values and the rotary key, which is turned; the norm; keys and values; the
    queries turned; queries and keys put together; core, a copy of its result token by token, the
    output projection.
    """
    held, h = saved(a, r), heads(a)
    size, math = bytes_of(r.dtype) * tokens(r), int(r.attention_kernel == "math")
    queries, stored = size * a.n_head * h.d_key, size * a.n_head * h.d_stored
    turned, down = size * a.d_rope, size * (a.kv_lora_rank + a.d_rope)
    copied = attention_core.result_apart(h, r) * size * a.n_head * a.d_value
    of_query, of_key, of_value = attention_core.kept_of_given(h, r)
    dropped = (2 - of_query + 1 - of_key) * queries + turned + (1 - of_value) * stored
    return [
        (held["query_norm"] + held["query_up"] + queries + down, 0),
        *rope.forward(r, 1, a.d_rope, a.d_rope),
        (held["kv_norm"] - down + held["kv_up"] + stored, 0),
        *rope.forward(r, a.n_head, a.d_rope, a.d_rope),
        (queries, a.n_head * turned),
        (queries, 0),
        *attention_core.forward(h, r),
        (copied, 0),
        (size * a.d_model, dropped + math * copied),
    ]


def backward(a, r, given, others=0, is_first=0) -> list[Node]:
    """From the gradient of the output, of which the last reader frees `given` bytes, to that of
    the input. Where others (1 or 0) read it too, their gradient is there already. `is_first`: 1 if
    it is what a layer that is computed again begins with.

    Output, core; the rotary key, summed over the heads, if there are several; rotation of the
    queries; keys and values; their latent; the rotation of the rotary key; queries and, if they
    have one, their latent.
    """
    held, h, early = saved(a, r), heads(a), computed_again(r)
    size, n = bytes_of(r.dtype), tokens(r)
    states, turned = size * n * a.d_model, size * n * a.d_rope
    queries, values, stored = (
        size * n * a.n_head * width for width in (h.d_key, h.d_value, h.d_stored)
    )
    latent, down = size * n * a.kv_lora_rank, size * n * (a.kv_lora_rank + a.d_rope)
    copied, several = attention_core.apart(h, r), positive(a.n_head - 1)
    output = size * a.n_head * a.d_value * a.d_model
    up = size * a.kv_lora_rank * a.n_head * h.d_stored
    kept = states, early * (1 - is_first)
    return [
        *linear(output, 0, values, given, held["output"], early),
        *attention_core.backward(h, r),
        (several * turned, 0),
        *rope.backward(r, a.n_head, a.d_rope, a.d_rope, given=0),
        (stored, several * queries + values),
        (copied * stored, copied * stored),
        *linear(up, 0, latent, stored, held["kv_up"], early),
        *norm.backward(a, r, width=a.kv_lora_rank),
        (0, turned),
        *rope.backward(r, 1, a.d_rope, a.d_rope),
        (0, (1 - several) * (queries - turned)),
        (down, down),
        *linear(size * (a.kv_lora_rank + a.d_rope) * a.d_model, 0, states, down, 0, early),
        *times(others, added(states)),
        (queries, queries + a.n_head * turned),
        (copied * queries, copied * queries),
        *_queries(a, r, queries, kept),
        *added(states),
    ]


def _queries(a, r, queries, kept) -> list[Node]:
    """From the gradient of the queries to that of the states, of which `kept` says what is freed:
    by one matrix, or by two and the norm between.
    """
    own, size, early = positive(a.q_lora_rank), bytes_of(r.dtype), computed_again(r)
    d_query = a.n_head * (a.d_nope + a.d_rope)
    states, latent = size * tokens(r) * a.d_model, size * tokens(r) * a.q_lora_rank
    whole = linear(size * a.d_model * d_query, 0, states, queries, *kept)
    in_two = [
        *linear(size * a.q_lora_rank * d_query, 0, latent, queries, latent, early),
        *norm.backward(a, r, width=a.q_lora_rank),
        *linear(size * a.d_model * a.q_lora_rank, 0, states, latent, *kept),
    ]
    return [*times(1 - own, whole), *times(own, in_two)]


def cached(a, r):
    """Bytes of the latent and of the one rotary key of each token (DeepSeek-AI 2024, §2.1.3)."""
    return bytes_of(r.dtype) * tokens(r) * (a.kv_lora_rank + a.d_rope)
