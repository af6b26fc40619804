"""KV cache: keys and values, or latents, of the tokens so far."""

from modelbudget.operations.tape import Active, Tensor, empty
from modelbudget.operations.views import narrow


def declare(widths, window=0, length=None) -> "Cache | None":
    """Declare the cache of the part that is being made; None in training.

    `widths`: heads and channels of each tensor (batch, heads, length, channels). `length`: if it
    is not that of the run.
    """
    tape = Active.tape
    if tape.cache_length is None:
        return None
    batch, of_run = tape.cache_length
    length = length or of_run
    n_kept = min(length, window) if window else length
    cache = Cache([empty((batch, n, n_kept, width)) for n, width in widths], window)
    tape.caches.append((tape.scope + (".window" if window else ""), cache))
    return cache


class Cache:
    """Tensors for all tokens, or for those of a sliding window; `length`: tokens so far."""

    def __init__(self, tensors: list[Tensor], window):
        self.tensors, self.window, self.length = tensors, window, 0

    def append(self, *new: Tensor) -> list[Tensor]:
        """Write keys and values of new tokens; return all that these may attend, as views."""
        n_new = new[0].shape[2]
        self.length += n_new
        if self.window and self.length > self.window:
            return self.tensors if n_new == 1 else list(new)
        return [narrow(tensor, 2, self.length) for tensor in self.tensors]

    def forget_last(self) -> None:
        """Let the last token come again."""
        self.length -= 1
