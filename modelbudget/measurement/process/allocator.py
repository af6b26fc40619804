"""Allocator readings of two training steps on a real device, by phase.

Operations are not intercepted: autograd saves, accumulates and frees as in normal use. Traces are
compared with these readings.
"""

import gc
import os
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_config import RunConfig
from modelbudget.measurement.build import build
from modelbudget.measurement.measured import Values
from modelbudget.measurement.process import cuda
from modelbudget.measurement.step.train import two_steps
from modelbudget.memory.caching_allocator import Layout, by_quantity
from modelbudget.modules.initialise import initialise, uninitialised

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
    workspace = cuda.workspace_bytes()
    gc.collect()
    torch.cuda.empty_cache()
    before = cuda.statistics()
    peaks: dict[str, Layout] = {}
    for phase in two_steps(_built(architecture, run, "cuda"), run):
        _, peaks[phase] = cuda.change(before, cuda.statistics())
    return by_quantity(peaks) | {
        "workspace_bytes": {"device": workspace},
        "context_bytes": {"device": cuda.context_bytes()},
    }


def _built(architecture: Architecture, run: RunConfig, device: str) -> nn.Module:
    with uninitialised():
        model = build(architecture, device, run.dtype)
    initialise(model)
    return model
