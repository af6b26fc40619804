"""How torch's caching allocator lays tensors out in the memory of a CUDA device: arithmetic alone.

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
"""So do larger ones below this. From here on each asks the device for a segment of its own, where
none is free that is large enough."""
SEGMENT = 2 * MIB
"""Which is a multiple of this."""


class Layout(NamedTuple):
    """What tensors ask for, the blocks that they get, and the segments that hold the blocks:
    `requested_bytes`, `allocated_bytes`, `reserved_bytes` of `torch.cuda.memory_stats()`.
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
    """Gives blocks and takes them back. Attributes: `now` and `peak`, each of its numbers at its
    own largest, which may be set back to `now`.
    """

    def __init__(self):
        self.now = self.peak = Layout()
        self._taken: dict[object, _Block] = {}
        # Of each pool (small or not) the free blocks: by size, then by place.
        self._free: dict[bool, list[tuple[int, int, _Block]]] = {True: [], False: []}

    def allocate(self, key: object, size: int) -> None:
        """A block for a tensor of so many bytes, which is free()d by the same key; none for no
        bytes.
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
        """The block of a tensor, merged with the free ones beside it."""
        block = self._taken.pop(key, None)
        if block is None:
            return
        self._count(-block.requested, -block.size)
        pool = self._free[_multiple(block.requested, BLOCK) <= SMALL]
        block.requested = 0
        for other in (block.before, block.after):
            if other and not other.requested:
                del pool[bisect_left(pool, (other.size, other.place))]
                _merge(block, other)
        insort(pool, (block.size, block.place, block))

    def _segment(self, rounded: int) -> _Block:
        """One more segment of the device, all of it one block, behind all that there are."""
        place = self.now.reserved
        self._count(reserved=segment(rounded))
        return _Block(place, self.now.reserved - place)

    def _split(self, block: _Block, rounded: int) -> None:
        """Give back what a block has too much; a large one keeps up to 1 MiB of it."""
        rest = block.size - rounded
        if rest <= (0 if rounded <= SMALL else SMALL):
            return
        left = _Block(block.place + rounded, rest, before=block, after=block.after)
        if block.after:
            block.after.before = left
        block.size, block.after = rounded, left
        insort(self._free[rounded <= SMALL], (rest, left.place, left))

    def _count(self, requested: int = 0, allocated: int = 0, reserved: int = 0) -> None:
        more = requested, allocated, reserved
        self.now = Layout(*(there + new for there, new in zip(self.now, more, strict=True)))
        self.peak = Layout(*map(max, self.now, self.peak))


def _merge(block: _Block, other: _Block) -> None:
    """Take in a neighbour."""
    if other is block.before:
        block.place, block.before = other.place, other.before
        if block.before:
            block.before.after = block
    else:
        block.after = other.after
        if block.after:
            block.after.before = block
    block.size += other.size


def layout(sizes: Iterable[int]) -> Layout:
    """Of tensors allocated in this order from nothing, while none is freed."""
    allocator = CachingAllocator()
    for number, size in enumerate(sizes):
        allocator.allocate(number, size)
    return allocator.now


def peaks(changes: Iterable[tuple[object, int | None]], ends: dict[str, int]) -> dict[str, Layout]:
    """The most of each phase of a run. Of what came and went, each change has a key, and its bytes
    if it came; `ends` tells after how many changes each phase ended.
    """
    allocator, found, changes = CachingAllocator(), {}, iter(changes)
    n_done = 0
    for phase, end in ends.items():
        for key, size in islice(changes, end - n_done):
            allocator.free(key) if size is None else allocator.allocate(key, size)
        found[phase], n_done = allocator.peak, end
        allocator.peak = allocator.now
    return found


def segment(block: int) -> int:
    """What is asked of the device for a block that no hole can take."""
    if block <= SMALL:
        return SMALL_SEGMENT
    return LARGE_SEGMENT if block < LARGE else _multiple(block, SEGMENT)


def _multiple(size: int, unit: int) -> int:
    """The size, rounded up."""
    return -(-size // unit) * unit
