"""Token and position embeddings, and the head that turns states into logits."""

from typing import Literal

from pydantic import Field

from modelbudget.architecture import Architecture, Count


class TokenFields(Architecture):
    n_vocab: Count = Field(description="rows of the token embedding: vocabulary, padding included")
    d_model: Count = Field(description="width of the residual stream")


class PositionFields(Architecture):
    n_ctx: Count = Field(1024, description="longest sequence, in tokens")
    position: Literal["none", "learned", "rotary"] = Field(
        "learned", description="how a token knows its place; only learned positions are parameters"
    )


class HeadFields(Architecture):
    tied: bool = Field(True, description="the head uses the token embedding's matrix")
    head_bias: bool = Field(False, description="the head adds a bias for each word")


def token(a):
    """One row of d_model for each word of the vocabulary."""
    return a.n_vocab * a.d_model


def position(a):
    """One row of d_model for each position (Vaswani et al. 2017, §3.5: learned positions)."""
    return int(a.position == "learned") * a.n_ctx * a.d_model


def head(a):
    """A tied head owns no matrix (Press & Wolf 2017); its bias, if any, is its own."""
    return (1 - a.tied) * a.n_vocab * a.d_model + a.head_bias * a.n_vocab
