"""Position embeddings except RoPE: sinusoids, and biases added to the scores.

Biases have shape (…, queries, keys): row i holds what query i adds to its score of each key. With a
cache there are `start` keys of earlier tokens before those of the queries.
"""

import math
from typing import NamedTuple

import torch
from torch import nn

from modelbudget.modules.rope import angles

FARTHEST_BUCKET = 128
"""Distances from here on share T5's last bucket (`relative_attention_max_distance`)."""


def sinusoids(length: int, d_model: int, like, start: int = 0):
    """Compute sinusoidal position embeddings (length, d_model), from position `start` on.

    Sines of each position, then cosines (Vaswani et al. 2017, §3.5).
    """
    angle = angles(length, d_model, like.device, start)
    return torch.cat((angle.sin(), angle.cos()[:, : d_model // 2]), dim=-1).to(like.dtype)


def distances(length: int, device, start: int = 0):
    """(length, start + length): how far key j lies behind query i; negative ahead of it."""
    places = torch.arange(start + length, device=device)
    return places[start:, None] - places[None, :]


def seen_keys(length: int, device, window: int = 0, start: int = 0):
    """(length, start + length), true where a query reads a key.

    Its own, and fewer than `window` before it. A window of 0 is that of all tokens before. No
    distance, of 8 bytes, is there for each score.
    """
    keys = torch.arange(start + length, device=device)
    queries = keys[start:, None]
    seen = keys <= queries
    if window:
        seen &= keys > queries - window
    return seen


def causal(length: int, like, window: int = 0, start: int = 0):
    """Return the bias that masks keys after a query and keys `window` or more tokens before it."""
    seen = seen_keys(length, like.device, window, start)
    return torch.full_like(seen, -math.inf, dtype=like.dtype).masked_fill_(seen, 0)


class Mask(NamedTuple):
    """A mask (batch, 1, queries, keys) that is added to scores.

    In a tuple, since checkpointing saves what is a tensor among a layer's arguments.
    """

    scores: torch.Tensor


def masks_of_sequences(windows: set[int], x, start: int = 0) -> dict[int, Mask]:
    """Return the masks for states x (batch, length, d_model), by window; see `seen_keys`.

    Of `start` earlier tokens a cache keeps those in the window.
    """
    batch, length, _ = x.shape
    masks = {}
    for window in sorted(windows):
        n_kept = min(start, window - 1) if window else start
        seen = seen_keys(length, x.device, window, n_kept)
        seen = seen.expand(batch, 1, length, n_kept + length)
        zero = torch.zeros((), dtype=x.dtype, device=x.device)
        masks[window] = Mask(torch.where(seen, zero, -math.inf))
    return masks


def alibi(n_head: int, length: int, like, heads: slice = slice(None), start: int = 0):
    """Compute the ALiBi bias: a penalty linear in the distance (Press et al. 2022, §3).

    The slopes of the heads are geometric, starting at and multiplied by the n-th root of 2⁻⁸, n the
    power of two at or below n_head; heads beyond n take every other slope of the next power.
    `heads`: the heads of one of several devices.
    """
    n = 2 ** int(math.log2(n_head))
    slopes = [2 ** (-8 * (i + 1) / n) for i in range(n)]
    slopes += [2 ** (-4 * (2 * i + 1) / n) for i in range(n_head - n)]
    slopes = torch.tensor(slopes[heads], device=like.device, dtype=like.dtype)
    return -slopes[:, None, None] * distances(length, like.device, start)


def bucket(distance, n_bucket: int, max_distance: int, both_ways: bool):
    """Map integer distances (key position minus query position) to T5's buckets, in any shape.

    Single distances first, then ranges that grow logarithmically up to max_distance (Raffel et al.
    2020, §2.1).

    With `both_ways`, half the buckets are for keys after the query; otherwise those keys all fall
    into the first bucket.
    """
    if both_ways:
        n_bucket //= 2
        side = (distance > 0) * n_bucket
        distance = distance.abs()
    else:
        side = 0
        distance = (-distance).clamp(min=0)
    n_single = max(1, n_bucket // 2)
    share = torch.log(distance.clamp(min=1) / n_single) / math.log(max_distance / n_single)
    far = n_single + (share * (n_bucket - n_single)).long()
    return side + torch.where(distance < n_single, distance, far.clamp(max=n_bucket - 1))


class DistanceBuckets(nn.Embedding):
    """Relative position bias: one number per head and bucket (Raffel et al. 2020, §2.1)."""

    def forward(self, length: int, start: int = 0):
        """Return the bias (n_head, queries, keys) of causal attention, without its mask."""
        distance = distances(length, self.weight.device, start)
        place = bucket(-distance, self.num_embeddings, FARTHEST_BUCKET, both_ways=False)
        return super().forward(place).permute(2, 0, 1)


def shift(scores):
    """Convert scores by distance to scores by key (Dai et al. 2019, appendix B).

    (…, length, length): column d of row i, the score at distance d, becomes column i − d.
    """
    length = scores.shape[-1]
    distance = distances(length, scores.device).clamp(min=0)
    return scores.gather(-1, distance.expand(scores.shape))
