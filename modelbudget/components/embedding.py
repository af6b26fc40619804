"""Token and position embeddings, and the head that turns states into logits."""

from typing import ClassVar, Literal

from pydantic import Field

from modelbudget.architecture.base import Architecture, Count, Size
from modelbudget.architecture.constraint import Constraint
from modelbudget.architecture.operations import ceil_div, positive
from modelbudget.architecture.run_config import bytes_of, tokens

INDEX = 8
"""Bytes of a token or of a place: torch's indices are 64-bit integers."""


class VocabularyFields(Architecture):
    n_vocab: Count = Field(description="words of the vocabulary")
    vocab_multiple: Count = Field(
        1, description="the vocabulary is padded to a multiple of this; padded rows are parameters"
    )


class TokenFields(VocabularyFields):
    d_model: Count = Field(description="width of the residual stream")


class FactorisedFields(TokenFields):
    d_emb: Size = Field(
        0,
        description="width of a factorised embedding, with projections to d_model and back; "
        "0: not factorised",
    )


class LearnedPositionFields(Architecture):
    """For families with a `position` of which one kind is learned."""

    n_ctx: Count = Field(1024, description="longest sequence, in tokens")
    position_offset: Size = Field(0, description="rows of learned positions beside the n_ctx")

    constraints: ClassVar[tuple[Constraint, ...]] = (
        Constraint(
            "position == 'learned'",
            "position_offset = {position_offset} needs position: learned; "
            "position: {position} has no rows",
            when="position_offset",
        ),
    )


class PositionFields(LearnedPositionFields):
    position: Literal["none", "learned", "sinusoidal", "rotary", "alibi", "buckets", "relative"] = (
        Field(
            "learned",
            description="how a token knows its place; learned positions, T5's buckets of distances "
            "and Transformer-XL's relative positions have parameters",
        )
    )
    n_bucket: Count = Field(32, description="position: buckets: distances told apart")
    d_rotary: Size = Field(
        0, description="position: rotary: channels of a head that are turned; 0: all"
    )


class HeadFields(Architecture):
    tied: bool = Field(True, description="the head uses the token embedding's matrix")
    head_bias: bool = Field(False, description="the head adds a bias for each word")


def rows(a):
    """Words and padding (`make_vocab_size_divisible_by` in Megatron's code)."""
    return a.vocab_multiple * ceil_div(a.n_vocab, a.vocab_multiple)


def token(a, width=None):
    """One row for each word of the vocabulary; d_model wide unless told."""
    return rows(a) * (a.d_model if width is None else width)


def head(a, width=None):
    """A tied head owns no matrix (Press & Wolf 2017); its bias, if any, is its own."""
    return (1 - a.tied) * token(a, width) + a.head_bias * rows(a)


def width(a):
    """Of the rows of a token embedding."""
    return a.d_emb + (1 - positive(a.d_emb)) * a.d_model


def factorised(a) -> dict:
    """Token embedding and head of width d_emb, and projections to d_model and back (Lan et al.
    2020, §3.1; both projections: OPT-350M). Not factorised, both are d_model wide.
    """
    projection = a.d_emb * a.d_model
    return {
        "embedding.token": token(a, width(a)),
        "embedding.projection": projection,
        "head": head(a, width(a)),
        "head.projection": projection,
    }


def learned(a, width):
    """One row of `width` for each position (Vaswani et al. 2017, §3.5: learned positions), and for
    those before the first, which RoBERTa and OPT leave unused.
    """
    return int(a.position == "learned") * (a.n_ctx + a.position_offset) * width


def position(a):
    """Learned positions, or one number for each head and bucket of distances (Raffel et al. 2020,
    §2.1).
    """
    return learned(a, a.d_model) + int(a.position == "buckets") * a.n_bucket * a.n_head


def tensors(a) -> dict:
    """Tables, projections and the head's bias are a tensor each; a tied head has no table."""
    return {
        "embedding.token": 1,
        "embedding.position": int(a.position in ("learned", "buckets")),
        "embedding.projection": positive(a.d_emb),
        "head": 1 - a.tied + a.head_bias,
        "head.projection": positive(a.d_emb),
    }


def saved(a, r) -> dict:
    """Bytes that backward needs: which rows were looked up; the inputs of head and projections;
    and for the loss the log-probability of each word at each place, the targets, and one number
    that their mean is divided by.
    """
    size, n = bytes_of(r.dtype), tokens(r)
    return saved_by_ends(a, r, width(a)) | {
        "embedding.position": int(a.position == "learned") * INDEX * r.length,
        "embedding.projection": size * n * a.d_emb,
        "head.projection": positive(a.d_emb) * size * n * a.d_model,
    }


def saved_by_ends(a, r, width) -> dict:
    """Those of words and head of such a width, and of the loss."""
    size, n = bytes_of(r.dtype), tokens(r)
    return {
        "embedding.token": INDEX * n,
        "head": size * n * width,
        "loss": size * n * rows(a) + INDEX * n + size,
    }


def flops(a, r) -> dict:
    """The head is a product even where its matrix is tied; looking a row up is none."""
    projection = 2 * tokens(r) * a.d_emb * a.d_model
    return {
        "embedding.projection": projection,
        "head.projection": projection,
        "head": 2 * tokens(r) * width(a) * rows(a),
    }
