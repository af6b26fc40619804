"""How torch's caching allocator lays tensors out in the memory of a CUDA device: arithmetic alone.

Source: PyTorch, `c10/cuda/CUDACachingAllocator.cpp` (the note at its head, `round_size`,
`get_allocation_size`, `should_split`) and the constants in `c10/core/AllocatorConfig.h`; as it is
when `PYTORCH_CUDA_ALLOC_CONF` is not set, on one stream. All numbers are bytes.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import NamedTuple

MIB = 2**20
BLOCK = 512
"""Blocks are multiples of this."""
SMALL, SMALL_SEGMENT = MIB, 2 * MIB
"""Blocks up to here share segments of this size."""
LARGE, LARGE_SEGMENT = 10 * MIB, 20 * MIB
"""So do larger ones below this. From here on each asks the device for a segment of its own, where
none is free that is large enough."""
SEGMENT = 2 * MIB
"""Which is a multiple of this."""


class Layout(NamedTuple):
    """What tensors ask for, the blocks that they get, and the segments that hold the blocks:
    `requested_bytes`, `allocated_bytes`, `reserved_bytes` of `torch.cuda.memory_stats()`.
    """

    requested: int
    allocated: int
    reserved: int


def layout(sizes: Iterable[int]) -> Layout:
    """Of tensors allocated in this order from nothing, while none is freed."""
    requested = allocated = reserved = 0
    # What is left of the segments of each pool, from small to large.
    holes: dict[bool, list[int]] = {True: [], False: []}
    for size in filter(None, sizes):  # no bytes, no block
        block = _multiple(size, BLOCK)
        is_small = block <= SMALL
        pool = holes[is_small]
        smallest_that_fits = bisect_left(pool, block)
        if smallest_that_fits < len(pool):
            hole = pool.pop(smallest_that_fits)
        else:
            hole = segment(block)
            reserved += hole
        rest = hole - block
        if rest > SMALL or (is_small and rest):
            insort(pool, rest)
        else:
            block = hole  # a large block keeps so little for itself
        requested += size
        allocated += block
    return Layout(requested, allocated, reserved)


def segment(block: int) -> int:
    """What is asked of the device for a block that no hole can take."""
    if block <= SMALL:
        return SMALL_SEGMENT
    return LARGE_SEGMENT if block < LARGE else _multiple(block, SEGMENT)


def _multiple(size: int, unit: int) -> int:
    """The size, rounded up."""
    return -(-size // unit) * unit
