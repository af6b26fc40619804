"""T5's buckets of distances."""

import math

import torch


def bucket(distance, n_bucket: int, max_distance: int, both_ways: bool):
    """Map integer distances (key position minus query position) to buckets, in any shape.

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
