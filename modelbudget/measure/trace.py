"""One pass of a real module, watched: live bytes, what autograd saves, the operations it runs.

Works alike without storage (`meta`) and with it: what is watched are the tensors, not the memory.
"""

import weakref
from collections import Counter
from contextlib import contextmanager
from functools import partial

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from modelbudget.measure.count import component_of

OUTSIDE = "loss"
"""The component of what runs outside the model: the loss."""


class Trace(TorchDispatchMode):
    """Live and peak bytes, saved bytes and FLOPs while it is active.

    Give it the model before anything runs; its parameters count as live from the start.
    Attributes: `live` and `peak` (bytes), `saved` (bytes by component), `flops` (by phase and
    component), `uncounted` (calls by name of operations on floating tensors that have no FLOP
    formula in torch).
    """

    def __init__(self, model: nn.Module):
        super().__init__()
        self.live = self.peak = 0
        self.saved: Counter[str] = Counter()
        self.flops: dict[str, Counter[str]] = {}
        self.uncounted: Counter[str] = Counter()
        self.phase = ""
        self.saving = True
        self._watched: dict[int, weakref.ref] = {}
        self._saved_storages: dict[int, torch.UntypedStorage] = {}
        self._parameters: set[int] = set()
        self._component = [OUTSIDE]
        self._names = {
            module: component_of(f"{path}.weight") if path else OUTSIDE
            for path, module in model.named_modules()
        }
        for parameter in model.parameters():
            self._parameters.add(parameter.untyped_storage()._cdata)
            self._watch(parameter)

    @contextmanager
    def watching(self, phase: str):
        """Everything that runs in this block belongs to the phase; its own peak starts here."""
        self.phase, self.peak = phase, self.live
        self.flops.setdefault(phase, Counter())
        hooks = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]
        try:
            with saved_tensors_hooks(self._pack, self._unpack), self:
                yield self
        finally:
            for hook in hooks:
                hook.remove()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, torch.Tensor):
                self._watch(tensor)
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            flops = formula(*args, **(kwargs or {}), out_val=out)
            self.flops[self.phase][self._component[-1]] += flops
        elif not func.is_view:
            self.uncounted[str(func._overloadpacket)] += 1
        return out

    def _watch(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._watched:
            n_bytes = storage.nbytes()
            self._watched[key] = weakref.ref(storage, partial(self._freed, key, n_bytes))
            self.live += n_bytes
            self.peak = max(self.peak, self.live)

    def _freed(self, key: int, n_bytes: int, _) -> None:
        self._watched.pop(key, None)
        self.live -= n_bytes

    def _enter(self, module: nn.Module, _) -> None:
        # A module of somebody else's (a loss) runs inside whatever runs it.
        self._component.append(self._names.get(module, self._component[-1]))

    def _leave(self, *_) -> None:
        self._component.pop()

    def _pack(self, tensor: torch.Tensor):
        storage = tensor.untyped_storage()
        key = storage._cdata
        component = self._component[-1]
        if self.saving and key not in self._saved_storages and key not in self._parameters:
            self._saved_storages[key] = storage
            self.saved[component] += storage.nbytes()
        return tensor, component

    def _unpack(self, packed):
        # A backward operation reads what forward saved just before it runs: so it is the
        # component that saved it which now computes.
        tensor, self._component[-1] = packed
        return tensor
