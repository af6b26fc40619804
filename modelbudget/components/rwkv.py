"""RWKV-4's two mixers: one over time with a decay for each channel, one over channels."""

from typing import ClassVar

from pydantic import Field

from modelbudget.architecture.base import Architecture, Count
from modelbudget.architecture.run_config import bytes_of, exact_bytes


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


def cached(a, r) -> dict:
    """Return the bytes of the recurrent state of each mixer.

    Both keep the previous token; the time mixer also keeps running sums of weighted values and
    weights and the largest exponent, in at least single precision (Peng et al. 2023, appendix D).
    """
    before = bytes_of(r.dtype) * r.batch * a.d_model
    sums = 3 * exact_bytes(r.dtype) * r.batch * a.d_model
    return {"time": before + sums, "channel": before}
