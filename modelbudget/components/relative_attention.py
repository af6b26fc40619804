"""Transformer-XL's attention: keys for contents and keys for distances."""

from typing import ClassVar

from pydantic import Field

from modelbudget.architecture.base import Architecture, Count, Parts


class RelativeAttentionFields(Architecture):
    d_model: Count = Field(description="width of the residual stream")
    n_head: Parts = Field(description="heads, each with its own queries, keys and values")
    d_head: Count = Field(description="width of one head")

    derived: ClassVar[dict[str, str]] = {"d_head": "d_model / n_head"}


def parameters(a) -> dict:
    """Five matrices without biases (Dai et al. 2019, §3.3: W_q, W_k,E, W_v, W_k,R and W_o)."""
    names = ("query", "key", "value", "distance", "output")
    return dict.fromkeys(names, a.d_model * a.n_head * a.d_head)


def biases(a) -> dict:
    """Count the parameters of the biases u and v, shared by all layers (Dai et al. 2019, §3.3).

    They are added to every query before the products with contents and distances.
    """
    return dict.fromkeys(("content", "distance"), a.n_head * a.d_head)
