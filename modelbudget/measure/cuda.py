"""What torch's allocator says of a CUDA device, and what the device holds beside it.

Without CUDA torch answers with zeros and without an error, so all here refuse first.
"""

from functools import cache

import torch

from modelbudget.memory.caching_allocator import Layout

CURRENT = {name: f"{name}_bytes.all.current" for name in Layout._fields}
PEAK = {name: f"{name}_bytes.all.peak" for name in Layout._fields}
"""Keys of `torch.cuda.memory_stats()`, as its documentation lists them."""


def refuse_without_cuda() -> None:
    """Raises RuntimeError where torch finds no CUDA device."""
    if not torch.cuda.is_available():
        raise RuntimeError("torch finds no CUDA device here; allocators can only be asked on one")


def statistics() -> dict[str, int]:
    """The allocator's statistics once all work is done; peaks count from here on."""
    refuse_without_cuda()
    torch.cuda.synchronize()
    found = torch.cuda.memory_stats()
    torch.cuda.reset_peak_memory_stats()
    return found


def change(before: dict[str, int], after: dict[str, int]) -> tuple[Layout, Layout]:
    """What came between two statistics, and the most that there was meanwhile above the first."""
    now = Layout(*(after[key] - before[key] for key in CURRENT.values()))
    peak = Layout(*(after[PEAK[name]] - before[key] for name, key in CURRENT.items()))
    return now, peak


def context_bytes() -> int:
    """What is taken of the device and not the allocator's: CUDA's context and modules, and what
    other processes hold.
    """
    refuse_without_cuda()
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_stats()[CURRENT["reserved"]]


@cache
def workspace_bytes() -> int:
    """What a process's first matrix product leaves behind: the workspace of cuBLAS, inside the
    allocator.
    """
    before = statistics()
    matrix = torch.ones(64, 64, device="cuda")
    product = matrix @ matrix
    torch.cuda.synchronize()
    del matrix, product
    now, _ = change(before, statistics())
    return now.allocated
