"""KV cache and recurrent state."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

STORED = {
    "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16,
    "fp8": torch.float8_e4m3fn, "int8": torch.int8,
}  # fmt: skip
"""Dtypes of torch by the formats of a cache that are one."""


class Cache:
    """Cached tensors (batch, heads, length, width), filled from the first token on.

    Keys and values, or latents and rotary keys. Without tensors it only counts the tokens.
    """

    name = ""
    """The name of its component, below that of the part that it belongs to."""

    def __init__(self, widths: list[tuple[int, int]], batch: int, length: int, like):
        self.tensors = [like.new_empty(batch, heads, length, width) for heads, width in widths]
        self.length = 0

    def store_in(self, name: str) -> None:
        """Allocate the tensors in a format: codes and, of int8, a scale for each head of a token.

        Nothing reads them: only their bytes are of interest.
        """
        codes = [tensor.to(STORED[name]) for tensor in self.tensors]
        scales = [tensor[..., 0].float().clone() for tensor in self.tensors if name == "int8"]
        self.tensors = [*codes, *scales]

    def advance(self, n_new: int) -> int:
        """Count new tokens and return the position of the first.

        Raises ValueError for several tokens after earlier ones, which would need a mask.
        """
        if self.length and n_new > 1:
            raise ValueError(f"{n_new} tokens after {self.length}: one at a time")
        self.length += n_new
        return self.length - n_new

    def clear(self) -> None:
        """Begin without tokens."""
        self.length = 0

    def append(self, *new) -> list:
        """Append new keys and values; return all."""
        start = self.advance(new[0].shape[2])
        for kept, fresh in zip(self.tensors, new, strict=True):
            kept[:, :, start : self.length] = fresh
        return [kept[:, :, : self.length] for kept in self.tensors]


class Window(Cache):
    """A rolling buffer cache of the last `window` tokens.

    A new token replaces the oldest, which it does not attend to. Keys are stored with RoPE applied,
    so their order does not matter.
    """

    name = "window"

    def __init__(self, widths, batch: int, length: int, like, window: int):
        super().__init__(widths, batch, min(length, window), like)
        self.window = window

    def append(self, *new) -> list:
        """Append the last new keys and values; return all that any new token may see."""
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


class GrowingCache(Cache):
    """Tensors that grow by concatenation with those of new tokens, as transformers' DynamicCache.

    It begins with all tokens of a prompt, to be counted. With a window the next token reads
    window − 1 tokens before it, as a view of all that were there, and the window is a tensor, too.
    """

    def __init__(self, fixed: Cache, length: int):
        self.name, self.window = fixed.name, getattr(fixed, "window", 0)
        self.kept = [x.new_empty(*x.shape[:2], length, x.shape[3]) for x in fixed.tensors]
        first = self.kept[:1] if self.window else []
        self.of_window = [x.new_empty((), dtype=torch.int64) for x in first]
        self.length = 0

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [*self.kept, *self.of_window]

    def clear(self) -> None:
        self.kept = [x.new_empty(*x.shape[:2], 0, x.shape[3]) for x in self.kept]
        super().clear()

    def append(self, *new) -> list:
        self.advance(new[0].shape[2])
        if self.window:
            joined = [torch.cat(pair, 2) for pair in zip(self.kept, new, strict=True)]
            n_read = min(self.length, self.window - 1)
            self.kept = [x[:, :, x.shape[2] - n_read :] for x in joined]
            return joined
        for place, x in enumerate(new):
            self.kept[place] = torch.cat((self.kept[place], x), 2)
        return list(self.kept)


class State:
    """Tensors (batch, …) of one size whatever the number of tokens, zero before the first."""

    name = ""

    def __init__(self, shapes: list[tuple[int, ...]], batch: int, like, dtype=None):
        self.tensors = [like.new_zeros(batch, *shape, dtype=dtype) for shape in shapes]

    def clear(self) -> None:
        """Begin with the state that is there: its values change no size."""

    def keep(self, *new) -> None:
        """Overwrite the state with that after the last token."""
        for kept, fresh in zip(self.tensors, new, strict=True):
            kept.copy_(fresh)


def exact(x) -> torch.dtype:
    """At least single precision."""
    return torch.promote_types(x.dtype, torch.float32)


class KeepsKeys(nn.Module):
    """A part that keeps keys and values of all tokens, or of those in its window."""

    cache: Any = None
    n_kv_head: int
    d_head: int
    window = 0

    def make_cache(self, batch: int, length: int, like) -> Cache:
        widths = [(self.n_kv_head, self.d_head)] * 2
        if self.window:
            return Window(widths, batch, length, like, self.window)
        return Cache(widths, batch, length, like)


class KeepsStates(nn.Module):
    """A part that keeps states from one token to the next: a tensor (batch, …) of each shape."""

    cache: Any = None
    shapes: list[tuple[int, ...]]
    exact_state = False
    """Whether they are in at least single precision."""
    follows_run = False
    """Whether the run's `state_dtype` decides that."""

    def make_cache(self, batch: int, length: int, like) -> State:
        return State(self.shapes, batch, like, exact(like) if self.exact_state else None)

    def states(self, x) -> list:
        """Return the states before the first token of x (batch, …)."""
        return self.cache.tensors if self.cache else [x.new_zeros(len(x), *s) for s in self.shapes]

    def keep(self, *new) -> None:
        """Overwrite the states, in inference, with those after the last token."""
        if self.cache:
            self.cache.keep(*new)


@contextmanager
def caching(
    model: nn.Module, batch: int, length: int, dtype: torch.dtype | None = None, grows: bool = False
) -> Iterator[dict[str, Cache | State]]:
    """Give every module with `make_cache` a cache inside this context; the caches by path.

    `dtype`: of the states, where the first parameter has another; `grows`: keys and values are
    concatenated. Not those inside of a module with `only_trained`, which inference leaves out.
    """
    modules = dict(model.named_modules())
    unused = tuple(f"{path}." for path, part in modules.items() if hasattr(part, "only_trained"))
    parts: dict[str, Any] = {
        path: part
        for path, part in modules.items()
        if hasattr(part, "make_cache") and not path.startswith(unused)
    }
    # Of which a device may have a part. Those of the model itself are shared by its adapters.
    parameter = next(parameter for path, parameter in model.named_parameters() if "." in path)
    like = torch.empty(0, dtype=dtype or parameter.dtype, device=parameter.device)
    for part in parts.values():
        part.cache = part.make_cache(batch, length, like)
        if grows and isinstance(part.cache, Cache):
            part.cache = GrowingCache(part.cache, length)
    try:
        with torch.no_grad():
            yield {path: part.cache for path, part in parts.items()}
    finally:
        for part in parts.values():
            part.cache = None
