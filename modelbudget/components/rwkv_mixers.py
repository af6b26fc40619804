"""RWKV-4's two mixers: one over time with a decay for each channel, one over channels."""

from modelbudget.architecture.base import Architecture, Count
from modelbudget.architecture.formula_arguments import Run
from modelbudget.components import recurrent_state
from modelbudget.operations.elementwise import maximum
from modelbudget.operations.joining import cat, pad, stack
from modelbudget.operations.linear_layer import make_linear
from modelbudget.operations.memory_layout import at_least_float32
from modelbudget.operations.part import parameter
from modelbudget.operations.tape import empty
from modelbudget.operations.views import steps_over


class RWKVFields(Architecture):
    d_model: Count
    d_ff: Count


def time(a) -> dict:
    """Count the parameters of the time mixer (Peng et al. 2023, §3.1).

    The current token is mixed with the previous one in three ways; the decay w and the bonus u of
    the current token have one number for each channel.
    """
    square = a.d_model * a.d_model
    return {
        "mix": 3 * a.d_model,
        "decay": a.d_model,
        "bonus": a.d_model,
        **dict.fromkeys(("receptance", "key", "value", "output"), square),
    }


def channel(a) -> dict:
    """Peng et al. 2023, §3.1: squared ReLU, gated by the receptance."""
    return {
        "mix": 2 * a.d_model,
        "receptance": a.d_model * a.d_model,
        "key": a.d_model * a.d_ff,
        "value": a.d_ff * a.d_model,
    }


def blend(x, before, mix) -> list:
    """Mix each token with the one before it, per channel, in as many ways as `mix` has rows."""
    return [share * x + (1 - share) * before for share in mix.unbind()]


def declare_shift(a):
    """Declare the state that a mixer keeps of the previous token; None in training."""
    return recurrent_state.declare((a.d_model,))


def previous(x, cache):
    """Return the state (batch, length, d_model) before each token."""
    if cache is None:
        return pad(x, x.shape)
    return cat((cache.tensors[0].unsqueeze(1), x.narrow(1, x.shape[1] - 1)), 1)


def time_program(a, r: Run):
    """States (batch, length, d_model) to states of the same shape, token by token."""
    mix = parameter("mix", 3, a.d_model)
    decay, bonus = parameter("decay", a.d_model), parameter("bonus", a.d_model)
    receptance, key_of, value_of, output = (
        make_linear(name, a.d_model, a.d_model) for name in ("receptance", "key", "value", "output")
    )
    precise, sums = at_least_float32(r.dtype), [(a.d_model,)] * 3
    shift = declare_shift(a)
    cache = recurrent_state.declare(*sums, dtype=precise)

    def forward(x):
        for_receptance, for_key, for_value = blend(x, previous(x, shift), mix)
        key, value = key_of(for_key), value_of(for_value)
        before = (
            cache.tensors if cache else [empty((x.shape[0], *shape), precise) for shape in sums]
        )
        mixed, _after = _wkv(key, value, decay, bonus, before)
        return output(receptance(for_receptance).sigmoid() * mixed)

    return forward


def _wkv(key, value, decay, bonus, before):
    """Compute WKV token by token: sums relative to the largest exponent so far.

    key, value (batch, length, d_model); decay, bonus (d_model); before: weighted values, weights,
    and the largest exponent, (batch, d_model) each.
    """
    loss = decay.exp()
    weighted, weights, largest = before
    outputs = []
    for k, v in steps_over(1, key, value):
        top = maximum(largest, k + bonus)
        past, present = (largest - top).exp(), (k + bonus - top).exp()
        outputs.append((past * weighted + present * v) / (past * weights + present))
        top = maximum(largest - loss, k)
        past, present = (largest - loss - top).exp(), (k - top).exp()
        weighted, weights = (
            past * weighted + present * v,
            past * weights + present,
        )
        largest = top
    return stack(outputs, 1, key.shape[1]).to(key.dtype), (weighted, weights, largest)


def channel_program(a, r: Run):
    """States (batch, length, d_model) to states of the same shape."""
    mix = parameter("mix", 2, a.d_model)
    receptance = make_linear("receptance", a.d_model, a.d_model)
    key, value = make_linear("key", a.d_model, a.d_ff), make_linear("value", a.d_ff, a.d_model)
    shift = declare_shift(a)

    def forward(x):
        for_receptance, for_key = blend(x, previous(x, shift), mix)
        result = value(key(for_key).relu() ** 2)
        return receptance(for_receptance).sigmoid() * result

    return forward
