"""Transformer-XL's attention: keys for contents and keys for distances."""

from modelbudget.architecture.base import Architecture, Count, Parts
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.operations.elementwise import compare, without_gradient
from modelbudget.operations.joining import cat, gather
from modelbudget.operations.linear_layer import make_linear
from modelbudget.operations.reductions import softmax
from modelbudget.operations.tape import empty
from modelbudget.operations.views import heads_of


class RelativeAttentionFields(Architecture):
    d_model: Count
    n_head: Parts
    d_head: Count


def parameters(a) -> dict:
    """Five matrices without biases (Dai et al. 2019, §3.3: W_q, W_k,E, W_v, W_k,R and W_o)."""
    names = ("query", "key", "value", "distance", "output")
    return dict.fromkeys(names, a.d_model * a.n_head * a.d_head)


def biases(a) -> dict:
    """Count the parameters of the biases u and v, shared by all layers (Dai et al. 2019, §3.3).

    They are added to every query before the products with contents and distances.
    """
    return dict.fromkeys(("content", "distance"), a.n_head * a.d_head)


def program(a: Fields, r: Run):
    """States (batch, length, d_model) to states of the same shape.

    `memory`: earlier states (batch, m, d_model); `waves` (m + length, d_model), a row for each
    distance; `bias`: u and v (n_head · d_head), of contents and of distances.
    """
    width = a.n_head * a.d_head
    query, key, value, of_distances = (
        make_linear(name, a.d_model, width) for name in ("query", "key", "value", "distance")
    )
    output = make_linear("output", width, a.d_model)

    def forward(x, memory, waves, bias):
        seen = cat((memory, x), 1)
        q = query(x)
        k, v = by_head(key(seen)), by_head(value(seen))
        distance = by_head(of_distances(waves).unsqueeze(0))
        for_content, for_distance = bias
        by_content = by_head(q + for_content) @ k.transpose(-1, -2)
        by_distance = by_head(q + for_distance) @ distance.transpose(-1, -2)
        places = empty((x.shape[1],), "int64")
        away = _differences(places, seen.shape[1])
        by_distance = gather(by_distance, without_gradient(away).expand(by_content.shape))
        scores = (by_content + by_distance) * 0.5
        scores = scores.masked_fill(compare(away))
        return output((softmax(scores) @ v).transpose(1, 2).flatten(2))

    def by_head(x):
        return heads_of(x, a.n_head, a.d_head)

    return forward


def _differences(places, n):
    """Return how far each of n places lies behind each of others."""
    other_places = empty((n,), "int64")
    return empty((places.shape[0], n), "int64")
