"""Private parts of torch that run its parallel code without devices. Checked with torch 2.13.0.

A fake process group has any number of ranks and moves nothing. FSDP2 refuses parameters on meta
before the first step, since they have no values yet, and asks the device for its streams; on meta
its code is the same otherwise, with the (absent) streams of a CPU.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard import (
    _fsdp_collectives,
    _fsdp_init,
    _fsdp_param_group,
    _fsdp_state,
    _fully_shard,
)
from torch.testing._internal.distributed.fake_pg import FakeStore

_WITH_STREAMS = (_fsdp_init, _fully_shard, _fsdp_param_group, _fsdp_state, _fsdp_collectives)


@contextmanager
def fake_process_group(rank: int, world: int) -> Iterator[None]:
    """Make this process one rank of a group that has no others, inside this context."""
    hook = sys.excepthook  # which torch would replace for good
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    try:
        yield
    finally:
        dist.destroy_process_group()
        sys.excepthook = hook


@contextmanager
def fsdp_on_meta() -> Iterator[None]:
    """Let FSDP2 shard and run models on meta, inside this context."""
    group = _fsdp_param_group.FSDPParamGroup
    with ExitStack() as stack:
        for owner, name, replacement in (
            (_fully_shard, "_get_device_from_mesh", lambda mesh: torch.device("meta")),
            (group, "_validate_no_meta_params", lambda self: None),
        ):
            stack.enter_context(patch.object(owner, name, replacement))
        for module in _WITH_STREAMS:
            if hasattr(module, "_get_device_handle"):
                replaced = patch.object(module, "_get_device_handle", lambda device: torch.cpu)
                stack.enter_context(replaced)
        yield
