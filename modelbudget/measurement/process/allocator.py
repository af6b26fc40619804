"""Allocator readings of two training steps on a real device, by phase.

Operations are not intercepted: autograd saves, accumulates and frees as in normal use. Traces are
compared with these readings.
"""

import gc
import os
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile, record_function

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_config import RunConfig
from modelbudget.measurement.build import build
from modelbudget.measurement.measured import Values
from modelbudget.measurement.step.train import two_steps
from modelbudget.memory.caching_allocator import Layout, by_quantity
from modelbudget.modules.initialise import initialise, uninitialised

CURRENT = {name: f"{name}_bytes.all.current" for name in Layout._fields}
PEAK = {name: f"{name}_bytes.all.peak" for name in Layout._fields}
"""Keys of `torch.cuda.memory_stats()`; see its documentation."""


def refuse_without_cuda() -> None:
    """Raise RuntimeError if torch finds no CUDA device."""
    if not torch.cuda.is_available():
        raise RuntimeError("torch finds no CUDA device here; its allocator can only be read on one")


def statistics() -> dict[str, int]:
    """Synchronise, return the allocator's statistics, and reset its peaks."""
    refuse_without_cuda()
    torch.cuda.synchronize()
    values = torch.cuda.memory_stats()
    torch.cuda.reset_peak_memory_stats()
    return values


def change(before: dict[str, int], after: dict[str, int]) -> tuple[Layout, Layout]:
    """Return the change between two statistics, and the peak in between above the first."""
    now = Layout(*(after[key] - before[key] for key in CURRENT.values()))
    peak = Layout(*(after[PEAK[name]] - before[key] for name, key in CURRENT.items()))
    return now, peak


def context_bytes() -> int:
    """Return used device memory outside of the allocator.

    CUDA's context and modules, and the memory of other processes.
    """
    refuse_without_cuda()
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_stats()[CURRENT["reserved"]]


@cache
def workspace_bytes() -> int:
    """Return the bytes that a process's first products leave in the allocator.

    These are the workspaces of cuBLAS, for the thread of forward passes and that of backward
    passes, and of cuBLASLt, which adds biases.
    """
    before = statistics()
    for dtype in (torch.float32, torch.bfloat16):
        matrix = torch.ones(64, 64, dtype=dtype, device="cuda", requires_grad=True)
        functional.linear(matrix, matrix, matrix[0]).sum().backward()
    torch.cuda.synchronize()
    del matrix
    now, _ = change(before, statistics())
    return now.allocated


# Otherwise the profiler prints when it starts and stops, in the middle of a progress bar.
os.environ.setdefault("KINETO_LOG_LEVEL", "9")
_END = "end of "
"""Prefix of the profiler's event at the end of a phase."""


def of_cpu(architecture: Architecture, run: RunConfig) -> Values:
    """Return the peak of requested bytes by phase, from the profiler's CPU memory events.

    In addition to tensors, they contain 12 bytes for a scalar argument and, with activation
    checkpointing, the states of the random number generator.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        for phase in two_steps(_built(architecture, run, "cpu"), run):
            with record_function(f"{_END}{phase}"):
                pass
    live, peak, peaks = 0, 0, {}
    recorded: Any = profiler.profiler  # private to torch
    for event in sorted(recorded.kineto_results.events(), key=lambda e: e.start_ns()):
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
        elif event.name().startswith(_END):
            peaks[event.name().removeprefix(_END)], peak = peak, live
    return {"peak_requested_bytes": peaks}


def of_cuda(architecture: Architecture, run: RunConfig) -> Values:
    """Return peaks of requested, allocated and reserved bytes above the baseline, by phase.

    Also the workspace of cuBLAS, which is part of the baseline, and the device memory outside of
    the allocator. Raises RuntimeError if torch finds no CUDA device.
    """
    workspace = workspace_bytes()
    gc.collect()
    torch.cuda.empty_cache()
    before = statistics()
    peaks: dict[str, Layout] = {}
    for phase in two_steps(_built(architecture, run, "cuda"), run):
        _, peaks[phase] = change(before, statistics())
    return by_quantity(peaks) | {
        "workspace_bytes": {"device": workspace},
        "context_bytes": {"device": context_bytes()},
    }


def _built(architecture: Architecture, run: RunConfig, device: str) -> nn.Module:
    with uninitialised():
        model = build(architecture, device, run.dtype)
    initialise(model)
    return model
