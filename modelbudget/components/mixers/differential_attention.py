"""Differential attention: the difference of two softmaxes, of pairs of heads.

Ye et al. 2024 (Differential Transformer), §2.1; transformers, `DiffLlamaAttention` in
models/diffllama/modeling_diffllama.py. Each head attends to both halves of the values; a learned
factor weighs the second half of the heads against the first.
"""

from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.components import kv_cache, norm, rope, scaled_dot_product
from modelbudget.components.attention.attention_fields import AttentionFields
from modelbudget.components.mixers import attention
from modelbudget.memory.parameter_tensors import Tensor, counted, matrix
from modelbudget.operations.joining import cat, repeat
from modelbudget.operations.linear_layer import make_linear
from modelbudget.operations.part import make_part, parameter
from modelbudget.operations.views import heads_of

GROUP = "attention"
ONLY_WITH = {"projections": "separate", "autocast": "none"}
SIZES = ()
FIELDS = AttentionFields


def tensors(a: Fields) -> list[Tensor]:
    """Return four vectors that make the factor (§2.1, eq. 2) as one matrix; those of attention."""
    return [matrix("factor", 4, a.d_head), *attention.tensors(a)]


parameters = counted(tensors)


def program(a: Fields, r: Run):
    """States (batch, length, d_model) to states of the same shape."""
    d_query, d_key = a.n_head * a.d_head, a.n_kv_head * a.d_head
    factor = parameter("factor", 4, a.d_head)
    query = make_linear("query", a.d_model, d_query, a.query_bias)
    key = make_linear("key", a.d_model, d_key, a.key_bias)
    value = make_linear("value", a.d_model, d_key, a.value_bias)
    output = make_linear("output", d_query, a.d_model, a.output_bias)
    core = make_part("core", scaled_dot_product.program, r)
    d_rotary = (a.d_rotary or a.d_head) if a.position == "rotary" else 0
    cache = kv_cache.declare(r, [(a.n_kv_head, a.d_head)] * 2)

    def forward(x):
        q = heads_of(query(x), a.n_head, a.d_head)
        k, v = (heads_of(projection(x), a.n_kv_head, a.d_head) for projection in (key, value))
        if d_rotary:
            q, k = (rope.rotate(y, d_rotary) for y in (q, k))
        if cache is not None:
            k, v = cache.append(k, v)
        # Each half of the values is that of all heads: (batch, n_kv_head, length, d_head).
        halves = (repeat(half, (1, 2, 1, 1)) for half in v.chunk(2, 1))
        both = cat([core(q, k, half) for half in halves])
        first, second = both.chunk(2, 1)
        positive, negative = (pair.prod(0).sum([0]).exp() for pair in factor.chunk(2, 0))
        result = first - (positive - negative + 0.8) * second
        result = 0.2 * norm.rms_norm(r)(result, 1, None)
        return output(result.transpose(1, 2).flatten(2))

    return forward
