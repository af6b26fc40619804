"""Positions except RoPE as programs: sinusoids, and biases added to scores."""

from modelbudget.components import rope
from modelbudget.operations.elementwise import compare, without_gradient
from modelbudget.operations.joining import cat, embedding, gather
from modelbudget.operations.part import parameter
from modelbudget.operations.tape import Tensor, empty


def sinusoids(length, d_model, dtype: str) -> Tensor:
    """Return sines and cosines (length, d_model)."""
    angle = rope.angles(length, d_model)
    sinusoids = cat((without_gradient(angle), without_gradient(angle).narrow(-1, d_model // 2)))
    return sinusoids.to(dtype)


def causal_bias(length, dtype: str, window=0, n_key=None) -> Tensor:
    """Mask keys after a query, and those `window` or more tokens before it: (length, n_key).

    `n_key`: as many as queries, or with a cache more.
    """
    seen = seen_keys(length, window, n_key)
    return empty(seen.shape, dtype)


def seen_keys(length, window=0, n_key=None) -> Tensor:
    """Return where a query reads a key: (length, n_key). Positions are compared."""
    n_key = length if n_key is None else n_key
    keys = empty((n_key,), "int64")
    seen = empty((length, n_key), "bool")
    if window:
        first = empty((length, 1), "int64")
        near = empty((length, n_key), "bool")
    return seen


def distances(length, n_key=None) -> Tensor:
    """Return how far each key lies behind each query: (length, n_key)."""
    n_key = length if n_key is None else n_key
    places = empty((n_key,), "int64")
    return empty((length, n_key), "int64")


def alibi(n_head, length, dtype: str, n_key=None) -> Tensor:
    """Return penalties linear in the distance (n_head, length, n_key).

    Slopes and distances are live to the end; on meta no operation allocates the slopes, which
    become a tensor, but their negative.
    """
    slopes = empty((n_head, 1, 1), dtype)
    distance = distances(length, n_key)
    return empty((n_head, *distance.shape), dtype)


def buckets(n_bucket, n_head):
    """One number for each bucket of distances and head: (n_head, length, n_key)."""
    weight = parameter("weight", n_bucket, n_head)

    def forward(length, n_key):
        distance = distances(length, n_key)  # live to the end
        places = bucket_of(without_gradient(distance))
        return embedding(weight, places).permute((2, 0, 1))

    return forward


def bucket_of(distance: Tensor, both_ways: bool = False) -> Tensor:
    """Return T5's bucket of each distance, one operation at a time."""
    of = without_gradient
    # On the side of keys after the query, absolute; or negative again, clamped.
    side = of(compare(distance), "int64") if both_ways else None
    distance = of(distance) if both_ways else of(of(distance))
    share = of(of(of(of(distance), "float32")))  # clamped, divided, its logarithm, divided
    far = of(of(of(share), "int64"))  # multiplied, rounded, shifted
    bucket = _nearer(distance, far)
    return of(bucket)  # on the side of keys before the query


def _nearer(distance: Tensor, far: Tensor) -> Tensor:
    is_single, clamped = compare(distance), without_gradient(far)
    return without_gradient(distance)


def by_key(scores: Tensor) -> Tensor:
    """Convert scores by distance (…, length, length) to scores by key."""
    distance = without_gradient(distances(scores.shape[-1]))
    return gather(scores, distance.expand(scores.shape))
