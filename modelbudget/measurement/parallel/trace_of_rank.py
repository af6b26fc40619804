"""Trace of a model whose parameters are shards: what one rank holds."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor

from modelbudget.measurement.trace.bytes_at_peak import BUFFERS, GATHERED, GRADIENTS, RECEIVED
from modelbudget.measurement.trace.module_trace import Trace

_c10d = torch.ops._c10d_functional
_SAME_TENSOR = (_c10d.wait_tensor.default, _c10d._wrap_tensor_autograd.default)


@cache
def _is_composed(func) -> bool:
    """Whether an operation has no kernel of a device and is composed of others."""
    keys = torch._C.DispatchKey
    of_device = func.has_kernel_for_dispatch_key(keys.CPU)
    return func.has_kernel_for_dispatch_key(keys.CompositeImplicitAutograd) and not of_device


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of a tensor that this rank holds."""
    if isinstance(tensor, DTensor):
        tensor = tensor._local_tensor
    return tensor.elem if isinstance(tensor, AsyncCollectiveTensor) else tensor


class ShardedTrace(Trace):
    """A Trace that also sees what FSDP2 does beside ordinary operations.

    It frees and allocates the gathered parameters by resizing their storages, which is no
    operation. DTensor dispatches an operation once more on the local tensors, which count, and
    finds its result's shape with fake tensors of the global size, which do not.
    """

    def __init__(self, model: nn.Module):
        self._gathered: set[int] = set()
        self._model = model
        super().__init__(model)

    @contextmanager
    def watching(self, phase: str) -> Iterator[Trace]:
        resize = torch.UntypedStorage.resize_

        def resized(storage: torch.UntypedStorage, n_bytes: int) -> Any:
            result = resize(storage, n_bytes)
            key = storage._cdata
            if key in self._watched:
                self._resized(key, storage.nbytes())
            self._mark(key, GATHERED)
            self._gathered.add(key)
            return result

        with patch.object(torch.UntypedStorage, "resize_", resized), super().watching(phase):
            yield self

    def saved(self):
        """Return the saved bytes, without the gathered parameters, frozen ones too."""
        storages = {local(p).untyped_storage()._cdata for p in self._model.parameters()}
        self._parameters = storages | self._gathered
        return super().saved()

    def storage(self, tensor: torch.Tensor) -> torch.UntypedStorage:
        return local(tensor).untyped_storage()

    def held(self, tensors: Sequence[torch.Tensor]) -> list[int]:
        """Return the bytes that this rank holds for each tensor, with its padding.

        FSDP2 lays the gradients of a group one after the other into one storage.
        """
        return super().held([local(tensor) for tensor in tensors])

    def __torch_dispatch__(self, func, types, args: tuple = (), kwargs=None):
        if any(issubclass(type_, DTensor | AsyncCollectiveTensor) for type_ in types):
            return NotImplemented
        if any(issubclass(type_, FakeTensor) for type_ in types):
            return func(*args, **(kwargs or {}))
        if func in _SAME_TENSOR and args[0].is_meta:
            return args[0].detach()  # the same tensor on a device; on meta they allocate another
        if _is_composed(func):
            # Below autograd, such operations (`to`, `reshape`) arrive whole; some of them copy.
            with self:
                return func.decompose(*args, **(kwargs or {}))
        if func.namespace != "aten":  # has process groups among its arguments, and no FLOPs
            out = func(*args, **(kwargs or {}))
            outputs = out if isinstance(out, tuple | list) else [out]
            tensors = [tensor for tensor in outputs if isinstance(tensor, torch.Tensor)]
            for tensor in tensors:
                self._watch(tensor)
            self._communicated(func.name(), tensors, args, kwargs or {})
            return out
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _communicated(
        self, name: str, outputs: list[torch.Tensor], args: tuple, kwargs: dict
    ) -> None:
        """Mark what an operation moves between devices, or copies for that."""
        if name == "fsdp::all_gather_copy_in":
            self.mark(BUFFERS, (*args[0], args[1]))
        elif name == "fsdp::chunk_cat":
            self.mark(GRADIENTS, args[0])
            self.mark(BUFFERS, [kwargs["out"]])
        elif name == "c10d::_allgather_base_":
            self.mark(BUFFERS, args[:1])
        elif name == "c10d::recv_":
            self.mark(RECEIVED, args[0])
        elif name.startswith("_c10d_functional::"):
            self.mark(BUFFERS, outputs)

    def _watch(self, tensor: torch.Tensor) -> None:
        if not isinstance(tensor, FakeTensor):
            super()._watch(tensor)
