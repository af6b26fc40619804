"""Causal attention: query, key, value and output projections, with GQA or MQA if wanted."""

from modelbudget.architecture.formula_arguments import Fields
from modelbudget.components import norm
from modelbudget.components.attention.attention_fields import CONSTRAINTS, AttentionFields
from modelbudget.components.attention.attention_layout import d_gate, n_normalised, position_of
from modelbudget.components.attention.attention_program import program
from modelbudget.components.attention.attention_step import (
    backward,
    cache,
    flops,
    flops_backward,
    forward,
    saved,
)
from modelbudget.components.weight_formats import Matrix
from modelbudget.memory.parameter_tensors import Tensor, counted, linear_tensors, matrix, vector

GROUP = "attention"
SIZES = ()
DIVIDED = ("n_head", "n_kv_head")
FUSES_GRADIENTS = True
FIELDS = AttentionFields


def _normalised_heads(a: Fields) -> tuple:
    """Return of how many heads norms of queries and keys have parameters."""
    if a.qk_norm == "shared":
        return 1, 1
    return n_normalised(a, a.n_head), n_normalised(a, a.n_kv_head)


def tensors(a: Fields) -> list[Tensor]:
    """Four projections (Vaswani et al. 2017, §3.2.2; grouped heads: Ainslie et al. 2023, §2.2).

    Queries and output have n_head heads of d_head, keys and values n_kv_head of them. One matrix
    or three makes no difference to the count. Norms of queries and keys: Dehghani et al. 2023,
    §2 (a scale shared by the heads: Qwen 3; one for each head: StableLM 2 12B; over all heads:
    OLMo 2). Sinks: gpt-oss model card. Gate: Qiu et al. 2025 (Gated Attention), §2.2; Qwen3-Next's
    code has it in the query's matrix. One for each head: LFM3's code. Norm of the result: Wang et
    al. 2022 (Magneto), §2. Relative positions: a fifth matrix, from sinusoids
    of the distance to keys, and two biases of queries (Dai et al. 2019, §3.3).
    """
    query, key = a.n_head * a.d_head, a.n_kv_head * a.d_head
    relative = int(position_of(a) == "relative")
    all_tensors = [
        Tensor("content_bias", query, relative),
        Tensor("position_bias", query, relative),
        vector("sinks", a.n_head, a.sinks),
        *linear_tensors("query", a.d_model, query, a.query_bias),
        matrix("gate", d_gate(a), a.d_model, a.attention_gate),
        vector("gate", d_gate(a), a.attention_gate * a.query_bias),
        *linear_tensors("key", a.d_model, key, a.key_bias),
        *linear_tensors("value", a.d_model, key, a.value_bias),
        *linear_tensors("output", query, a.d_model, a.output_bias),
    ]
    if a.qk_norm != "none":
        for name, n in zip(("query_norm", "key_norm"), _normalised_heads(a), strict=True):
            is_matrix = a.qk_norm == "separate"
            of_heads = matrix(name, n, a.d_head) if is_matrix else vector(name, n * a.d_head)
            all_tensors += [
                of_heads._replace(is_there=is_there) for is_there in (a.norm_scale, a.qk_norm_bias)
            ]
    all_tensors += norm.tensors(a, "norm", a.inner_norm, norm.whole_width(a, query))
    return [*all_tensors, Tensor("position", a.d_model * query, relative)]


parameters = counted(tensors)


def matrices(a: Fields) -> list[Matrix]:
    query, key = a.n_head * a.d_head, a.n_kv_head * a.d_head
    relative = int(position_of(a) == "relative")
    return [
        Matrix("query", a.d_model, query, bias=a.query_bias),
        Matrix("gate", a.d_model, d_gate(a), a.attention_gate, bias=a.query_bias),
        Matrix("key", a.d_model, key, bias=a.key_bias),
        Matrix("value", a.d_model, key, bias=a.value_bias),
        Matrix("output", query, a.d_model, bias=a.output_bias),
        Matrix("position", a.d_model, query, relative),
    ]
