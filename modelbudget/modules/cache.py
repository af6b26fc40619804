"""KV cache and recurrent state."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


class Cache:
    """Tensors (batch, heads, length, width), filled from the first token on: keys and values, or
    latents and rotary keys. Without any it only counts the tokens.
    """

    name = ""
    """Of its component, below that of the part that it belongs to."""

    def __init__(self, widths: list[tuple[int, int]], batch: int, length: int, like):
        self.tensors = [like.new_empty(batch, heads, length, width) for heads, width in widths]
        self.length = 0

    def advance(self, n_new: int) -> int:
        """Count new tokens; give the place of the first. Raises ValueError for several tokens after
        others, which would need a mask.
        """
        if self.length and n_new > 1:
            raise ValueError(f"{n_new} tokens after {self.length}: one at a time")
        self.length += n_new
        return self.length - n_new

    def append(self, *new) -> list:
        """Keep what is new; give all that there is."""
        start = self.advance(new[0].shape[2])
        for kept, fresh in zip(self.tensors, new, strict=True):
            kept[:, :, start : self.length] = fresh
        return [kept[:, :, : self.length] for kept in self.tensors]


class Window(Cache):
    """As Cache, of the last `window` tokens: a token takes the place of the first that it does not
    see. Keys know their positions, so their order does not matter.
    """

    name = "window"

    def __init__(self, widths, batch: int, length: int, like, window: int):
        super().__init__(widths, batch, min(length, window), like)
        self.window = window

    def append(self, *new) -> list:
        """Keep the last of what is new; give all that any of it may see."""
        n_new = new[0].shape[2]
        if self.length + n_new <= self.window:
            return super().append(*new)
        self.advance(n_new)
        if n_new == 1:
            place = (self.length - 1) % self.window
            for kept, fresh in zip(self.tensors, new, strict=True):
                kept[:, :, place : place + 1] = fresh
            return self.tensors
        shift = n_new % self.window
        for kept, fresh in zip(self.tensors, new, strict=True):
            kept[:, :, :shift] = fresh[:, :, n_new - shift :]
            kept[:, :, shift:] = fresh[:, :, n_new - self.window : n_new - shift]
        return list(new)


class State:
    """Tensors (batch, …) of one size whatever the number of tokens, zero before the first."""

    name = ""

    def __init__(self, shapes: list[tuple[int, ...]], batch: int, like):
        self.tensors = [like.new_zeros(batch, *shape) for shape in shapes]

    def keep(self, *new) -> None:
        """The state after the last token takes the place of the one before."""
        for kept, fresh in zip(self.tensors, new, strict=True):
            kept.copy_(fresh)


@contextmanager
def caching(model: nn.Module, batch: int, length: int) -> Iterator[dict[str, Cache | State]]:
    """Give every module with `make_cache` a cache inside this context; the caches by path."""
    parts = {path: part for path, part in model.named_modules() if hasattr(part, "make_cache")}
    like = next(model.parameters()).detach()
    for part in parts.values():
        part.cache = part.make_cache(batch, length, like)
    try:
        with torch.no_grad():
            yield {path: part.cache for path, part in parts.items()}
    finally:
        for part in parts.values():
            part.cache = None
