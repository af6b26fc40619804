"""Sliding-window attention."""

from modelbudget.modules.mixers.attention import Attention

NAME = "attention"


def make(a) -> Attention:
    """Attention of the last `window` tokens."""
    return Attention(a, a.position, a.window)
