"""KV cache: keys and values, or latents, of the tokens so far."""

from collections.abc import Sequence

from modelbudget.architecture.formula_arguments import Run
from modelbudget.operations.joining import cat
from modelbudget.operations.tape import BYTES, Active, Tensor, empty, product, view_of


def declare(r: Run, widths, window=0, length=None) -> "Cache | None":
    """Declare the cache of the part that is being made; None in training.

    `widths`: heads and channels of each tensor (batch, heads, length, channels). `length`: if it
    is not that of the run.
    """
    tape = Active.tape
    if tape.cache_length is None:
        return None
    batch, of_run = tape.cache_length
    shapes = [(batch, n, length or of_run, width) for n, width in widths]
    cache = (GrowingCache if r.cache_growth == "concatenated" else Cache)(shapes, window)
    tape.caches.append((tape.scope + (".window" if window else ""), cache))
    return cache


class Cache:
    """Tensors for all tokens, or for those of a sliding window; `length`: tokens so far."""

    def __init__(self, shapes: Sequence[tuple], window):
        self.window, self.length = window, 0
        n_kept = min(shapes[0][2], window) if window else shapes[0][2]
        self.tensors = [empty((batch, n, n_kept, width)) for batch, n, _, width in shapes]

    def clear(self) -> None:
        """Begin without tokens, in the same tensors."""

    def append(self, *new: Tensor) -> list[Tensor]:
        """Write keys and values of new tokens; return all that these may attend, as views."""
        n_new = new[0].shape[2]
        self.length += n_new
        if self.window and self.length > self.window:
            return self.tensors if n_new == 1 else list(new)
        return [tensor.narrow(2, self.length) for tensor in self.tensors]

    def forget_last(self) -> None:
        """Let the last token come again."""
        self.length -= 1


class GrowingCache(Cache):
    """Tensors that grow by concatenation with those of new tokens, as transformers' DynamicCache.

    They are declared with all tokens of a prompt. With a window the next token reads window − 1
    tokens before it, as a view of all that were there, and the window is a tensor, too
    (cache_utils.py, DynamicSlidingWindowLayer).
    """

    def __init__(self, shapes: Sequence[tuple], window):
        self.window, self.length = window, 0
        self.kept = [empty(shape) for shape in shapes]
        self.of_window = [empty((), "int64")] if window else []

    @property
    def tensors(self) -> list[Tensor]:
        return [*self.kept, *self.of_window]

    def clear(self) -> None:
        """Begin without tokens."""
        self.length = 0
        self.kept = [empty((*x.shape[:2], 0, x.shape[3])) for x in self.kept]

    def append(self, *new: Tensor) -> list[Tensor]:
        """Concatenate keys and values; return all that new tokens may attend."""
        self.length += new[0].shape[2]
        if self.window:
            joined = [cat(pair, 2) for pair in zip(self.kept, new, strict=True)]
            self.kept = [self._read_next(x) for x in joined]
            return joined
        for place, x in enumerate(new):
            self.kept[place] = cat((self.kept[place], x), 2)
        return list(self.kept)

    def forget_last(self) -> None:
        """Hold what a prompt without the last token leaves."""
        self.length -= 1
        for place, x in enumerate(self.kept):
            shape = *x.shape[:2], self.length, x.shape[3]
            x.storage.resize(BYTES[x.dtype] * product(shape))
            self.kept[place] = self._read_next(view_of(x, shape, x.strides))

    def _read_next(self, x: Tensor) -> Tensor:
        if not self.window:
            return x
        return x.narrow(2, min(self.length, self.window - 1), is_first=False)
