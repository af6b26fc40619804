"""Transformer-XL's attention: keys for contents and keys for distances."""

from typing import ClassVar

from pydantic import Field

from modelbudget.architecture.base import Architecture, Count, Parts
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.operations import positive
from modelbudget.architecture.run_values import INDEX, bytes_of, tokens
from modelbudget.components.contract import Values, doubled


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


def saved(a: Fields, r: Run) -> Values:
    """Return the bytes saved for backward by one layer, without earlier segments.

    Inputs of the projections, of which keys and values read a copy; queries with either bias; keys,
    values and projected distances, these repeated for each sequence of several heads; scores by
    distance and their softmax, which key each distance belongs to, and which keys are hidden.
    """
    size, n = bytes_of(r.dtype), tokens(r)
    states, heads = size * n * a.d_model, size * n * a.n_head * a.d_head
    repeated = 1 + positive(a.n_head - 1) * (r.batch - 1)
    distances = size * repeated * r.length * a.n_head * a.d_head
    scores = 2 * size * r.batch * a.n_head + INDEX + 1
    return {
        "query": states,
        "key": states,
        "": 4 * heads + distances + scores * r.length * r.length,
        "output": heads,
    }


def waves(a: Fields, r: Run) -> Values:
    """Return the bytes of the sinusoids of all distances, which the layers share."""
    return {"distance": bytes_of(r.dtype) * r.length * a.d_model}


def flops(a: Fields, r: Run) -> Values:
    """Projections; queries by keys, queries by distances, and scores by values."""
    width = a.n_head * a.d_head
    projection = 2 * tokens(r) * a.d_model * width
    return {
        **dict.fromkeys(("query", "key", "value", "output"), projection),
        "distance": 2 * r.length * a.d_model * width,
        "": 3 * 2 * tokens(r) * r.length * width,
    }


def flops_backward(a: Fields, r: Run) -> Values:
    """Each product twice, for the gradients of both its factors; sinusoids need no gradient."""
    found = flops(a, r)
    return doubled(found) | {"distance": found["distance"]}
