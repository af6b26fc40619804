"""Statistics of the CUDA caching allocator, and device memory outside of it.

Without CUDA, torch returns zeros without an error, so every function checks for a device first.
"""

from functools import cache

import torch
from torch.nn import functional

from modelbudget.memory.caching_allocator import Layout

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
