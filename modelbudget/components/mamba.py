"""Mamba's mixer: a linear recurrence whose step, input and output depend on the token."""

from typing import ClassVar

from pydantic import Field

from modelbudget.architecture.base import Architecture, Count
from modelbudget.architecture.run_config import bytes_of


class SelectiveScanFields(Architecture):
    d_model: Count = Field(description="width of the residual stream")
    d_inner: Count = Field(description="channels of the recurrence")
    d_state: Count = Field(16, description="states of each channel")
    d_convolution: Count = Field(4, description="tokens that the convolution spans")
    d_step: Count = Field(description="rank of the map from a token to the steps of its channels")
    inner_norm: bool = Field(
        False, description="step, input and output weights are normalised, without scales"
    )

    derived: ClassVar[dict[str, str]] = {"d_inner": "2 * d_model", "d_step": "ceil(d_model / 16)"}


def parameters(a) -> dict:
    """Gu & Dao 2023, §3.2 (Algorithm 2), §3.4 and §3.6.

    `input` gives the recurrence its input and a gate; `selection` a token's step (low rank), B and
    C; `decay` is the logarithm of −A; `skip` is D. Convolution and step have biases.
    """
    return {
        "input": a.d_model * 2 * a.d_inner,
        "convolution": a.d_inner * a.d_convolution + a.d_inner,
        "selection": a.d_inner * (a.d_step + 2 * a.d_state),
        "step": a.d_step * a.d_inner + a.d_inner,
        "decay": a.d_inner * a.d_state,
        "skip": a.d_inner,
        "output": a.d_inner * a.d_model,
    }


def cached(a, r) -> dict:
    """Return the bytes of the recurrent state and of the tokens that the convolution spans.

    d_state states for each channel (Gu & Dao 2023, §3.3 and their code).
    """
    channels = bytes_of(r.dtype) * r.batch * a.d_inner
    return {"": channels * a.d_state, "convolution": channels * a.d_convolution}
