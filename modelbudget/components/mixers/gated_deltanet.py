"""Gated DeltaNet (Yang et al. 2024, arXiv 2412.06464), as in Qwen3-Next.

The program is of one implementation: plain PyTorch, chunk by chunk
(`modules/mixers/gated_deltanet.py`).
"""

from modelbudget.architecture.base import Architecture, Count, Size
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.components import norm, recurrent_state
from modelbudget.components.contract import Values
from modelbudget.components.weight_formats import Matrix
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
from modelbudget.operations.tape import empty, steps, steps_of
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
LOOPS_OVER_TOKENS = True
SIZES = (
    "n_linear_head", "n_linear_key_head", "d_linear_key", "d_linear_value", "d_linear_convolution",
)  # fmt: skip

CHUNK = 64
"""Tokens of a chunk; a shorter one is padded."""


class GatedDeltaNetFields(Architecture):
    d_model: Count
    n_linear_head: Size = 0
    n_linear_key_head: Size = 0
    d_linear_key: Size = 0
    d_linear_value: Size = 0
    d_linear_convolution: Size = 0


FIELDS = GatedDeltaNetFields


def _d_values(a: Fields):
    return a.n_linear_head * a.d_linear_value


def _widths(a: Fields):
    """Channels of queries, keys and values."""
    d_keys = a.n_linear_key_head * a.d_linear_key
    return d_keys, d_keys, _d_values(a)


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


def matrices(a: Fields) -> list[Matrix]:
    """Return the projections; β and decay have one output for each head."""
    return [
        Matrix("query_key_value", a.d_model, _d_mixed(a), widths=_widths(a)),
        Matrix("beta", a.d_model, a.n_linear_head),
        Matrix("decay", a.d_model, a.n_linear_head),
        Matrix("gate", a.d_model, _d_values(a)),
        Matrix("output", _d_values(a), a.d_model),
    ]


def program(a: Fields, r: Run):
    """States (batch, length, d_model) to states of the same shape.

    Several tokens chunk by chunk, one token after those of the cache by itself.
    """
    n_head, n_key_head = a.n_linear_head, a.n_linear_key_head
    d_key, d_value = a.d_linear_key, a.d_linear_value
    widths = [*_widths(a)]
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
    outputs, state, n_step = [], None, len(steps_of(n_chunk))
    for number in steps(range(n_step), n_chunk):
        values = select(new_values, 2)
        if state is None:
            outputs.append(matmul(select(within, 2), values))
        else:
            values = sub(values, matmul(select(old_values, 2), state))
            reading = mul(select(query, 2), unsqueeze(select(from_start, 2), -1))
            outputs.append(add(matmul(reading, state), matmul(select(within, 2), values)))
        if number + 1 < n_step or keeps_state:
            last = narrow(select(decay, 2), -1, 1, is_first=False)
            writing = mul(select(key, 2), unsqueeze(exp(sub(last, select(decay, 2))), -1))
            written = matmul(transpose(writing, -1, -2), values)
            state = written if state is None else add(mul(state, unsqueeze(exp(last), -1)), written)
    return flatten(stack([transpose(y, 1, 2) for y in outputs], 1, n_chunk), 1, 2)


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
