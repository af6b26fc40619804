"""Gated DeltaNet (Yang et al. 2024, arXiv 2412.06464), as in Qwen3-Next.

The formulas are of one implementation: plain PyTorch, chunk by chunk
(`modules/mixers/gated_deltanet.py`). The peak of training has none.
"""

from types import SimpleNamespace
from typing import ClassVar

from pydantic import Field

from modelbudget.architecture.base import Architecture, Count, Size
from modelbudget.architecture.constraint import Constraint
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.operations import ceil_div, largest, positive
from modelbudget.architecture.run_values import bytes_of, exact_bytes, tokens
from modelbudget.components import norm, recurrent_state
from modelbudget.components.contract import ALONE, Place, Values, doubled, valid_if
from modelbudget.components.passes import recomputed_of
from modelbudget.memory.parameter_tensors import Tensor
from modelbudget.memory.timeline import Allocation, Timeline, times, within
from modelbudget.operations.elementwise import (
    add,
    contiguous,
    exp,
    masked_fill,
    mul,
    neg,
    rsqrt,
    sigmoid,
    silu,
    softplus,
    sub,
    to,
)
from modelbudget.operations.joining import cat, pad, stack
from modelbudget.operations.linear_layer import make_linear
from modelbudget.operations.memory_layout import at_least_float32
from modelbudget.operations.part import make_part, parameter
from modelbudget.operations.products import matmul, solve_triangular
from modelbudget.operations.reductions import cumsum, sum_over
from modelbudget.operations.tape import empty, steps
from modelbudget.operations.views import (
    expand,
    flatten,
    narrow,
    select,
    split,
    transpose,
    unflatten,
    unsqueeze,
)

GROUP = "state space"
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


def fused_norm(a: Fields, r: Run):
    """Return 1 where RMSNorm is one operation; this mixer has one whatever the norm of layers."""
    return int(r.norm_kernel == "fused")


def _d_values(a: Fields):
    return a.n_linear_head * a.d_linear_value


def _d_mixed(a: Fields):
    """Channels of queries, keys and values together."""
    return 2 * a.n_linear_key_head * a.d_linear_key + _d_values(a)


def parameters(a: Fields) -> Values:
    """Count the parameters of each component (Yang et al. 2024, §3.4).

    Queries, keys and values through a convolution; β, decay (a rate and a step for each head, as in
    Mamba-2), gate, a norm of each head, output.
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
        decay=exact * r.batch * a.n_linear_head,
        state=exact * r.batch * a.n_linear_head * a.d_linear_key * a.d_linear_value,
    )


@valid_if(fused_norm)
def saved(a: Fields, r: Run, place: Place = ALONE) -> Values:
    """Return the bytes saved for backward by each component.

    Inputs of the projections and of the convolution; queries, keys and values before and after the
    activation; factors of the delta rule; the gate and what it multiplies.
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
    """Return the bytes saved for backward by the chunked delta rule.

    Within chunks: queries, keys, keys times β; decays from token to token, both products before and
    after them; the solution of the triangular system for the values; the causal mask. Of several
    chunks also the decays from the start, and the solution for the state before. From the second
    chunk on: values, keys read and written, decays to the end, states.
    """
    c = _chunked(a, r)
    later = c.n - 1
    within = 3 * c.query + 5 * c.scores + c.value + CHUNK * CHUNK
    within = within + positive(later) * (c.scalar + c.query)
    between = c.one_value + 2 * c.one_query + c.one_scalar + c.state
    return within + later * between + largest(c.n - 2, 0) * c.decay


def flops(a: Fields, r: Run) -> Values:
    """Count the FLOPs of a forward pass.

    Projections; keys by keys, queries by keys and scores by values within chunks; old values,
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
    """Count the FLOPs of a backward pass.

    Each product twice; and one product for the gradient of each triangular system, of which one
    chunk alone needs the values' only.
    """
    c, found = _chunked(a, r), doubled(flops(a, r))
    systems = 2 * r.batch * a.n_linear_head * c.n * CHUNK * CHUNK
    return found | {
        "": found[""] + systems * (positive(c.n - 1) * a.d_linear_key + a.d_linear_value)
    }


flops_recomputed = recomputed_of(flops)


def flops_decode(a: Fields, r: Run) -> Values:
    """Projections of one token; its key and its query read the state."""
    reads = 2 * 2 * r.batch * a.n_linear_head * a.d_linear_key * a.d_linear_value
    return _projections(a, 2 * r.batch) | {"": reads}


def cache(a: Fields, r: Run) -> Values:
    """Return the bytes of the recurrent state and of the tokens that the convolution spans.

    The state of each head is in at least single precision. The size does not depend on the number
    of tokens.
    """
    span = bytes_of(r.dtype) * r.batch * _d_mixed(a) * a.d_linear_convolution
    return {"": _chunked(a, r).state, "convolution": span}


@valid_if(fused_norm)
def inference(a: Fields, r: Run, new) -> Timeline:
    """Several tokens chunk by chunk, or one after those of the cache; the state moves there."""
    chunked = positive(new - 1)
    padded = chunked * CHUNK * ceil_div(new, CHUNK) + (1 - chunked) * new
    size, exact = bytes_of(r.dtype), exact_bytes(r.dtype)
    n = r.batch * new
    values, states = size * n * _d_values(a), size * n * a.d_model
    c = _chunked(a, SimpleNamespace(batch=r.batch, length=padded, dtype=r.dtype))
    scalar = exact * r.batch * padded * a.n_linear_head
    query, value = scalar * a.d_linear_key, scalar * a.d_linear_value
    mixed, half = exact * r.batch * padded * _d_mixed(a), int(size < exact)
    rms = SimpleNamespace(norm="rmsnorm", norm_scale=1)
    return [
        *_inputs(a, r, new, padded),
        *times(chunked, _by_chunk(c, query, value, scalar)),
        *times(1 - chunked, _by_token(c, value, scalar)),
        Allocation("query, key, value, β, decay freed", 0, 2 * query + mixed + 2 * scalar),
        Allocation("result in the run's dtype", half * values),
        *norm.inference(rms, r, new, _d_values(a), vectors=n * a.n_linear_head),
        Allocation("result before the norm", 0, value + half * values),
        Allocation("gate", values),
        Allocation("SiLU", values, values),
        Allocation("gated result", values, values),
        Allocation("output", states, 2 * values),
    ]


def _inputs(a: Fields, r: Run, new, padded) -> Timeline:
    """Projections, convolution, normalised queries and keys, β and decay, of padded tokens."""
    size, exact = bytes_of(r.dtype), exact_bytes(r.dtype)
    half, span, width = int(size < exact), a.d_linear_convolution, r.batch * _d_mixed(a)
    projected, seen = size * width * new, size * width * (span + new)
    given, convolved = size * width * (padded + span - 1), size * width * padded
    taps = positive(span - 1) * 2 * convolved
    heads = exact * r.batch * padded * a.n_linear_key_head
    query = heads * a.d_linear_key
    one, exact_one = (bytes_ * r.batch * new * a.n_linear_head for bytes_ in (size, exact))
    rate, scalar = exact * a.n_linear_head, exact * r.batch * padded * a.n_linear_head
    grouped = positive(a.n_linear_head - a.n_linear_key_head)
    copied = 1 - (1 - grouped) * (1 - positive(padded - 1) * positive(a.d_linear_key - 1))
    shared = copied * scalar * a.d_linear_key
    normalised = [
        Allocation("squares", query),
        Allocation("squared lengths", heads, query),
        Allocation("squared lengths plus ε", heads, heads),
        Allocation("inverse lengths", heads, heads),
        Allocation("normalised", query, heads),
    ]
    return [
        Allocation("query, key, value", projected),
        Allocation("tokens that the convolution sees", seen),
        Allocation("padded tokens", given, seen),
        Allocation("first tap of the convolution", convolved),
        Allocation("other taps", taps, taps),
        Allocation("inputs of the convolution freed", 0, given + projected),
        Allocation("SiLU", convolved, convolved),
        Allocation("single precision", half * exact * width * padded, half * convolved),
        *within("query", normalised),
        Allocation("scaled query", query, query),
        *within("key", normalised),
        Allocation("β projection", one),
        Allocation("sigmoid", one, one),
        Allocation("β in single precision", half * exact_one, half * one),
        Allocation("decay projection", one),
        Allocation("step", one, one),
        Allocation("step in single precision", half * exact_one, half * one),
        Allocation("softplus", exact_one),
        Allocation("rate in single precision", half * rate),
        Allocation("exponential of the rate", rate, half * rate),
        Allocation("negative rate", rate, rate),
        Allocation("decay", exact_one, exact_one + rate),
        Allocation("padded β", scalar),
        Allocation("padded decay", scalar, 2 * exact_one),
        Allocation("query of each head", shared),
        Allocation("key of each head", shared, copied * 2 * query),
        Allocation("step freed", 0, exact_one),
    ]


def _by_chunk(c: SimpleNamespace, query, value, scalar) -> Timeline:
    """Within all chunks at once; then from chunk to chunk. The result stays live."""
    scores, mask = scalar * CHUNK, CHUNK * CHUNK
    second, third = positive(c.n - 1), positive(c.n - 2)
    held = 2 * value + scores + query + 2 * scalar + mask + c.state + c.one_query
    held += second * (c.state + c.one_value + c.one_query)
    return [
        Allocation("cumulative decay", scalar),
        Allocation("ones", mask),
        Allocation("causal mask", mask, mask),
        Allocation("decay between tokens", scores),
        Allocation("masked decay", scores),
        Allocation("exponential of the decay", scores, 2 * scores),
        Allocation("decay from the start", scalar),
        Allocation("key times β", query),
        Allocation("keys by keys", scores),
        Allocation("triangular system", scores, scores),
        Allocation("queries by keys", scores),
        Allocation("scores", scores, scores),
        Allocation("value times β", value),
        Allocation("new values", value, value),
        Allocation("decayed key", query),
        Allocation("keys of old values", query, query),
        Allocation("system, key times β, decay freed", 0, 2 * scores + query),
        Allocation("first output", c.one_value),
        *_written(c),
        Allocation("first state", c.state),
        *times(second, _next_chunk(c, 0)),
        Allocation("further outputs", third * (c.n - 3) * c.one_value),
        *times(third, _next_chunk(c, 1)),
        Allocation("result", value),
        Allocation("tensors of chunks freed", 0, held),
    ]


def _written(c: SimpleNamespace, before=0) -> Timeline:
    """Keys, decayed to the end of a chunk; those `before` are freed."""
    return [
        Allocation("decay to the end", c.one_scalar),
        Allocation("its exponential", c.one_scalar, c.one_scalar),
        Allocation("decayed keys", c.one_query, c.one_scalar + before),
    ]


def _next_chunk(c: SimpleNamespace, later: int) -> Timeline:
    """Return the timeline of a chunk that reads the state of the chunk before.

    `later`: 1 where that chunk has also read a state, whose results are freed here.
    """
    return [
        Allocation("old values", c.one_value),
        Allocation("corrected values", c.one_value, (1 + later) * c.one_value),
        Allocation("decayed queries", c.one_query, later * c.one_query),
        Allocation("output of the state", c.one_value),
        Allocation("output of the chunk", c.one_value),
        Allocation("output", c.one_value, 2 * c.one_value),
        *_written(c, c.one_query),
        Allocation("written", c.state, later * c.state),
        Allocation("decay of the state", c.decay),
        Allocation("decayed state", c.state, c.decay),
        Allocation("state", c.state, 2 * c.state),
    ]


def _by_token(c: SimpleNamespace, value, scalar) -> Timeline:
    """One token: decay the state, write the correction, read the result, which stays live."""
    return [
        Allocation("exponential of the decay", scalar),
        Allocation("decayed state", c.state, scalar),
        Allocation("old value", value),
        Allocation("difference", value, value),
        Allocation("correction", value, value),
        Allocation("written", c.state),
        Allocation("state", c.state, 2 * c.state),
        Allocation("result", value),
        Allocation("state and correction freed", 0, c.state + value),
    ]


TOKENS_PER_STEP = CHUNK
"""Of the program's loop over tokens."""


def program(a: Fields, r: Run):
    """States (batch, length, d_model) to states of the same shape.

    Several tokens chunk by chunk, one token after those of the cache by itself.
    """
    n_head, n_key_head = a.n_linear_head, a.n_linear_key_head
    d_key, d_value = a.d_linear_key, a.d_linear_value
    widths = [n_key_head * d_key, n_key_head * d_key, n_head * d_value]
    rate, step = parameter("rate", n_head), parameter("step", n_head)
    query_key_value = make_linear("query_key_value", a.d_model, sum(widths))
    convolve = make_part(
        "convolution", written_out_convolution, sum(widths), a.d_linear_convolution
    )
    beta_of = make_linear("beta", a.d_model, n_head)
    decay_of = make_linear("decay", a.d_model, n_head)
    gate = make_linear("gate", a.d_model, n_head * d_value)
    norm_ = make_part("norm", head_norm, r, d_value)
    output = make_linear("output", n_head * d_value, a.d_model)
    precise = at_least_float32(r.dtype)
    cache = recurrent_state.declare((n_head, d_key, d_value), dtype=precise)

    def forward(x):
        length = x.shape[1]
        by_token = cache if length == 1 else None
        padding = 0 if by_token else -length % CHUNK
        mixed = to(silu(convolve(query_key_value(x), padding)), precise)
        query, key, value = split(mixed, widths, 1)
        query = mul(normalised(query, n_key_head), 0.1)
        key = normalised(key, n_key_head)
        value = by_head(value, n_head)
        beta = to(sigmoid(beta_of(x)), precise)
        steps = to(add(decay_of(x), step), precise)
        decay = mul(softplus(steps), neg(exp(to(rate, precise))))
        beta, decay = (padded_by_head(y, padding) for y in (beta, decay))
        query, key = (for_each_head(y) for y in (query, key))
        del mixed, steps
        if by_token:
            y = _delta_rule_of_token(query, key, value, beta, decay, by_token.tensors[0])
        else:
            y = narrow(_delta_rule(query, key, value, beta, decay, cache is not None), 1, length)
        del query, key, value, beta, decay
        y = norm_(to(y, x.dtype))
        return output(flatten(mul(y, silu(unflatten(gate(x), 2, (n_head, d_value)))), 2))

    def padded_by_head(y, padding):
        """(batch, length, n_head) to (batch, n_head, length + padding)."""
        batch, length, _ = y.shape
        return transpose(pad(y, (batch, length + padding, n_head)), 1, 2)

    def for_each_head(y):
        """(batch, n_key_head, length, width) to a contiguous copy for each head."""
        group = n_head // n_key_head
        y = unsqueeze(y, 2)
        return contiguous(flatten(expand(y, (-1, -1, group, -1, -1)), 1, 2))

    return forward


def _delta_rule(query, key, value, beta, decay, keeps_state):
    """Solve a triangular system within each chunk, and go on from chunk to chunk.

    query, key (batch, n_head, length, d_key), value (…, d_value), beta and decay (…, length). In
    inference also the state after the last chunk is computed.
    """
    n_chunk = query.shape[2] // CHUNK
    query, key, value = (unflatten(y, 2, (n_chunk, CHUNK)) for y in (query, key, value))
    beta, decay = (unflatten(y, 2, (n_chunk, CHUNK)) for y in (beta, decay))
    decay = cumsum(decay, -1)
    future = _upper_triangle()
    between = sub(unsqueeze(decay, 4), unsqueeze(decay, 3))
    between = exp(masked_fill(between, future))
    from_start = exp(decay)
    scaled = mul(key, unsqueeze(beta, -1))
    system = mul(matmul(scaled, transpose(key, -1, -2)), between)
    within = mul(matmul(query, transpose(key, -1, -2)), between)
    new_values = solve_triangular(system, mul(value, unsqueeze(beta, -1)))
    old_values = solve_triangular(system, mul(scaled, unsqueeze(from_start, -1)))
    del system, scaled, between
    outputs, state = [], None
    for number in steps(range(n_chunk), CHUNK):
        values = select(new_values, 2)
        if state is None:
            outputs.append(matmul(select(within, 2), values))
        else:
            values = sub(values, matmul(select(old_values, 2), state))
            reading = mul(select(query, 2), unsqueeze(select(from_start, 2), -1))
            outputs.append(add(matmul(reading, state), matmul(select(within, 2), values)))
        if number + 1 < n_chunk or keeps_state:
            last = narrow(select(decay, 2), -1, 1, is_first=False)
            writing = mul(select(key, 2), unsqueeze(exp(sub(last, select(decay, 2))), -1))
            written = matmul(transpose(writing, -1, -2), values)
            state = written if state is None else add(mul(state, unsqueeze(exp(last), -1)), written)
    return flatten(stack([transpose(y, 1, 2) for y in outputs], 1), 1, 2)


def _delta_rule_of_token(query, key, value, beta, decay, state):
    """Compute the same of one token after a state (batch, n_head, d_key, d_value)."""
    state = mul(state, unsqueeze(exp(decay), -1))
    delta = mul(sub(value, matmul(key, state)), unsqueeze(beta, -1))
    state = add(state, mul(transpose(key, -1, -2), delta))
    return transpose(matmul(query, state), 1, 2)


def _upper_triangle():
    ones = empty((CHUNK, CHUNK), "bool")
    return empty((CHUNK, CHUNK), "bool")


def written_out_convolution(n_channel, span):
    """Convolve each channel, written out: (batch, length, n) to (batch, n, length + padding)."""
    weight = parameter("weight", n_channel, span)
    cache = recurrent_state.declare((n_channel, span))

    def forward(x, padding):
        x = transpose(x, 1, 2)
        batch, _, length = x.shape
        shape = (batch, n_channel, length + span - 1 + padding)
        if cache is not None:
            seen = cat((cache.tensors[0], x))
            seen = pad(narrow(seen, -1, length + span - 1, is_first=False), shape)
        else:
            seen = pad(x, shape)
        length = length + padding
        y = mul(narrow(seen, -1, length), narrow(weight, -1, 1))
        for _ in range(1, span):
            y = add(y, mul(narrow(seen, -1, length, False), narrow(weight, -1, 1, False)))
        return y

    return forward


def by_head(x, n_head):
    """(batch, n_head · width, length) to (batch, n_head, length, width)."""
    return transpose(unflatten(x, 1, (n_head, x.shape[1] // n_head)), 2, 3)


def normalised(x, n_head):
    """Return the heads of x, each divided by its length."""
    x = by_head(x, n_head)
    return mul(x, rsqrt(add(sum_over(mul(x, x), [-1], keepdim=True), 1e-6)))


def head_norm(r: Run, width):
    weight = parameter("weight", width)
    return lambda x: norm.rms_norm(r)(x, 1, weight)
