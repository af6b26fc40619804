"""Trace of a real module: live bytes, tensors saved by autograd, and operations.

It tracks tensors, not memory, so it gives the same on meta and on a real device.
"""

import math
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from importlib import import_module

import torch
from torch import nn
from torch._C import _DisableTorchDispatch
from torch._C._autograd import _get_sequence_nr
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import conv_flop_count, flop_registry, sdpa_backward_flop, sdpa_flop

from modelbudget.architecture.terms import component_of
from modelbudget.measurement.trace.bytes_at_peak import ACTIVATIONS, PARAMETERS, Mark
from modelbudget.measurement.trace.meta_cache import Replay
from modelbudget.modules.kept_results import listening

OUTSIDE = "loss"
"""Component of operations outside the model: the loss."""
OPTIMIZER = "optimizer"
"""The phase of a step of the optimizer."""

PLAIN = {torch.Tensor, nn.Parameter}
"""Types of tensors without a dispatch of their own."""

aten = torch.ops.aten


def grouped_mm_flop(a: torch.Tensor, b: torch.Tensor, *_, **__) -> int:
    """Return the FLOPs of products of groups, which `a` or `b` has side by side in one matrix."""
    n_batch = a.shape[0] if a.dim() == b.dim() == 3 else 1
    return 2 * n_batch * a.shape[-2] * a.shape[-1] * b.shape[-1]


def convolution_backward_flop(
    gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, *args, **__
) -> int:
    """Return the FLOPs of the gradients of a convolution, each as many as those of its result.

    Torch's formula counts the weight gradient of several groups as that of one.
    """
    *_, transposed, _, _, wanted = args
    per_gradient = conv_flop_count(
        list(x.shape), list(weight.shape), list(gradient.shape), transposed
    )
    return sum(wanted[:2]) * per_gradient


FLOPS = flop_registry | {
    aten._grouped_mm: grouped_mm_flop,
    aten.convolution_backward: convolution_backward_flop,
    aten._int_mm: grouped_mm_flop,
    # Torch's formula takes no dtype of the result.
    aten.addmm: lambda _, a, b, *__, **___: grouped_mm_flop(a, b),
    # Torch has FLOP formulas for a GPU's attention; that of a CPU has the same.
    aten._scaled_dot_product_flash_attention_for_cpu: sdpa_flop,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: sdpa_backward_flop,
}


def flops_of(operation, args: tuple, kwargs: dict, out) -> int | None:
    """Return the FLOPs of one call of an operation; None if it has no formula."""
    formula = FLOPS.get(operation._overloadpacket)
    return formula and formula(*args, **kwargs, out_val=out)


def _of_safe_softmax(scores: torch.Tensor, dim: int, *_) -> list[int]:
    """Bytes of whether each score is −∞, whether all of a row are, and of a zero (SoftMax.cpp)."""
    return [scores.numel(), scores.numel() // scores.shape[dim], scores.itemsize]


def _of_embedding_backward(gradient: torch.Tensor, places: torch.Tensor, n_rows: int, *_):
    """Bytes that the numbers of rows take to be sorted, and sums of few rows (Embedding.cu).

    Few rows are added without.
    """
    n, width = places.numel(), gradient.shape[-1]
    if n <= 3072:
        return []
    n_segments = min(n, n_rows)
    n_partial = n // 10 + n_segments
    exact = torch.promote_types(gradient.dtype, torch.float32).itemsize
    return [places.itemsize * (3 * n + 2 * n_segments + n_partial + 2) + exact * n_partial * width]


TEMPORARY: dict[int, Callable[..., list[int]]] = {id(aten._safe_softmax.default): _of_safe_softmax}
"""What an operation has in memory for a while beside its result, where a trace sees neither that
nor the operations inside. By its id: torch computes the hash of an operation in Python.
"""
TEMPORARY_ON_GPU = TEMPORARY | {
    # The gradient times the result (SoftMax.cu).
    id(aten._softmax_backward_data.default): lambda gradient, *_: [gradient.nbytes],
    id(aten.embedding_dense_backward.default): _of_embedding_backward,
}
"""The same of CUDA's kernels. An H200 read them (configs/gpu_recordings.json)."""


@contextmanager
def stepping():
    """Let traces of the block know that an optimizer steps, also inside of a backward pass."""
    before, Trace.is_stepping = Trace.is_stepping, True
    try:
        yield
    finally:
        Trace.is_stepping = before


def import_compiler() -> None:
    """Import what the first traced operation would import, which takes a second.

    Imported there, it would leave a cycle of references that holds the tensors of all calling
    functions until Python looks for such cycles.
    """
    import_module("torch._dynamo")


class TooManyOperationsError(Exception):
    """A phase has more operations than its trace may have."""


class Trace(TorchDispatchMode):
    """Live and peak bytes, saved bytes and FLOPs while it is active.

    Construct it before the model runs; parameters and buffers are live from the start. With more
    operations than `limit` in one phase it raises TooManyOperationsError.
    Attributes: `live` and `peak` (bytes), `flops` (by phase and component), `uncounted` (calls by
    name of operations without a FLOP formula, except views), `changes` (the key of each allocated
    storage with its bytes, and of each freed one with None; a key is unique among live storages),
    `ends` (number of changes up to the end of each phase that the caller has marked), `marks` (what
    storages are for, as far as `mark` has said).
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Spare each operation a check for torch's compiler, which is not used here."""
        return False

    temporary = TEMPORARY_ON_GPU
    """What operations have beside their results; `of_backend` sets it."""
    is_stepping = False
    """Whether an optimizer steps now (`stepping`)."""

    def __init__(self, model: nn.Module, limit: float = math.inf):
        import_compiler()
        super().__init__()
        self._limit = limit
        self.live = self.peak = 0
        self.changes: list[tuple[int, int | None]] = []
        self.ends: dict[str, int] = {}
        self.marks: list[Mark] = []
        self.flops: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._uncounted: Counter[str] = Counter()
        self._run = Replay(flops_of)
        self._watched: dict[int, weakref.ref] = {}
        self._sizes: dict[int, int] = {}
        # For callbacks: they would hold the trace and its model until garbage is collected.
        self._weakly = weakref.proxy(self)
        self._saved: list[weakref.ref[_Saved]] = []
        self._kept: list[tuple[weakref.ref, str]] = []
        self._component = [OUTSIDE]
        self._of_node: dict[int, str] = {}
        self._names = {
            module: component_of(f"{path}.weight") if path else OUTSIDE
            for path, module in model.named_modules()
        }
        self._parameters = {p.untyped_storage()._cdata for p in model.parameters()}
        resident = [*model.parameters(), *model.buffers()]
        for tensor in resident:
            self._watch(tensor)
        self.mark(PARAMETERS, resident)

    def of_backend(self, name: str) -> None:
        """Know the temporary tensors of kernels of a backend, `gpu` or `cpu`."""
        self.temporary = TEMPORARY_ON_GPU if name == "gpu" else TEMPORARY

    @contextmanager
    def watching(self, phase: str):
        """Assign all operations of the block to a phase, with a peak of its own."""
        self.peak, self._left = self.live, self._limit
        self._phase = phase
        with ExitStack() as stack:
            stack.callback(register_module_forward_pre_hook(self._enter).remove)
            stack.callback(register_module_forward_hook(self._leave, always_call=True).remove)
            stack.enter_context(saved_tensors_hooks(self._pack, lambda saved: saved.tensor))
            stack.enter_context(listening(self._keep))
            stack.enter_context(self)
            yield self

    @property
    def uncounted(self) -> Counter[str]:
        """Number of calls, by name, of operations without a FLOP formula, except views."""
        return Counter({name.replace("::", "."): n for name, n in self._uncounted.items()})

    def saved(self) -> Counter[str]:
        """Return the bytes now saved by autograd, by the component that saved them first.

        Parameters are excluded; results that checkpointed layers keep are included.
        """
        n_bytes: Counter[str] = Counter()
        seen = set(self._parameters)
        live = [saved for reference in self._saved if (saved := reference()) is not None]
        self._saved = [weakref.ref(saved) for saved in live]
        for saved in live:
            storage = self.storage(saved.tensor)
            if storage._cdata not in seen:
                seen.add(storage._cdata)
                n_bytes[saved.component] += storage.nbytes()
        for reference, component in self._kept:
            storage = reference()
            if storage is not None and storage._cdata not in seen:
                seen.add(storage._cdata)
                n_bytes[component] += storage.nbytes()
        return n_bytes

    def held(self, tensors: Sequence[torch.Tensor]) -> list[int]:
        """Return the bytes of the storage of each tensor, with its padding.

        Of a storage that several of them share, up to the beginning of the next.
        """
        storages = [tensor.untyped_storage() for tensor in tensors]
        starts = [int(tensor.storage_offset()) * tensor.element_size() for tensor in tensors]
        marks: dict[int, set[int]] = {}
        for storage, start in zip(storages, starts, strict=True):
            marks.setdefault(storage._cdata, {storage.nbytes()}).add(start)
        return [
            min((mark for mark in marks[storage._cdata] if mark > start), default=start) - start
            for storage, start in zip(storages, starts, strict=True)
        ]

    def mark(self, purpose: str, tensors: Iterable[torch.Tensor]) -> None:
        """Say what the storages of some tensors are for: one of `bytes_at_peak.PURPOSES`."""
        for tensor in tensors:
            self._mark(self.storage(tensor)._cdata, purpose)

    def _mark(self, key: int, purpose: str) -> None:
        self.marks.append((len(self.changes), key, purpose))

    def storage(self, tensor: torch.Tensor) -> torch.UntypedStorage:
        return tensor.untyped_storage()

    def __torch_dispatch__(self, func, types, args: tuple = (), kwargs=None):
        self._left -= 1
        if self._left < 0:
            raise TooManyOperationsError(
                f"more than {self._limit:,} operations in one phase; a loop over tokens?"
            )
        if self.is_stepping and func is aten._local_scalar_dense.default and args[0].is_meta:
            return 1.0  # a norm that scales an update: no size depends on it
        component = self._running()
        # lift_fresh wraps a scalar constant.
        if func.is_view and func is not aten.lift_fresh.default:
            return func(*args, **(kwargs or {}))
        out, n_flops = self._run(func, args, kwargs or {})
        if isinstance(out, torch.Tensor):
            self._watch(out)
        elif isinstance(out, tuple | list):
            for tensor in out:
                if isinstance(tensor, torch.Tensor):
                    self._watch(tensor)
        if id(func) in self.temporary:  # tensors of as many bytes, on any device
            sizes = self.temporary[id(func)](*args)
            inside = [torch.empty(n, dtype=torch.uint8, device="meta") for n in sizes]
            for tensor in inside:
                self._watch(tensor)
            inside = tensor = None
        if n_flops is None:
            self._uncounted[func._overloadpacket._qualified_op_name] += 1
        else:
            # Gradients that a forward pass computes are FLOPs of the backward pass.
            is_gradient = torch._C._current_autograd_node() is not None
            self.flops["backward" if is_gradient else self._phase][component] += n_flops
        return out

    def _running(self) -> str:
        """Return the component of the current operation.

        For a backward operation, which runs outside of all modules, the component whose forward
        operation created the running node of the graph.
        """
        if len(self._component) == 1:
            node = torch._C._current_autograd_node()
            if node is not None:
                return self._of_node.get(node._sequence_nr(), OUTSIDE)
        # Autograd numbers its nodes. The newest was created by this operation or by an earlier
        # one, which has been recorded then.
        component = self._component[-1]
        self._of_node.setdefault(_get_sequence_nr() - 1, component)
        return component

    def _watch(self, tensor: torch.Tensor) -> None:
        storage = self.storage(tensor)
        key = storage._cdata
        if key not in self._watched:
            self._watched[key] = weakref.ref(storage, partial(Trace._freed, self._weakly, key))
            self._resized(key, storage.nbytes())

    def _freed(self, key: int, _) -> None:
        del self._watched[key]
        self._resized(key, 0)

    def _resized(self, key: int, n_bytes: int) -> None:
        """Note how many bytes a storage has from now on: none of one that is freed."""
        before = self._sizes.pop(key, 0)
        if n_bytes:
            self._sizes[key] = n_bytes
        if n_bytes == before:
            return
        if before:
            self.changes.append((key, None))
        if n_bytes:
            self.changes.append((key, n_bytes))
        self.live += n_bytes - before
        if self.live > self.peak:
            self.peak = self.live

    def _enter(self, module: nn.Module, _) -> None:
        # An unknown module belongs to the component that calls it.
        self._component.append(self._names.get(module, self._component[-1]))

    def _leave(self, *_) -> None:
        self._component.pop()

    def _pack(self, tensor: torch.Tensor) -> "_Saved":
        # Without its history: a saved result that held the node that saves it would never be freed.
        with _DisableTorchDispatch() if type(tensor) in PLAIN else nullcontext():
            saved = _Saved(tensor.detach(), self._component[-1])
        self._saved.append(weakref.ref(saved))
        self.mark(f"{ACTIVATIONS}.{saved.component}", [tensor])
        return saved

    def _keep(self, tensor: torch.Tensor) -> None:
        self._kept.append((self._watched[self.storage(tensor)._cdata], self._component[-1]))
        self.mark(f"{ACTIVATIONS}.{self._component[-1]}", [tensor])


class _Saved:
    """A tensor saved for backward; freed with the node that saved it."""

    __slots__ = ("__weakref__", "component", "tensor")

    def __init__(self, tensor: torch.Tensor, component: str):
        self.tensor, self.component = tensor, component
