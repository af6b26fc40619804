"""Private parts of torch that run its parallel code without devices. Checked with torch 2.13.0.

A fake process group has any number of ranks and moves nothing. The stages of a pipeline vote on
whether all know what they will receive; nobody votes here, which counts as no. FSDP2 refuses
parameters on meta before the first step, since they have no values yet, and asks the device for its
streams; on meta its code is the same otherwise, with the (absent) streams of a CPU. DTensor caches
layouts with the names of process groups, which end with the context; the shapes of whole results
are kept here, and computed on meta: the fake tensors that torch uses take longer. For an operation
without rules it decomposes this on a mesh of its own, which no trace sees here. It looks for
strided shards in all tensors of an operation once for each of them, and here once. FSDP2 divides
each parameter into a chunk for each device and reads two of them; here they are made when they are
read. DistributedDataParallel orders its buckets anew after the first step, by values that it reads;
and what sums up a bucket has to return it.
"""

import sys
from collections.abc import Callable, ItemsView, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn
from torch._C import _DisableTorchDispatch
from torch._C._distributed_c10d import GradBucket, Reducer
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp._fully_shard import (
    _fsdp_collectives,
    _fsdp_common,
    _fsdp_init,
    _fsdp_param,
    _fsdp_param_group,
    _fsdp_state,
    _fully_shard,
)
from torch.distributed.pipelining import schedules
from torch.distributed.pipelining._utils import InferenceMode
from torch.distributed.tensor import _op_schema, _sharding_prop
from torch.distributed.tensor._decompositions import DecompShardingStrategy
from torch.distributed.tensor._dtensor_spec import DTensorSpec
from torch.distributed.tensor._op_schema import OpSchema, OpStrategy
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.distributed.tensor.experimental._context_parallel import _attention as ring_attention
from torch.distributed.tensor.placement_types import _StridedShard
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import _disable_current_modes

from modelbudget.measurement.trace.meta_cache import MOST_SHARED

METHOD = "fake process group"
_SHAPES = "_propagate_tensor_meta_non_cached"
_shape_by_torch = getattr(_sharding_prop.ShardingPropagator, _SHAPES)
_STRIDED = "_propagate_use_strided_shard_flag"
_in_strided_by_torch = getattr(_sharding_prop, _STRIDED)
_DECOMPOSED = "propagate_strategy"
_decomposed_by_torch = getattr(DecompShardingStrategy, _DECOMPOSED)
_shapes: dict[tuple, Any] = {}
"""Shapes of results by operation and arguments, at most MOST_SHARED."""
_WITH_STREAMS = (_fsdp_init, _fully_shard, _fsdp_param_group, _fsdp_state, _fsdp_collectives)


@contextmanager
def fake_process_group(rank: int, world: int) -> Iterator[None]:
    """Make this process one rank of a group that has no others, inside this context."""
    hook = sys.excepthook  # which torch would replace for good
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    serve_meta(dist.distributed_c10d._get_default_group())
    try:
        with (
            patch.object(_sharding_prop.ShardingPropagator, _SHAPES, _shape_of_result),
            patch.object(_sharding_prop, "FakeTensorMode", _DisableTorchDispatch),
            patch.object(_op_schema, "_rebuild_tensor_from_dtensor_meta", _on_meta),
            patch.object(_sharding_prop, _STRIDED, _InStrided()),
            patch.object(DecompShardingStrategy, _DECOMPOSED, _without_trace),
        ):
            yield
    finally:
        _clear_sharding_prop_cache()
        dist.destroy_process_group()
        sys.excepthook = hook


def _shape_of_result(propagator: Any, schema: OpSchema) -> Any:
    """Return the shapes of an operation's whole results, which depend on no mesh and no layout."""
    key = schema.op, *map(_without_layout, (schema.args_schema, schema.kwargs_schema.items()))
    try:
        if key in _shapes:
            return _shapes[key]
    except TypeError:  # an argument without a hash
        return _shape_by_torch(propagator, schema)
    if len(_shapes) >= MOST_SHARED:
        _shapes.clear()
    return _shapes.setdefault(key, _shape_by_torch(propagator, schema))


def _without_trace(strategy: DecompShardingStrategy, schema: OpSchema) -> OpStrategy | None:
    """Decompose an operation to find its layouts, with tensors that no trace sees."""
    with _disable_current_modes():
        return _decomposed_by_torch(strategy, schema)


def _on_meta(spec: DTensorSpec) -> torch.Tensor:
    """Return a tensor of the whole size, which no trace sees."""
    whole = spec.tensor_meta
    assert whole is not None
    return torch.empty_strided(whole.shape, whole.stride, dtype=whole.dtype, device="meta")


def _without_layout(value: Any) -> Any:
    if isinstance(value, DTensorSpec):
        return value.tensor_meta
    if isinstance(value, tuple | list | ItemsView):
        return type(value), *map(_without_layout, value)
    return type(value), value


class _InStrided:
    """What torch does for strategies of an operation with strided shards; nothing for others."""

    def __init__(self):
        self._schema: OpSchema | None = None
        self._is_strided = False

    def __call__(self, strategy: OpStrategy, schema: OpSchema) -> None:
        if schema is not self._schema:
            placements = (p for spec in schema.args_spec for p in spec.placements)
            self._is_strided = any(isinstance(p, _StridedShard) for p in placements)
            self._schema = schema
        if self._is_strided:
            _in_strided_by_torch(strategy, schema)


def serve_meta(group: dist.ProcessGroup) -> None:
    """Let a fake process group move tensors on meta, too."""
    meta, cpu = torch.device("meta"), torch.device("cpu")
    if meta not in group._device_types:
        backend = dist.ProcessGroup.BackendType.CUSTOM
        group._register_backend(meta, backend, group._get_backend(cpu))


@contextmanager
def rotating(rotates: bool) -> Iterator[None]:
    """Let ring attention receive one block after the other inside this context, or all at once."""
    methods = ring_attention._RotateMethod
    method = methods.ALL_TO_ALL if rotates else methods.ALL_GATHER
    with patch.object(ring_attention._cp_options, "rotate_method", method):
        yield


@contextmanager
def fsdp_on_meta() -> Iterator[None]:
    """Let FSDP2 shard and run models on meta, inside this context."""
    group = _fsdp_param_group.FSDPParamGroup
    with ExitStack() as stack:
        for owner, name, replacement in (
            (_fully_shard, "_get_device_from_mesh", lambda mesh: torch.device("meta")),
            (group, "_validate_no_meta_params", lambda self: None),
            (_fsdp_param, "_chunk_with_empty", Chunks),
        ):
            stack.enter_context(patch.object(owner, name, replacement))
        for module in _WITH_STREAMS:
            if hasattr(module, "_get_device_handle"):
                replaced = patch.object(module, "_get_device_handle", lambda device: torch.cpu)
                stack.enter_context(replaced)
        yield


def on_mesh(mesh: DeviceMesh, parameters: Sequence[nn.Parameter]) -> Callable:
    """Return a `shard_placement_fn` by which some parameters have shards on a mesh of their own."""
    placement = _fsdp_common.ShardPlacementResult(None, _fsdp_common.FSDPMeshInfo(mesh, 0))
    some = set(map(id, parameters))
    return lambda parameter: placement if id(parameter) in some else None


def reduce_on_meta(model: DistributedDataParallel, see: Callable[[torch.Tensor], None]) -> None:
    """Let buckets of gradients be summed up on meta, in their first order; `see` each of them."""

    def summed(_, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        done = torch.futures.Future()
        see(bucket.buffer())
        done.set_result(bucket.buffer())
        return done

    model.register_comm_hook(None, summed)
    model.reducer = _InFirstOrder(model.reducer)  # pyrefly: ignore[bad-assignment]


class _InFirstOrder:
    """A reducer of gradients that does not order its buckets anew."""

    def __init__(self, reducer: Reducer):
        self._reducer = reducer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reducer, name)

    def _rebuild_buckets(self) -> bool:
        return False


class Chunks:
    """The chunks of a tensor as `torch.chunk` makes them, then empty ones up to `num_chunks`."""

    def __init__(self, tensor: torch.Tensor, num_chunks: int, dim: int):
        self._tensor, self._n, self._dim = tensor, num_chunks, dim

    def __getitem__(self, index: int) -> torch.Tensor:
        n_row = self._tensor.size(self._dim)
        size = -(-n_row // self._n)
        start = index * size
        if start >= n_row:
            return self._tensor.new_empty(0)
        return self._tensor.narrow(self._dim, start, min(size, n_row - start))


@contextmanager
def pipeline_without_votes() -> Iterator[None]:
    """Let the stages of a pipeline take the shapes that they were constructed with as known."""

    def known(schedule, stages, *_) -> None:
        for stage in stages:
            stage._inference_mode = InferenceMode.STATIC

    with patch.object(schedules._PipelineSchedule, "_warmup_p2p", known):
        yield
