"""What attention remembers of the tokens before, so that the next one need not read them again."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


class Cache:
    """Tensors (batch, heads, length, width), filled from the first token on: keys and values, or
    latents and rotary keys.
    """

    def __init__(self, widths: list[tuple[int, int]], batch: int, length: int, like):
        self.tensors = [like.new_empty(batch, heads, length, width) for heads, width in widths]
        self.length = 0

    def append(self, *new) -> list:
        """Keep what is new; give all that there is. Raises ValueError for several tokens after
        others, which would need a mask.
        """
        n_new = new[0].shape[2]
        if self.length and n_new > 1:
            raise ValueError(f"{n_new} tokens after {self.length}: one at a time")
        whole = slice(0, self.length + n_new)
        for kept, fresh in zip(self.tensors, new, strict=True):
            kept[:, :, self.length : whole.stop] = fresh
        self.length = whole.stop
        return [kept[:, :, whole] for kept in self.tensors]


@contextmanager
def caching(model: nn.Module, batch: int, length: int) -> Iterator[dict[str, Cache]]:
    """Every part of the model that can remember does so inside this context; its caches by path."""
    parts = {path: part for path, part in model.named_modules() if hasattr(part, "cached")}
    like = next(model.parameters()).detach()
    for part in parts.values():
        part.cache = Cache(part.cached, batch, length, like)
    try:
        with torch.no_grad():
            yield {path: part.cache for path, part in parts.items()}
    finally:
        for part in parts.values():
            part.cache = None
