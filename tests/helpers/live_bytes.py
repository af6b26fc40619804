"""An independent count of live bytes: the sum over all live storages after each operation."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.weak import WeakIdKeyDictionary


class LiveBytes(TorchDispatchMode):
    """Peaks of live bytes by phase, of all tensors given or made since.

    Slow and simple: nothing is computed from an allocation before, nothing is replayed.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]):
        super().__init__()
        self.peaks: dict[str, int] = {}
        self._phase = ""
        self._live = WeakIdKeyDictionary()
        self._see(tensors)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Give the operations of the block a peak of their own."""
        self._phase, self.peaks[name] = name, self.now
        with self:
            yield

    @property
    def now(self) -> int:
        """Bytes of the storages that are live."""
        return sum(self._live.values())

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self._see(tree_iter(out))
        inside = 0
        if func is torch.ops.aten._safe_softmax.default:  # see tests/operations/test_reductions.py
            scores = args[0]
            inside = scores.numel() + scores.numel() // scores.shape[-1] + scores.itemsize
        self.peaks[self._phase] = max(self.peaks[self._phase], self.now + inside)
        return out

    def _see(self, values) -> None:
        for value in values:
            if isinstance(value, torch.Tensor):
                storage = value.untyped_storage()
                self._live[storage] = storage.nbytes()
