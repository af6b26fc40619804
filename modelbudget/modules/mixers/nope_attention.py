"""Attention without RoPE."""

from modelbudget.modules.mixers.attention import Attention

NAME = "attention"


def make(a) -> Attention:
    """Attention of all tokens before, whose queries and keys are not rotated."""
    return Attention(a)
