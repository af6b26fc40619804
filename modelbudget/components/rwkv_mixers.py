"""RWKV-4's two mixers: one over time with a decay for each channel, one over channels."""

from typing import ClassVar

from pydantic import Field

from modelbudget.architecture.base import Architecture, Count
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.run_values import bytes_of, exact_bytes, tokens
from modelbudget.components.contract import Values


class RWKVFields(Architecture):
    d_model: Count = Field(description="width of the residual stream")
    d_ff: Count = Field(description="hidden width of the channel mixer")

    derived: ClassVar[dict[str, str]] = {"d_ff": "4 * d_model"}


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


def time_saved(a: Fields, r: Run) -> Values:
    """Return the bytes saved for backward by the time mixer, of two tokens or more.

    The tokens and those before them, and what each mix leaves to the latter; the inputs of the four
    projections; the gate and what it multiplies. WKV saves values, keys with the bonus and, step by
    step in its own precision, the sums and the largest exponent before, both exponentials,
    numerator and denominator. For the next token it saves the keys, the decay, the decayed exponent
    and two more exponentials.
    """
    size, exact = bytes_of(r.dtype), exact_bytes(r.dtype)
    states, channels = size * tokens(r) * a.d_model, size * a.d_model
    steps = exact * r.batch * a.d_model * (7 * r.length + 3 * (r.length - 1))
    wkv = 3 * states + channels + steps
    return {
        "": 2 * states + 3 * channels + wkv + 2 * states,
        **dict.fromkeys(("receptance", "key", "value", "output"), states),
    }


def channel_saved(a: Fields, r: Run) -> Values:
    """Return the bytes saved for backward by the channel mixer.

    The tokens and those before them, and what each mix leaves to the latter; the inputs of the
    three projections; the value of ReLU, which is squared; the gate and what it multiplies.
    """
    states, inside = (bytes_of(r.dtype) * tokens(r) * width for width in (a.d_model, a.d_ff))
    mixed = 2 * states + 2 * bytes_of(r.dtype) * a.d_model
    return {
        "": mixed + inside + 2 * states,
        "receptance": states,
        "key": states,
        "value": inside,
    }


def time_flops(a: Fields, r: Run) -> Values:
    """Two operations for each weight and token; WKV has no matrix product."""
    product = 2 * tokens(r) * a.d_model * a.d_model
    return dict.fromkeys(("receptance", "key", "value", "output"), product)


def channel_flops(a: Fields, r: Run) -> Values:
    """Two operations for each weight and token."""
    of_token = 2 * tokens(r) * a.d_model
    return {
        "receptance": of_token * a.d_model,
        "key": of_token * a.d_ff,
        "value": of_token * a.d_ff,
    }


def cached(a, r) -> dict:
    """Return the bytes of the recurrent state of each mixer.

    Both keep the previous token; the time mixer also keeps running sums of weighted values and
    weights and the largest exponent, in at least single precision (Peng et al. 2023, appendix D).
    """
    before = bytes_of(r.dtype) * r.batch * a.d_model
    sums = 3 * exact_bytes(r.dtype) * r.batch * a.d_model
    return {"time": before + sums, "channel": before}
