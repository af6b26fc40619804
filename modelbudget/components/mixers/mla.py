"""Multi-head latent attention (MLA), DeepSeek-AI 2024."""

from typing import Any

from modelbudget.architecture.arithmetic import positive
from modelbudget.architecture.base import Architecture, Count, Parts, Size
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.run_values import bytes_of, computed_again, tokens
from modelbudget.components import kv_cache, norm, rope, scaled_dot_product
from modelbudget.components.contract import ALONE, Place, Values, doubled, valid_if
from modelbudget.components.position import causal_bias
from modelbudget.components.weight_formats import Matrix
from modelbudget.memory.parameter_tensors import Tensor, counted, matrix, vector
from modelbudget.memory.timeline import (
    Allocation,
    Timeline,
    accumulate,
    linear_backward,
    times,
)
from modelbudget.operations.elementwise import without_gradient
from modelbudget.operations.joining import cat
from modelbudget.operations.linear_layer import make_linear
from modelbudget.operations.norms import layer_norm
from modelbudget.operations.part import NoProgramError, NotComputedError, make_part, parameter
from modelbudget.operations.tape import Active
from modelbudget.operations.views import heads_of

GROUP = "attention"
DIVIDED = ("n_head",)
SIZES = ("kv_lora_rank", "d_nope", "d_rope", "d_value")


class MLAFields(Architecture):
    d_model: Count
    n_head: Parts
    q_lora_rank: Size = 0
    kv_lora_rank: Size = 0
    d_nope: Size = 0
    d_rope: Size = 0
    d_value: Size = 0
    n_index_head: Size = 0
    d_index: Size = 0
    n_selected: Size = 0


FIELDS = MLAFields


def values_fit_kernel(a: Fields, r: Run):
    """FlashAttention requires values as wide as keys."""
    return int(r.attention_kernel != "flash")


def no_indexer(a: Fields, r: Run):
    """Return 1 without an indexer, which has products and scores of its own."""
    return 1 - positive(a.n_index_head)


def own_tables(a: Fields, r: Run):
    """Return 1 where each layer makes the tables of RoPE."""
    return int(r.rope_tables == "layer" and a.position == "rotary")


def _tensors(a: Fields) -> list[Tensor]:
    """DeepSeek-V2 (DeepSeek-AI 2024), §2.1: down to a latent, a norm, up to the heads.

    The rotary key is shared by all heads and projected from the states. Without a latent
    (q_lora_rank = 0, as in V2-Lite) queries are one projection.

    The indexer (DeepSeek-V3.2-Exp, §1) has queries from the latent of the queries, one key with a
    LayerNorm that its heads share, and a weight for each head.
    """
    in_two, d_query = positive(a.q_lora_rank), a.n_head * (a.d_nope + a.d_rope)
    indexed, d_indexed = positive(a.n_index_head), a.n_index_head * a.d_index
    return [
        matrix("query", d_query, a.d_model, 1 - in_two),
        matrix("query_down", a.q_lora_rank, a.d_model, in_two),
        *norm.tensors(a, "query_norm", in_two, a.q_lora_rank),
        matrix("query_up", d_query, a.q_lora_rank, in_two),
        matrix("kv_down", a.kv_lora_rank + a.d_rope, a.d_model),
        *norm.tensors(a, "kv_norm", 1, a.kv_lora_rank),
        matrix("kv_up", a.n_head * (a.d_nope + a.d_value), a.kv_lora_rank),
        matrix("output", a.d_model, a.n_head * a.d_value),
        matrix("index_query", d_indexed, a.q_lora_rank, indexed),
        matrix("index_key", a.d_index, a.d_model, indexed),
        *(vector("index_norm", a.d_index, indexed) for _ in ("scale", "bias")),
        matrix("index_weight", a.n_index_head, a.d_model, indexed),
    ]


parameters = counted(_tensors)


@valid_if(no_indexer)
def tensors(a: Fields) -> list[Tensor]:
    """All but the indexer's, through which no gradient flows (`_indexer`)."""
    return [tensor for tensor in _tensors(a) if not tensor.name.startswith("index_")]


def matrices(a: Fields) -> list[Matrix]:
    """Return the projections, but that to the weights of the indexer's heads."""
    return [
        Matrix(tensor.name, tensor.shape[1], tensor.shape[0], tensor.is_there)
        for tensor in _tensors(a)
        if tensor.shape and len(tensor.shape) == 2 and tensor.name != "index_weight"
    ]


def heads(a: Fields) -> scaled_dot_product.Heads:
    """Return the inputs of scaled dot-product attention.

    A value is stored with the key channels without RoPE.
    """
    d_key = a.d_nope + a.d_rope
    return scaled_dot_product.Heads(a.n_head, a.n_head, d_key, a.d_value, a.d_nope + a.d_value, 1)


@valid_if(no_indexer, values_fit_kernel, norm.is_one_operation, own_tables)
def saved(a: Fields, r: Run, place: Place = ALONE) -> Values:
    """Return the bytes saved for backward by each component.

    The input, which queries and keys share; inputs and outputs of the norms of the latents, of
    which that of keys and values is stored with the rotary key; RoPE's tables; scaled dot-product
    attention (`core`); the input of the output projection, where it is a copy.
    """
    size, in_two = bytes_of(r.dtype) * tokens(r), positive(a.q_lora_rank)
    states = size * a.d_model
    return {
        "query": (1 - in_two) * states,
        "query_down": in_two * states,
        "query_norm": in_two * norm.saved(a, r, a.q_lora_rank),
        "query_up": size * a.q_lora_rank,
        "": 2 * rope.tables(r, a.d_rope),
        "kv_norm": norm.saved(a, r, a.kv_lora_rank) + size * a.d_rope,
        "kv_up": size * a.kv_lora_rank,
        "core": scaled_dot_product.saved(heads(a), r),
        "output": scaled_dot_product.copied_result(heads(a), r),
    }


@valid_if(no_indexer, values_fit_kernel)
def flops(a: Fields, r: Run, of_scores=2) -> Values:
    """Projections, two operations for each weight and token; and the core.

    `of_scores`: twice the number of products of length² with a query's channels.
    """
    n, d_query = tokens(r), a.n_head * (a.d_nope + a.d_rope)
    of_core = of_scores * d_query + 2 * a.n_head * a.d_value
    return {
        "query": (1 - positive(a.q_lora_rank)) * 2 * n * a.d_model * d_query,
        "query_down": 2 * n * a.d_model * a.q_lora_rank,
        "query_up": 2 * n * a.q_lora_rank * d_query,
        "kv_down": 2 * n * a.d_model * (a.kv_lora_rank + a.d_rope),
        "kv_up": 2 * n * a.kv_lora_rank * a.n_head * (a.d_nope + a.d_value),
        "core": of_core * n * r.length,
        "output": 2 * n * a.n_head * a.d_value * a.d_model,
    }


def flops_backward(a: Fields, r: Run) -> Values:
    """Each product twice; scores that a kernel computes again have a query's channels."""
    return doubled(flops(a, r, scaled_dot_product.backward_products(r) - 2))


@valid_if(no_indexer)
def cache(a: Fields, r: Run) -> Values:
    """Bytes of the latent and of the one rotary key of each token (DeepSeek-AI 2024, §2.1.3)."""
    return {"": bytes_of(r.dtype) * tokens(r) * (a.kv_lora_rank + a.d_rope)}


@valid_if(no_indexer, values_fit_kernel, norm.is_one_operation, own_tables)
def forward(a: Fields, r: Run, place: Place) -> Timeline:
    """Return the timeline of the forward pass, from the input to the output and all that is saved.

    Queries; latent and rotary key, to which RoPE is applied; norm; keys and values; RoPE of the
    queries; queries and keys concatenated; scaled dot-product attention, a copy of its result that
    is contiguous per token, output.
    """
    saved_bytes, h = saved(a, r), heads(a)
    size, math = bytes_of(r.dtype) * tokens(r), int(r.attention_kernel == "math")
    queries, stored = size * a.n_head * h.d_key, size * a.n_head * h.d_stored
    rotary, down = size * a.d_rope, size * (a.kv_lora_rank + a.d_rope)
    copied = scaled_dot_product.result_apart(h, r) * size * a.n_head * a.d_value
    of_query, of_key, of_value = scaled_dot_product.kept_inputs(h, r)
    freed = (2 - of_query + 1 - of_key) * queries + rotary + (1 - of_value) * stored
    return [
        Allocation(
            "query and kv_down",
            saved_bytes["query_norm"] + saved_bytes["query_up"] + queries + down,
        ),
        *rope.forward(r, 1, a.d_rope, a.d_rope),
        Allocation(
            "kv_norm and kv_up", saved_bytes["kv_norm"] - down + saved_bytes["kv_up"] + stored
        ),
        *rope.forward(r, a.n_head, a.d_rope, a.d_rope),
        Allocation("query concatenation", queries, a.n_head * rotary),
        Allocation("key concatenation", queries),
        *scaled_dot_product.forward(h, r),
        Allocation("result contiguous per token", copied),
        Allocation("output", size * a.d_model, freed + math * copied),
    ]


@valid_if(no_indexer, values_fit_kernel, norm.is_one_operation, own_tables)
def backward(a: Fields, r: Run, place: Place) -> Timeline:
    """Return the timeline of the backward pass.

    Output, scaled dot-product attention; the rotary key, summed over the heads, if there are
    several; RoPE of the queries; keys and values; their latent; RoPE of the key; queries and their
    latent, if any.
    """
    saved_bytes, h, again = saved(a, r), heads(a), computed_again(r)
    size, n = bytes_of(r.dtype), tokens(r)
    states, rotary = size * n * a.d_model, size * n * a.d_rope
    queries, values, stored = (
        size * n * a.n_head * width for width in (h.d_key, h.d_value, h.d_stored)
    )
    latent, down = size * n * a.kv_lora_rank, size * n * (a.kv_lora_rank + a.d_rope)
    copied, several = scaled_dot_product.apart(h, r), positive(a.n_head - 1)
    output = size * a.n_head * a.d_value * a.d_model
    kv_up, kv_down = size * a.kv_lora_rank * a.n_head * h.d_stored, size * a.d_model
    kv_down *= a.kv_lora_rank + a.d_rope
    saved_input = states, again * (1 - place.is_first)
    freed = (1 - several) * (queries - rotary)
    added = times(place.accumulates, accumulate(states))
    return [
        *linear_backward("output", output, 0, values, place.gradient, saved_bytes["output"], again),
        *scaled_dot_product.backward(h, r),
        Allocation("rotary key gradient summed over heads", several * rotary),
        *rope.backward(r, a.n_head, a.d_rope, a.d_rope, frees_gradient=0),
        Allocation("key and value gradients concatenated", stored, several * queries + values),
        Allocation("their copy contiguous per token", copied * stored, copied * stored),
        *linear_backward("kv_up", kv_up, 0, latent, stored, saved_bytes["kv_up"], again),
        *norm.backward(a, r, width=a.kv_lora_rank),
        Allocation("rotary key before RoPE", 0, rotary),
        *rope.backward(r, 1, a.d_rope, a.d_rope),
        Allocation("key gradient", 0, freed),
        Allocation("latent and rotary key gradients concatenated", down, down),
        *linear_backward("kv_down", kv_down, 0, states, down, 0, again, added),
        Allocation("query gradients concatenated", queries, queries + a.n_head * rotary),
        Allocation("their copy contiguous per token", copied * queries, copied * queries),
        *_query_backward(a, r, queries, saved_input),
    ]


def _query_backward(a: Fields, r: Run, queries, saved_input: tuple[Any, Any]) -> Timeline:
    """Return the timeline from the gradient of the queries to that of the states, added up.

    Through one matrix, or through two and the norm between. `saved_input`: bytes freed with the
    first matrix, and 1 where the layer is computed again, whose first operation frees them.
    """
    has_two, size, again = positive(a.q_lora_rank), bytes_of(r.dtype), computed_again(r)
    d_query = a.n_head * (a.d_nope + a.d_rope)
    states, latent = size * tokens(r) * a.d_model, size * tokens(r) * a.q_lora_rank
    weight, up, down = (
        size * n for n in (a.d_model * d_query, a.q_lora_rank * d_query, a.d_model * a.q_lora_rank)
    )
    added = accumulate(states)
    whole = linear_backward("query", weight, 0, states, queries, *saved_input, added)
    in_two = [
        *linear_backward("query_up", up, 0, latent, queries, latent, again),
        *norm.backward(a, r, width=a.q_lora_rank),
        *linear_backward("query_down", down, 0, states, latent, *saved_input, added),
    ]
    return [*times(1 - has_two, whole), *times(has_two, in_two)]


def program(a: Fields, r: Run):
    """States (batch, length, d_model) to states of the same shape, through latents."""
    if r.rope_tables != "layer":
        raise NoProgramError(f"rope_tables: {r.rope_tables} of MLA")
    has_rope = a.position == "rotary"
    d_query = a.n_head * (a.d_nope + a.d_rope)
    if a.q_lora_rank:
        query_down = make_linear("query_down", a.d_model, a.q_lora_rank)
        query_norm = norm.make("query_norm", a, r, (a.q_lora_rank,))
        query_up = make_linear("query_up", a.q_lora_rank, d_query)
    else:
        query = make_linear("query", a.d_model, d_query)
    kv_down = make_linear("kv_down", a.d_model, a.kv_lora_rank + a.d_rope)
    kv_norm = norm.make("kv_norm", a, r, (a.kv_lora_rank,))
    kv_up = make_linear("kv_up", a.kv_lora_rank, a.n_head * (a.d_nope + a.d_value))
    core = make_part("core", scaled_dot_product.program, r)
    output = make_linear("output", a.n_head * a.d_value, a.d_model)
    hidden_scores = _indexer(a, r) if a.n_index_head else lambda x, queries: None
    cache = kv_cache.declare(r, [(1, a.kv_lora_rank), (1, a.d_rope)])

    def forward(x):
        latent_query = query_norm(query_down(x)) if a.q_lora_rank else x
        q = query_up(latent_query) if a.q_lora_rank else query(x)
        bias = hidden_scores(x, latent_query)
        del latent_query
        q = heads_of(q, a.n_head, a.d_nope + a.d_rope)
        parts = q.split((a.d_nope, a.d_rope)) if has_rope else None
        latent, k_rope = kv_down(x).split((a.kv_lora_rank, a.d_rope))
        k_rope = k_rope.unsqueeze(1)  # (batch, 1, length, d_rope)
        if has_rope:
            k_rope = rope.rotate(k_rope, a.d_rope)
        if cache is not None:
            latent, k_rope = cache.append(latent.unsqueeze(1), k_rope)
            latent = latent.squeeze(1)
        stored = heads_of(kv_up(kv_norm(latent)), a.n_head, a.d_nope + a.d_value)
        k_nope, v = stored.split((a.d_nope, a.d_value))
        del stored
        if parts is not None:
            q_nope, q_rope = parts
            q = cat((q_nope, rope.rotate(q_rope, a.d_rope)))
        k = cat((k_nope, k_rope.expand((-1, a.n_head, -1, -1))))
        y = core(q, k, v, bias)
        return output(y.transpose(1, 2).flatten(2))

    return forward


def _indexer(a: Fields, r: Run):
    """Make the function of states and latent queries that hides all tokens that are not selected.

    Training sets the indexer by a loss of its own, so that no gradient flows through it.
    """
    if Active.tape.cache_length is not None:
        raise NotComputedError("n_index_head: the cache of an indexer's keys")
    if r.attention_kernel not in ("math", "written_out"):
        raise NoProgramError(f"attention_kernel: {r.attention_kernel} of selected tokens")
    index_query = make_linear("index_query", a.q_lora_rank, a.n_index_head * a.d_index)
    index_key = make_linear("index_key", a.d_model, a.d_index)
    index_norm = make_part("index_norm", _layer_norm, a.d_index)
    index_weight = make_linear("index_weight", a.d_model, a.n_index_head)

    def hidden_scores(x, queries):
        """Return what is added to the scores, (batch, 1, length, length)."""
        with Active.tape.without_graph():
            length = x.shape[1]
            q = heads_of(index_query(queries), a.n_index_head, a.d_index)
            k = index_norm(index_key(x)).unsqueeze(1)
            # (batch, n_index_head, length, length)
            scores = _products(rope.rotate(q, a.d_rope), rope.rotate(k, a.d_rope))
            weights = index_weight(x).transpose(1, 2).unsqueeze(-1)
            ranks = (weights * scores.relu()).sum([1]) + causal_bias(length, x.dtype)
            chosen = ranks.topk(min(a.n_selected, length))[1]
            hidden = without_gradient(without_gradient(ranks))  # -inf, and 0 where chosen
        return (hidden + causal_bias(length, x.dtype)).unsqueeze(1)

    return hidden_scores


def _products(q, k):
    """Multiply queries by keys: an operator, which holds both until it is done."""
    return q @ k.transpose(-1, -2)


def _layer_norm(width):
    weight, bias = parameter("weight", width), parameter("bias", width)
    return lambda x: layer_norm(x, 1, weight, bias)
