"""Words in and out: the token embedding and the head, of any width."""

from pydantic import Field

from modelbudget.architecture import Architecture, Count


class WordFields(Architecture):
    n_vocab: Count = Field(description="rows of the token embedding: vocabulary, padding included")
    tied: bool = Field(True, description="the head uses the token embedding's matrix")
    head_bias: bool = Field(False, description="the head adds a bias for each word")


def token(a, width):
    """One row of `width` for each word of the vocabulary."""
    return a.n_vocab * width


def head(a, width):
    """A tied head owns no matrix (Press & Wolf 2017); its bias, if any, is its own."""
    return (1 - a.tied) * a.n_vocab * width + a.head_bias * a.n_vocab
