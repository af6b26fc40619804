"""Mixture of attention heads (MoA): queries and output projections of experts (JetMoE).

Zhang et al. 2022 (arXiv 2210.05144), §3; Shen et al. 2024 (JetMoE, arXiv 2404.07413), §3.2;
transformers, `JetMoeAttention` in models/jetmoe/modeling_jetmoe.py. An expert has a query for each
head of keys and values, which all experts share.
"""

from modelbudget.architecture.base import Size
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.components import kv_cache, rope, scaled_dot_product
from modelbudget.components.attention.attention_fields import AttentionFields
from modelbudget.components.contract import Values
from modelbudget.operations.elementwise import without_gradient
from modelbudget.operations.joining import index_add, repeat
from modelbudget.operations.joining import rows as take_rows
from modelbudget.operations.linear_layer import make_linear
from modelbudget.operations.memory_layout import at_least_float32
from modelbudget.operations.part import NoProgramError, make_part, parameter
from modelbudget.operations.products import grouped_mm, linear
from modelbudget.operations.reductions import softmax, sort
from modelbudget.operations.tape import Active, empty
from modelbudget.operations.views import heads_of

GROUP = "attention"
ONLY_WITH = {"rope_tables": "layer", "autocast": "none"}
SIZES = ("n_query_expert", "n_query_expert_per_token")


class MixtureOfAttentionHeadsFields(AttentionFields):
    n_query_expert: Size = 0
    n_query_expert_per_token: Size = 0


FIELDS = MixtureOfAttentionHeadsFields


def _parameters(a: Fields, n_expert) -> Values:
    inner = a.n_kv_head * a.d_head
    return {
        "": a.d_model,
        "router": a.n_query_expert * a.d_model,
        "query": n_expert * a.d_model * inner,
        "key_value": 2 * a.d_model * inner,
        "output": n_expert * inner * a.d_model,
    }


def parameters(a: Fields) -> Values:
    """Count a bias of the output, the router, the experts' matrices, keys and values (§3.2)."""
    return _parameters(a, a.n_query_expert)


def active_parameters(a: Fields) -> Values:
    """Count those that one token uses."""
    return _parameters(a, a.n_query_expert_per_token)


def program(a: Fields, r: Run):
    """States (batch, length, d_model) to states of the same shape."""
    if Active.tape.adapter is not None or Active.tape.weight_format is not None:
        raise NoProgramError("adapter or weights: of mixture_of_attention_heads")
    inner, n_chosen = a.n_kv_head * a.d_head, a.n_query_expert_per_token
    bias = parameter("bias", a.d_model)
    choose = make_part("router", _router, a)
    query = make_part("query", _experts, a.n_query_expert, a.d_model, inner)
    key_value = make_linear("key_value", a.d_model, 2 * inner)
    output = make_part("output", _experts, a.n_query_expert, inner, a.d_model)
    core = make_part("core", scaled_dot_product.program, r)
    d_rotary = a.d_head if a.position == "rotary" else 0
    cache = kv_cache.declare(r, [(a.n_kv_head, a.d_head)] * 2)

    def forward(x):
        batch, length, _ = x.shape
        tokens = x.flatten(0, 1)  # (tokens, d_model)
        weights, chosen = choose(tokens)
        _, order = sort(chosen.flatten())  # (token, choice) pairs, by expert
        del _
        owner = without_gradient(order)
        q = in_order_of_tokens(query(take_rows(tokens, owner)), order)
        q = q.view((batch, length, n_chosen * inner))
        q = heads_of(q, n_chosen * a.n_kv_head, a.d_head)
        k, v = (heads_of(y, a.n_kv_head, a.d_head) for y in key_value(x).chunk(2))
        if d_rotary:
            q, k = (rope.rotate(y, d_rotary) for y in (q, k))
        if cache is not None:
            k, v = cache.append(k, v)
        k, v = (repeat(y, (1, n_chosen, 1, 1)) for y in (k, v))
        result = core(q, k, v).transpose(1, 2)  # (batch, length, n_head, d_head)
        result = result.flatten(2).unflatten(2, (n_chosen, inner))
        outputs = output(take_rows(result.flatten(0, 2), order))
        weighted = outputs * take_rows(weights.flatten(), order).unsqueeze(1)
        y = index_add(empty(tokens.shape, tokens.dtype), owner, weighted)
        return y.view(x.shape) + bias

    def in_order_of_tokens(rows, order):
        return index_add(empty(rows.shape, rows.dtype), order, rows)

    return forward


def _router(a: Fields):
    """Tokens (n, d_model) to weights and numbers of their experts, both (n, chosen)."""
    weight = parameter("weight", a.n_query_expert, a.d_model)

    def forward(tokens):
        logits = linear(tokens, weight).to(at_least_float32(tokens.dtype))
        largest, chosen = logits.topk(a.n_query_expert_per_token)
        return softmax(largest).to(tokens.dtype), chosen

    return forward


def _experts(n_expert, d_in, d_out):
    """Make a linear layer for each expert, stacked: one tensor for all experts."""
    weight = parameter("weight", n_expert, d_out, d_in)
    return lambda x: grouped_mm(x, weight, None, None)
