"""Gated DeltaNet (Yang et al. 2024, arXiv 2412.06464), as in Qwen3-Next.

The program is of one implementation: plain PyTorch, chunk by chunk
(`modules/mixers/gated_deltanet.py`).
"""

from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.components import norm, recurrent_state
from modelbudget.components.contract import Values
from modelbudget.components.weight_formats import Matrix
from modelbudget.operations.elementwise import silu, softplus
from modelbudget.operations.joining import cat, pad, stack
from modelbudget.operations.linear_layer import make_linear
from modelbudget.operations.memory_layout import at_least_float32
from modelbudget.operations.part import make_part, parameter
from modelbudget.operations.products import solve_triangular
from modelbudget.operations.tape import empty, steps, steps_of

GROUP = "state space"
LOOPS_OVER_TOKENS = True
SIZES = (
    "n_linear_head", "n_linear_key_head", "d_linear_key", "d_linear_value", "d_linear_convolution",
)  # fmt: skip

CHUNK = 64
"""Tokens of a chunk; a shorter one is padded."""


def _d_values(a: Fields):
    return a.n_linear_head * a.d_linear_value


def _widths(a: Fields):
    """Channels of queries, keys and values."""
    d_keys = a.n_linear_key_head * a.d_linear_key
    return d_keys, d_keys, _d_values(a)


def parameters(a: Fields) -> Values:
    """Count the parameters of each component (Yang et al. 2024, §3.4).

    Queries, keys and values through a convolution; β, decay (a rate and a step for each head, as in
    Mamba-2), gate, a norm of each head, output.
    """
    return dict.fromkeys(("rate", "step"), a.n_linear_head) | {
        "convolution": sum(_widths(a)) * a.d_linear_convolution,
        "norm": a.d_linear_value,
        **{m.name: m.d_in * m.d_out for m in matrices(a)},
    }


def matrices(a: Fields) -> list[Matrix]:
    """Return the projections; β and decay have one output for each head."""
    return [
        Matrix("query_key_value", a.d_model, sum(_widths(a)), widths=_widths(a)),
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
        mixed = silu(convolve(query_key_value(x), padding)).to(precise)
        query, key, value = mixed.split(widths, 1)
        query = normalised(query, n_key_head) * 0.1
        key = normalised(key, n_key_head)
        value = by_head(value, n_head)
        beta = beta_of(x).sigmoid().to(precise)
        steps = (decay_of(x) + step).to(precise)
        decay = softplus(steps) * -rate.to(precise).exp()
        beta, decay = (padded_by_head(y, padding) for y in (beta, decay))
        query, key = (for_each_head(y) for y in (query, key))
        del mixed, steps
        if by_token:
            y = _delta_rule_of_token(query, key, value, beta, decay, by_token.tensors[0])
        else:
            y = _delta_rule(query, key, value, beta, decay, cache is not None).narrow(1, length)
        del query, key, value, beta, decay
        y = norm_(y.to(x.dtype))
        return output((y * silu(gate(x).unflatten(2, (n_head, d_value)))).flatten(2))

    def padded_by_head(y, padding):
        """(batch, length, n_head) to (batch, n_head, length + padding)."""
        batch, length, _ = y.shape
        return pad(y, (batch, length + padding, n_head)).transpose(1, 2)

    def for_each_head(y):
        """(batch, n_key_head, length, width) to a contiguous copy for each head."""
        group = n_head // n_key_head
        y = y.unsqueeze(2)
        return y.expand((-1, -1, group, -1, -1)).flatten(1, 2).contiguous()

    return forward


def _delta_rule(query, key, value, beta, decay, keeps_state):
    """Solve a triangular system within each chunk, and go on from chunk to chunk.

    query, key (batch, n_head, length, d_key), value (…, d_value), beta and decay (…, length). In
    inference also the state after the last chunk is computed.
    """
    n_chunk = query.shape[2] // CHUNK
    query, key, value = (y.unflatten(2, (n_chunk, CHUNK)) for y in (query, key, value))
    beta, decay = (y.unflatten(2, (n_chunk, CHUNK)) for y in (beta, decay))
    decay = decay.cumsum(-1)
    future = _upper_triangle()
    between = decay.unsqueeze(4) - decay.unsqueeze(3)
    between = between.masked_fill(future).exp()
    from_start = decay.exp()
    scaled = key * beta.unsqueeze(-1)
    system = (scaled @ key.transpose(-1, -2)) * between
    within = (query @ key.transpose(-1, -2)) * between
    new_values = solve_triangular(system, value * beta.unsqueeze(-1))
    old_values = solve_triangular(system, scaled * from_start.unsqueeze(-1))
    del system, scaled, between
    outputs, state, n_step = [], None, len(steps_of(n_chunk))
    for number in steps(range(n_step), n_chunk):
        values = new_values.select(2)
        if state is None:
            outputs.append(within.select(2) @ values)
        else:
            values = values - old_values.select(2) @ state
            reading = query.select(2) * from_start.select(2).unsqueeze(-1)
            outputs.append(reading @ state + within.select(2) @ values)
        if number + 1 < n_step or keeps_state:
            last = decay.select(2).narrow(-1, 1, is_first=False)
            writing = key.select(2) * (last - decay.select(2)).exp().unsqueeze(-1)
            written = writing.transpose(-1, -2) @ values
            state = written if state is None else state * last.exp().unsqueeze(-1) + written
    return stack([y.transpose(1, 2) for y in outputs], 1, n_chunk).flatten(1, 2)


def _delta_rule_of_token(query, key, value, beta, decay, state):
    """Compute the same of one token after a state (batch, n_head, d_key, d_value)."""
    state = state * decay.exp().unsqueeze(-1)
    delta = (value - key @ state) * beta.unsqueeze(-1)
    state = state + key.transpose(-1, -2) * delta
    return (query @ state).transpose(1, 2)


def _upper_triangle():
    ones = empty((CHUNK, CHUNK), "bool")
    return empty((CHUNK, CHUNK), "bool")


def written_out_convolution(n_channel, span):
    """Convolve each channel, written out: (batch, length, n) to (batch, n, length + padding)."""
    weight = parameter("weight", n_channel, span)
    cache = recurrent_state.declare((n_channel, span))

    def forward(x, padding):
        x = x.transpose(1, 2)
        batch, _, length = x.shape
        shape = (batch, n_channel, length + span - 1 + padding)
        if cache is not None:
            seen = cat((cache.tensors[0], x))
            seen = pad(seen.narrow(-1, length + span - 1, is_first=False), shape)
        else:
            seen = pad(x, shape)
        length = length + padding
        y = seen.narrow(-1, length) * weight.narrow(-1, 1)
        for _ in range(1, span):
            y = y + seen.narrow(-1, length, False) * weight.narrow(-1, 1, False)
        return y

    return forward


def by_head(x, n_head):
    """(batch, n_head · width, length) to (batch, n_head, length, width)."""
    return x.unflatten(1, (n_head, x.shape[1] // n_head)).transpose(2, 3)


def normalised(x, n_head):
    """Return the heads of x, each divided by its length."""
    x = by_head(x, n_head)
    return x * ((x * x).sum([-1], keepdim=True) + 1e-6).rsqrt()


def head_norm(r: Run, width):
    weight = parameter("weight", width)
    return lambda x: norm.rms_norm(r)(x, 1, weight)
