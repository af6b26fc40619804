"""Simulation of torch's CUDA caching allocator, in plain arithmetic.

Source: PyTorch, `c10/cuda/CUDACachingAllocator.cpp` (the note at its head, `round_size`,
`get_allocation_size`, `get_free_block`, `should_split`, `try_merge_blocks`) and the constants in
`c10/core/AllocatorConfig.h`; as it is when `PYTORCH_CUDA_ALLOC_CONF` is not set, on one stream, on
a device that never runs out. All numbers are bytes.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

MIB = 2**20
BLOCK = 512
"""Blocks are multiples of this."""
SMALL, SMALL_SEGMENT = MIB, 2 * MIB
"""Blocks up to here share segments of this size."""
LARGE, LARGE_SEGMENT = 10 * MIB, 20 * MIB
"""Blocks up to here share segments of this size. Larger ones get a segment of their own, unless a
free one is large enough."""
SEGMENT = 2 * MIB
"""The size of such a segment is a multiple of this."""


class Layout(NamedTuple):
    """Memory in bytes as `torch.cuda.memory_stats()` reports it.

    `requested_bytes`: requested by tensors; `allocated_bytes`: of the blocks assigned to them;
    `reserved_bytes`: of the segments that contain the blocks.
    """

    requested: int = 0
    allocated: int = 0
    reserved: int = 0


@dataclass(eq=False)
class _Block:
    """A piece of a segment, between its neighbours there; `requested` is 0 where it is free."""

    place: int
    size: int
    requested: int = 0
    before: "_Block | None" = None
    after: "_Block | None" = None


class CachingAllocator:
    """A caching allocator that allocates and frees blocks.

    Attributes: the layout `now` and its `peak`, the largest value of each number, which may be
    reset to `now`.
    """

    def __init__(self):
        self.now = self.peak = Layout()
        self._taken: dict[object, _Block] = {}
        # Of each pool (small or not) the free blocks: by size, then by place.
        self._free: dict[bool, list[tuple[int, int, _Block]]] = {True: [], False: []}

    def allocate(self, key: object, size: int) -> None:
        """Allocate a block for a tensor of `size` bytes, to be freed by the same key.

        A tensor of 0 bytes gets no block.
        """
        if not size:
            return
        rounded = _multiple(size, BLOCK)
        pool = self._free[rounded <= SMALL]
        fits = bisect_left(pool, (rounded,))
        block = pool.pop(fits)[-1] if fits < len(pool) else self._segment(rounded)
        self._split(block, rounded)
        block.requested = size
        self._taken[key] = block
        self._count(size, block.size)

    def free(self, key: object) -> None:
        """Free the block of a tensor, and merge it with its free neighbours."""
        block = self._taken.pop(key, None)
        if block is None:
            return
        self._count(-block.requested, -block.size)
        pool = self._free[_multiple(block.requested, BLOCK) <= SMALL]
        block.requested = 0
        for neighbour in (block.before, block.after):
            if neighbour and not neighbour.requested:
                del pool[bisect_left(pool, (neighbour.size, neighbour.place))]
                _merge(block, neighbour)
        insort(pool, (block.size, block.place, block))

    def _segment(self, rounded: int) -> _Block:
        """Add a segment of one block after all others."""
        place = self.now.reserved
        self._count(reserved=segment(rounded))
        return _Block(place, self.now.reserved - place)

    def _split(self, block: _Block, rounded: int) -> None:
        """Split off what a block has in excess; a large one keeps up to 1 MiB of it."""
        rest = block.size - rounded
        if rest <= (0 if rounded <= SMALL else SMALL):
            return
        remainder = _Block(block.place + rounded, rest, before=block, after=block.after)
        if block.after:
            block.after.before = remainder
        block.size, block.after = rounded, remainder
        insort(self._free[rounded <= SMALL], (rest, remainder.place, remainder))

    def _count(self, requested: int = 0, allocated: int = 0, reserved: int = 0) -> None:
        more = requested, allocated, reserved
        self.now = Layout(*(n_bytes + new for n_bytes, new in zip(self.now, more, strict=True)))
        self.peak = Layout(*map(max, self.now, self.peak))


def _merge(block: _Block, neighbour: _Block) -> None:
    if neighbour is block.before:
        block.place, block.before = neighbour.place, neighbour.before
        if block.before:
            block.before.after = block
    else:
        block.after = neighbour.after
        if block.after:
            block.after.before = block
    block.size += neighbour.size


def layout(sizes: Iterable[int]) -> Layout:
    """Return the layout after allocating tensors of these sizes in order, with none freed."""
    allocator = CachingAllocator()
    for number, size in enumerate(sizes):
        allocator.allocate(number, size)
    return allocator.now


def peaks(changes: Iterable[tuple[object, int | None]], ends: dict[str, int]) -> dict[str, Layout]:
    """Return the peak layout of each phase of a run.

    `changes`: the key of a tensor, and its bytes where it is allocated or None where it is freed;
    `ends`: the number of changes up to the end of each phase.
    """
    allocator, by_phase, changes = CachingAllocator(), {}, iter(changes)
    n_done = 0
    for phase, end in ends.items():
        for key, size in islice(changes, end - n_done):
            allocator.free(key) if size is None else allocator.allocate(key, size)
        by_phase[phase], n_done = allocator.peak, end
        allocator.peak = allocator.now
    return by_phase


def by_quantity(peaks: dict[str, Layout]) -> dict[str, dict[str, int]]:
    """Return the bytes of peak layouts by quantity and phase."""
    return {
        f"peak_{name}_bytes": {phase: getattr(peak, name) for phase, peak in peaks.items()}
        for name in Layout._fields
    }


def segment(block: int) -> int:
    """Bytes of the segment for a block that no free block can hold."""
    if block <= SMALL:
        return SMALL_SEGMENT
    return LARGE_SEGMENT if block < LARGE else _multiple(block, SEGMENT)


def _multiple(size: int, unit: int) -> int:
    """Round a size up to a multiple of `unit`."""
    return -(-size // unit) * unit
