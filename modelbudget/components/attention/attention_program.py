"""Attention as a program: queries, keys and values, RoPE, a kernel, the output projection."""

from functools import partial

from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.run_values import MASKS, fuses_gradients
from modelbudget.common.attributes import with_attributes
from modelbudget.components import kv_cache, norm, rope, scaled_dot_product
from modelbudget.components.attention.attention_layout import n_normalised
from modelbudget.components.position import by_key, causal_bias, sinusoids
from modelbudget.operations.joining import cat, pad
from modelbudget.operations.joining import rows as take_rows
from modelbudget.operations.linear_layer import make_linear
from modelbudget.operations.norms import layer_norm
from modelbudget.operations.part import NoProgramError, make_part, parameter
from modelbudget.operations.tape import empty


def program(a: Fields, r: Run, window=0, has_rope: bool = True):
    """States (batch, length, d_model) to states of the same shape.

    `bias` is added to the scores: a mask of each sequence comes in a tuple, so that checkpointing
    does not save it. `rotation`: the tables of RoPE, if the model makes them for all layers. With a
    `window` a token attends itself and the window − 1 tokens before it. Without `has_rope` the
    tables are not read.
    """
    position = getattr(a, "position", "none")
    make_product = partial(make_linear, accumulates=bool(fuses_gradients(r)))
    d_query, d_key = a.n_head * a.d_head, a.n_kv_head * a.d_head
    has_gated_query = r.projections == "gated_query"
    is_packed = r.projections not in ("separate", "gated_query")
    is_relative = position == "relative"
    if is_relative:
        content_bias = parameter("content_bias", a.n_head, 1, a.d_head)
        position_bias = parameter("position_bias", a.n_head, 1, a.d_head)
    sinks = parameter("sinks", a.n_head) if a.sinks else None
    d_gate = a.n_head if a.gate_per_head else d_query
    if not is_packed:
        d_with_gate = d_query + has_gated_query * d_gate
        query = make_product("query", a.d_model, d_with_gate, a.query_bias)
    if a.attention_gate and not has_gated_query:
        gate = make_product("gate", a.d_model, d_gate, a.query_bias)
    if not is_packed:
        key = make_product("key", a.d_model, d_key, a.key_bias)
        value = make_product("value", a.d_model, d_key, a.value_bias)
    output = make_product("output", d_query, a.d_model, a.output_bias)
    d_inner = norm.whole_width(a, d_query)
    inner_norm = norm.make("norm", a, r, (d_inner,)) if a.inner_norm else None
    core = make_part("core", scaled_dot_product.program, r)
    query_norm = _head_norm("query_norm", a, r, a.n_head)
    key_norm = _head_norm("key_norm", a, r, a.n_kv_head)
    if is_relative:
        of_distances = make_product("position", a.d_model, d_query)
    if is_packed:  # made of the three afterwards, and so the last parameter
        query_key_value = make_product(
            "query_key_value", a.d_model, d_query + 2 * d_key, a.query_bias
        )
    d_rotary = (a.d_rotary or a.d_head) if position == "rotary" and has_rope else 0
    is_complex = d_rotary and r.rope_tables == "complex"
    table = rope.table_of_complex(r.length, d_rotary, r.dtype) if is_complex else None
    cache = kv_cache.declare(r, [(a.n_kv_head, a.d_head)] * 2, window)
    if cache is not None and position in MASKS and (window or is_relative):
        raise NoProgramError(f"position: {position} in inference")

    def forward(x, bias=None, rotation=None):
        q, k, v, of_gate, _held = project(x)
        if rotation is not None and table is not None:
            (places,) = rotation
            q, k = rope.rotate_complex((q, k), take_rows(table, places))
        elif rotation is not None and has_rope:
            _, cos, sin = rotation
            q, k = rope.rotate_with((q, k), cos, sin, r.rope_layout == "head", r.rope_dtype)
        elif d_rotary:
            q, k = rope.rotate(q, d_rotary), rope.rotate(k, d_rotary)
        if cache is not None:
            k, v = cache.append(k, v)
        if is_relative:
            bias = scores_of_distances(q, x) + causal_bias(x.shape[1], x.dtype)
            q = q + content_bias
        if isinstance(bias, tuple):
            (bias,) = bias
        elif window and window < q.shape[2]:
            near = causal_bias(q.shape[2], x.dtype, window)  # live to the end
            bias = near if bias is None else bias + near
        if sinks is not None:
            k, v, bias = with_sinks(q, k, v, bias)
        # No name for the core's result: it is freed where flatten copies it.
        result = core(q, k, v, bias).transpose(1, 2).flatten(2)
        if of_gate is not None:
            result = gated(result, of_gate.sigmoid())
        elif a.attention_gate:
            result = gated(result, gate(x).sigmoid())
        if inner_norm is not None:
            result = inner_norm(result)
        return output(result)

    def project(x):
        """Return queries, keys and values, each (batch, heads, length, d_head), and the gate.

        None for a gate that has a matrix of its own, or that there is not. Last comes what is live
        to the end: a result that is sliced has a name.
        """
        if not is_packed:
            if not has_gated_query:
                q, of_gate = by_head(query(x), a.n_head, query_norm), None
            else:
                q, of_gate = query(x).split((d_query, d_gate))
                q = by_head(q, a.n_head, query_norm)
            k = by_head(key(x), a.n_kv_head, key_norm)
            return q, k, by_head(value(x), a.n_kv_head), of_gate, None
        packed = query_key_value(x)
        q, k, v = parts_of(packed)
        q = by_head(q, a.n_head, query_norm)
        k = by_head(k, a.n_kv_head, key_norm)
        return q, k, by_head(v, a.n_kv_head), None, packed if r.projections == "sliced" else None

    def by_head(x, n_head, head_norm=None):
        """(batch, length, n_head · d_head) to (batch, n_head, length, d_head)."""
        x = x.unflatten(2, (n_head, a.d_head))
        if head_norm is not None:
            x = head_norm(x)
        return x.transpose(1, 2)

    def parts_of(packed):
        """Return queries, keys and values of the packed result (batch, length, sum of widths)."""
        if r.projections == "sliced":
            return [packed.narrow(-1, d_query), *(packed.narrow(-1, d_key, False) for _ in "kv")]
        parts = packed.split((d_query, d_key, d_key))
        return [part.contiguous() for part in parts] if r.projections == "copied" else parts

    def scores_of_distances(q, x):
        """Return products of queries and projected sinusoids (batch, n_head, length, length)."""
        distance = of_distances(sinusoids(x.shape[1], x.shape[2], x.dtype))
        distance = distance.unflatten(1, (a.n_head, a.d_head)).transpose(0, 1)
        scores = (q + position_bias) @ distance.transpose(-1, -2)
        return by_key(scores) * 0.5

    def gated(result, of_gate):
        if not a.gate_per_head:
            return result * of_gate
        heads = result.unflatten(2, (a.n_head, a.d_head))
        return (heads * of_gate.unsqueeze(3)).flatten(2)

    def with_sinks(q, k, v, bias):
        """One more key that every query of a head scores the same, and whose value is zero."""
        assert sinks is not None
        if bias is None and q.shape[2] > 1:
            bias = causal_bias(q.shape[2], q.dtype)
        elif bias is None:
            bias = empty((1, k.shape[2]), q.dtype)
        k, v = (pad(x, (*x.shape[:2], x.shape[2] + 1, x.shape[3])) for x in (k, v))
        bias = bias.expand((*bias.shape[:-3], a.n_head, *bias.shape[-2:]))
        column = sinks.unsqueeze(1).unsqueeze(2).expand((*bias.shape[:-1], 1))
        return k, v, cat((bias, column))

    return with_attributes(forward, reads_positions=True)


def _head_norm(name: str, a: Fields, r: Run, n_head):
    """Make the norm of (batch, length, n_head, d_head) that `qk_norm` names."""
    if a.qk_norm == "none":
        return None
    if a.qk_norm == "separate":
        return make_part(name, _separate_norm, a, r, n_head)
    if a.qk_norm == "joint":
        return make_part(name, _joint_norm, a, r, n_head)
    return norm.make(name, a, r, (a.d_head,), a.qk_norm_bias)


def _joint_norm(a: Fields, r: Run, n_head):
    """Normalise the heads of a token as one vector."""
    normalise = norm.program(a, r, (n_normalised(a, n_head) * a.d_head,), a.qk_norm_bias)

    def forward(x):
        return normalise(x.flatten(-2)).unflatten(-1, x.shape[-2:])

    return forward


def _separate_norm(a: Fields, r: Run, n_head):
    """Normalise each head separately, with its own scale (and shift)."""
    weight = parameter("weight", n_head, a.d_head) if a.norm_scale else None
    bias = parameter("bias", n_head, a.d_head) if a.qk_norm_bias else None

    def forward(x):
        x = norm.rms_norm(r)(x, 1, None) if a.norm == "rmsnorm" else layer_norm(x, 1, None, None)
        if weight is not None:
            x = x * weight
        return x if bias is None else x + bias

    return forward
