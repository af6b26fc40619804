"""Mamba's mixer: a linear recurrence whose step, input and output depend on the token."""

from typing import ClassVar

from pydantic import Field

from modelbudget.architecture.base import Architecture, Count
from modelbudget.architecture.fields import Fields, Run
from modelbudget.architecture.operations import positive
from modelbudget.architecture.run_values import bytes_of, exact_bytes, state_bytes, tokens
from modelbudget.components.contract import Values


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


def n_tensors(a: Fields) -> Values:
    """Count the parameter tensors: weights, and the biases of convolution and step."""
    return dict.fromkeys(parameters(a), 1) | {"convolution": 2, "step": 2}


def saved(a: Fields, r: Run, n_head=1) -> Values:
    """Return the bytes saved for backward by each component.

    Inputs of projections, and of the convolution with its padding; the arguments of both SiLUs, of
    softplus and of exp; and the factors of the recurrence: steps, inputs, write and read weights,
    the decay of each state at each token, and all states (Gu & Dao 2023, §3.2). The recurrence is
    written out, so that the states are saved, which the fused scan of §3.3.2 computes again.

    Inputs of the recurrence lie channel by channel, as the convolution left them; the selection
    reads a copy where that differs from token by token. Selected weights are views of one tensor,
    or normalised copies. `n_head`: equal parts of the channels, each with a selection and steps of
    its own (Zamba).
    """
    size, n = bytes_of(r.dtype), tokens(r)
    inner, selected = size * n * a.d_inner, size * n * n_head * (a.d_step + 2 * a.d_state)
    copied = positive(r.batch - 1) * positive(r.length - 1) * positive(a.d_inner - 1)
    decays = size * a.d_inner * a.d_state
    states = decays * (n + r.batch * (r.length + 1))
    normed = selected + 3 * exact_bytes(r.dtype) * n + 2 * size * n * a.d_state
    return {
        "input": size * n * a.d_model,
        "convolution": size * r.batch * a.d_inner * (r.length + a.d_convolution - 1),
        "": (4 + copied + 4) * inner + 2 * decays + states + a.inner_norm * normed,
        "selection": inner,
        "step": a.inner_norm * size * n * a.d_step + (1 - a.inner_norm) * selected,
        "output": inner,
    }


def flops(a: Fields, r: Run) -> Values:
    """Two operations for each weight and token, and for each state that is read.

    Reading the only state of a channel is no matrix product.
    """
    n = 2 * tokens(r) * a.d_inner
    return {
        "input": n * 2 * a.d_model,
        "convolution": n * a.d_convolution,
        "selection": n * (a.d_step + 2 * a.d_state),
        "step": n * a.d_step,
        "": n * a.d_state * positive(a.d_state - 1),
        "output": n * a.d_model,
    }


def cached(a, r) -> dict:
    """Return the bytes of the recurrent state and of the tokens that the convolution spans.

    d_state states for each channel (Gu & Dao 2023, §3.3 and their code).
    """
    channels = r.batch * a.d_inner
    return {
        "": state_bytes(r) * channels * a.d_state,
        "convolution": bytes_of(r.dtype) * channels * a.d_convolution,
    }
