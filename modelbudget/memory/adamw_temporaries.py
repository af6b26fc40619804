"""The numbers in each tensor that gets a gradient, in the order in which modules hold them."""

from modelbudget.architecture.layer_groups import layer_groups
from modelbudget.architecture.operations import positive
from modelbudget.components import embedding

Tensors = list[tuple]
"""Numbers in a tensor, and whether it is there."""


def neighbours(a) -> list[tuple]:
    """Numbers in each tensor, in the one before it, and whether it is there. Of several layers
    that are alike one tells all.
    """
    found: list[tuple] = []
    last = _walk(_embedding(a), 0, found)
    last_of_model = 0
    for kind in layer_groups(a):
        layer = _layer(a, kind.second)
        last_of_kind = _walk(layer, last, found, kind.is_there)
        _walk(layer[:1], last_of_kind, found, kind.is_there * positive(a.n_layer - 1 - kind.first))
        is_last = kind.is_there * (1 - positive(a.n_layer - 1 - kind.last))
        last_of_model += is_last * last_of_kind
    _walk(_end(a), last_of_model, found)
    return found


def neighbours_of(tensors: Tensors) -> list[tuple]:
    """The same of these alone."""
    found: list[tuple] = []
    _walk(tensors, 0, found)
    return found


def _walk(tensors: Tensors, before, found: list[tuple], together=1):
    """Note each tensor with the one before it; give the last one's numbers."""
    for size, is_there in tensors:
        found.append((size, before, together * is_there))
        before = is_there * size + (1 - is_there) * before
    return before


def _embedding(a) -> Tensors:
    widths = embedding.factorised(a)
    return [
        (widths["embedding.token"], 1),
        (widths["embedding.projection"], positive(a.d_emb)),
        (embedding.position(a), int(a.position == "learned")),
    ]


def _layer(a, second: str) -> Tensors:
    two_norms = 1 - a.parallel * a.shared_norm
    n_after = 2 if a.norm_placement == "both" else 0
    part = _experts(a) if second == "experts" else of_mlp(a, a.d_ff)
    norms = [*_norm(a, 1), *_norm(a, two_norms), *n_after * _norm(a, 1)]
    mixer = _latent(a) if "latent" in a.mixers else [*_attention(a), *_head_norms(a)]
    return [*mixer, *part, *norms]


def _attention(a) -> Tensors:
    query, key = a.n_head * a.d_head, a.n_kv_head * a.d_head
    return [
        *_linear(a.d_model, query, a.query_bias),
        *_linear(a.d_model, key, a.key_bias),
        *_linear(a.d_model, key, a.value_bias),
        *_linear(query, a.d_model, a.output_bias),
    ]


def _latent(a) -> Tensors:
    own, d_query = positive(a.q_lora_rank), a.n_head * (a.d_nope + a.d_rope)
    return [
        (a.d_model * d_query, 1 - own),
        (a.d_model * a.q_lora_rank, own),
        *_norm(a, own, a.q_lora_rank),
        (a.q_lora_rank * d_query, own),
        (a.d_model * (a.kv_lora_rank + a.d_rope), 1),
        *_norm(a, 1, a.kv_lora_rank),
        (a.kv_lora_rank * a.n_head * (a.d_nope + a.d_value), 1),
        (a.n_head * a.d_value * a.d_model, 1),
    ]


def _head_norms(a) -> Tensors:
    if a.qk_norm == "none":
        return []
    n_query, n_key = (1, 1) if a.qk_norm == "shared" else (a.n_head, a.n_kv_head)
    switches = a.norm_scale, a.qk_norm_bias
    return [(n * a.d_head, is_there) for n in (n_query, n_key) for is_there in switches]


def of_mlp(a, d_ff, n=1) -> Tensors:
    """Of n experts together, if there are several."""
    up = _linear(a.d_model, n * d_ff, a.up_bias)
    (down, _), _ = _linear(n * d_ff, a.d_model, 0)
    return [
        *((size, a.gated * is_there) for size, is_there in up),
        *up,
        (down, 1),
        (n * a.d_model, a.down_bias),
    ]


def _experts(a) -> Tensors:
    shared = positive(a.d_shared)
    return [
        *_linear(a.d_model, a.n_expert, int(a.router_bias == "logit")),
        *of_mlp(a, a.d_expert, a.n_expert),
        *((size, shared * is_there) for size, is_there in of_mlp(a, a.d_shared)),
        (a.d_model, a.shared_gate),
    ]


def _linear(d_in, d_out, bias) -> Tensors:
    return [(d_in * d_out, 1), (d_out, bias)]


def _norm(a, is_there, width=None) -> Tensors:
    width = a.d_model if width is None else width
    return [(width, is_there * a.norm_scale), (width, is_there * a.norm_bias)]


def _end(a) -> Tensors:
    widths = embedding.factorised(a)
    return [
        *_norm(a, a.embedding_norm),
        *_norm(a, a.final_norm),
        (widths["embedding.token"], 1 - a.tied),
        (embedding.rows(a), a.head_bias),
        (widths["head.projection"], positive(a.d_emb)),
    ]
