"""What the allocator of a real device hands out in two steps of training, phase by phase.

The allocator is asked, and not the tensors: nothing watches the operations, so that autograd keeps,
adds up and frees as it does for everybody. What a trace says is held against it.
"""

import gc
import os

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_config import RunConfig
from modelbudget.measure import cuda
from modelbudget.measure.build import build
from modelbudget.measure.train import Values, of_layouts, two_steps
from modelbudget.memory.caching_allocator import Layout
from modelbudget.modules.initialise import initialise, uninitialised

# Else the profiler says when it starts and stops, in the midst of a bar of progress.
os.environ.setdefault("KINETO_LOG_LEVEL", "9")
_END = "end of "
"""Marks the end of a phase among the profiler's events."""


def of_cpu(architecture: Architecture, run: RunConfig) -> Values:
    """Bytes that were requested, by phase. Torch's profiler tells every block that the allocator of
    a CPU hands out and takes back.

    Beside tensors there are 12 bytes for a number that an operation takes, and where activations
    are computed again, the states of the generator of random numbers.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        for phase in two_steps(_built(architecture, run, "cpu"), run):
            with record_function(f"{_END}{phase}"):
                pass
    live, peak, peaks = 0, 0, {}
    for event in sorted(profiler.profiler.kineto_results.events(), key=lambda e: e.start_ns()):
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
        elif event.name().startswith(_END):
            peaks[event.name().removeprefix(_END)], peak = peak, live
    return {"peak_requested_bytes": peaks}


def of_cuda(architecture: Architecture, run: RunConfig) -> Values:
    """Bytes that were requested, allocated and reserved above what there was, by phase; cuBLAS's
    workspace, which was; and what lies on the device beside the allocator.

    Raises RuntimeError where torch finds no CUDA device.
    """
    workspace = cuda.workspace_bytes()
    gc.collect()
    torch.cuda.empty_cache()
    before = cuda.statistics()
    peaks: dict[str, Layout] = {}
    for phase in two_steps(_built(architecture, run, "cuda"), run):
        _, peaks[phase] = cuda.change(before, cuda.statistics())
    return of_layouts(peaks) | {
        "workspace_bytes": {"device": workspace},
        "context_bytes": {"device": cuda.context_bytes()},
    }


def _built(architecture: Architecture, run: RunConfig, device: str) -> nn.Module:
    with uninitialised():
        model = build(architecture, device, run.dtype)
    initialise(model)
    return model
