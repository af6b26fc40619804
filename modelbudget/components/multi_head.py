"""Multi-head attention of encoders and encoder–decoders.

Every query head has its own keys and values, of its own sequence or of another (cross-attention).
"""

from modelbudget.architecture.base import Architecture, Count, Parts
from modelbudget.architecture.constraint import Constraint
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.components import kv_cache, rope, scaled_dot_product
from modelbudget.operations.linear_layer import make_linear
from modelbudget.operations.views import heads_of

WHOLE_LAYERS = Constraint(
    "recompute in ('none', 'full')",
    "recompute = '{recompute}': not known of encoders; allowed: none, or full, a layer at a time",
)
"""Of models with these parts: layers are computed again as a whole, or not."""


class MultiHeadFields(Architecture):
    d_model: Count
    n_head: Parts
    d_head: Count
    d_value: Count
    attention_bias: bool = True
    key_bias: bool = True


def parameters(a) -> dict:
    """Count the parameters of the four projections (Vaswani et al. 2017, §3.2.2).

    W^Q and W^K have d_k columns a head, W^V has d_v.
    """
    d_query, d_value = a.n_head * a.d_head, a.n_head * a.d_value
    bias = a.attention_bias * d_query
    return {
        "query": a.d_model * d_query + bias,
        "key": a.d_model * d_query + a.key_bias * bias,
        "value": a.d_model * d_value + a.attention_bias * d_value,
        "output": d_value * a.d_model + a.attention_bias * a.d_model,
    }


def program(a: Fields, r: Run, rotary: bool = False, keeps=0, window=0):
    """States (batch, length, d_model) to the same shape; `source`: other states to attend.

    Inference keeps keys and values of `keeps` tokens, those of a source from the first token on; of
    a `window` no more than its tokens.
    `mask` is added to the scores, (…, length, source length), or true where a query may look.
    """
    d_query, d_value = a.n_head * a.d_head, a.n_head * a.d_value
    bias = a.attention_bias
    query = make_linear("query", a.d_model, d_query, bias)
    key = make_linear("key", a.d_model, d_query, bias and a.key_bias)
    value = make_linear("value", a.d_model, d_value, bias)
    output = make_linear("output", d_value, a.d_model, bias)
    attend = scaled_dot_product.program(r)
    widths = [(a.n_head, a.d_head), (a.n_head, a.d_value)]
    cache = kv_cache.declare(r, widths, window, keeps) if keeps else None

    def forward(x, source=None, causal=False, mask=None):
        if cache is not None:
            return with_cache(cache, x, source, causal and x.shape[1] > 1, mask)
        source = x if source is None else source
        q, k, v = (by_head(y) for y in (query(x), key(source), value(source)))
        q, k = rotated(q, k)
        return result(q, k, v, mask, causal)

    def with_cache(cache, x, source, causal, mask):
        q = by_head(query(x))
        if source is not None and cache.length:
            k, v = cache.tensors
        else:
            source = x if source is None else source
            k, v = by_head(key(source)), by_head(value(source))
            q, k = rotated(q, k)
            k, v = cache.append(k, v)
        return result(q, k, v, mask, causal)

    def rotated(q, k):
        return (rope.rotate(q, a.d_head), rope.rotate(k, a.d_head)) if rotary else (q, k)

    def result(q, k, v, mask, causal):
        x = attend(q, k, v, mask, causal and mask is None)  # live to the end
        return output(x.transpose(1, 2).flatten(2))

    def by_head(x):
        return heads_of(x, a.n_head, x.shape[2] // a.n_head)

    return forward
