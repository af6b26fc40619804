"""Attention of one of several devices that each have a part of the tokens of each sequence.

All-to-all (Jacobs et al. 2023, §3): devices exchange queries, keys and values, so that each has all
tokens of a part of the heads, and the results back. In a ring (Liu et al. 2023, §3) they exchange
keys and values alone (`devices/ring_blocks.py`).
"""

from collections.abc import Callable

from modelbudget.operations.expert_exchange import all_to_all
from modelbudget.operations.tape import Tensor


def around(compute: Callable, n_device) -> Callable:
    """Return attention of a device's own tokens: it computes a part of the heads for all tokens."""

    def forward(q, k, v, bias=None):
        q, k, v = to_heads(q, n_device), to_heads(k, n_device), to_heads(v, n_device)
        return to_tokens(compute(q, k, v, bias), n_device)

    return forward


def to_heads(x: Tensor, n_device) -> Tensor:
    """(batch, heads, own tokens, width) to (batch, own heads, tokens, width)."""
    x = x.transpose(1, 2).unflatten(2, (n_device, x.shape[1] // n_device))
    parts = x.permute((2, 0, 1, 3, 4))  # (devices, batch, own tokens, own heads, width)
    parts = all_to_all(parts.contiguous(), n_device)
    return parts.permute((1, 0, 2, 3, 4)).flatten(1, 2).transpose(1, 2)


def to_tokens(x: Tensor, n_device) -> Tensor:
    """(batch, own heads, tokens, width) to (batch, heads, own tokens, width)."""
    x = x.transpose(1, 2).unflatten(1, (n_device, x.shape[2] // n_device))
    parts = x.permute((1, 0, 2, 3, 4))  # (devices, batch, own tokens, own heads, width)
    parts = all_to_all(parts.contiguous(), n_device)
    return parts.permute((1, 2, 0, 3, 4)).flatten(2, 3).transpose(1, 2)
