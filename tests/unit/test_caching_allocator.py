"""The caching allocator: arithmetic by hand, its own rules, and published readings of devices."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelbudget.memory.caching_allocator import (
    BLOCK,
    MIB,
    SEGMENT,
    CachingAllocator,
    Layout,
    layout,
    peaks,
)

KIB = 1024


@pytest.mark.parametrize(
    ("sizes", "allocated", "reserved"),
    [
        ([1], 512, 2 * MIB),
        ([513], 1024, 2 * MIB),
        ([0], 0, 0),
        ([512] * 4096, 2 * MIB, 2 * MIB),
        ([512] * 4097, 2 * MIB + 512, 4 * MIB),
        # The largest small block, and one byte more.
        ([MIB] * 3, 3 * MIB, 4 * MIB),
        ([MIB + 1], MIB + 512, 20 * MIB),
        # 20 MiB are filled to the last byte by best fit: 17, then 8, then nothing is left.
        ([3 * MIB, 9 * MIB, 8 * MIB], 20 * MIB, 20 * MIB),
        # 19.5 of 20 MiB: half a MiB is too little to be split off, the last block keeps it.
        ([9 * MIB, 9 * MIB, 3 * MIB // 2], 20 * MIB, 20 * MIB),
        # From 10 MiB on a segment of its own, in steps of 2 MiB.
        ([10 * MIB], 10 * MIB, 10 * MIB),
        ([10 * MIB + 1], 10 * MIB + 512, 12 * MIB),
        ([11 * MIB + MIB // 2], 12 * MIB, 12 * MIB),
        # 1.5 MiB go into what the 12.5 leave of 14, and so the 18 that the 2 leave of 20 are whole.
        ([25 * MIB // 2, 2 * MIB, 3 * MIB // 2, 18 * MIB], 34 * MIB, 34 * MIB),
        # Small blocks never go into what a large one leaves.
        ([2 * MIB, 4], 2 * MIB + 512, 22 * MIB),
        # GPT-2 124M's words keep all of 148 MiB for their 147.24; its positions are 3 of 20.
        ([50257 * 768 * 4, 1024 * 768 * 4], 151 * MIB, 168 * MIB),
    ],
)
def test_worked_by_hand(sizes, allocated, reserved):
    assert layout(sizes) == Layout(sum(sizes), allocated, reserved)


@given(st.lists(st.integers(0, 64 * MIB), max_size=60))
def test_blocks_hold_what_was_requested_and_segments_the_blocks(sizes):
    found = layout(sizes)
    assert found.requested == sum(sizes) <= found.allocated <= found.reserved
    assert found.allocated % BLOCK == found.reserved % SEGMENT == 0
    assert found.allocated - found.requested < len(sizes) * (MIB + BLOCK) + (not sizes)


def gpt_neo() -> list[int]:
    """GPT-Neo 1.3B in float32 as `model.to` moves it: words and places; in each layer a norm, key,
    value, query and output, the causal mask of 2048² bytes and the number behind it, a norm, the
    MLP; the last norm. Its head is the words' matrix.
    """
    d, d_ff, n_ctx = 2048, 8192, 2048
    norm = [4 * d] * 2
    attention = [4 * d * d] * 4 + [4 * d, n_ctx * n_ctx, 4]
    layer = [*norm, *attention, *norm, 4 * d * d_ff, 4 * d_ff, 4 * d * d_ff, 4 * d]
    return [4 * 50257 * d, 4 * n_ctx * d, *24 * layer, *norm]


def mistral(n_vocab: int) -> list[int]:
    """Mistral 7B in bfloat16, with the cosines and sines of 32,768 places that each layer had in
    transformers 4.3x.
    """
    d, d_key, d_ff = 4096, 1024, 14336
    attention = [2 * d * d, 2 * d * d_key, 2 * d * d_key, 2 * d * d]
    rotary = [4 * 64, *2 * [2 * 32768 * 128]]
    layer = [*attention, *rotary, *3 * [2 * d * d_ff], *2 * [2 * d]]
    return [2 * n_vocab * d, *32 * layer, 2 * d, 2 * n_vocab * d]


@pytest.mark.parametrize(
    ("sizes", "large", "small"),
    [
        # A GeForce GTX 1660 Ti: github.com/leandromet/nlp_project_cuda, README.md at 21490efd, the
        # first of its tables.
        (gpt_neo(), (170, 5130 * MIB, 17_784 * KIB), (194, 2 * MIB, 100 * KIB)),
        # An L4: github.com/starlab3030/rhel-ai, rhsc-demo/integrate-ai-into-app.md. It does not
        # print the model's name; tensors and bytes are those of a Mistral 7B with 8 words more.
        (mistral(32_008), (290, 14_584 * MIB, 266_112 * KIB), (97, 2 * MIB, 1_512 * KIB)),
    ],
    ids=["gpt-neo-1.3b-gtx-1660-ti", "mistral-7b-l4"],
)
def test_devices_that_others_recorded(sizes, large, small):
    """`torch.cuda.memory_summary()` right after a model was loaded, with nothing freed: of each
    pool the allocations, GPU reserved memory, and in it Non-releasable memory, printed in KiB.
    """
    pools = [s for s in sizes if s > MIB], [s for s in sizes if s <= MIB]
    for own, (n_tensors, reserved, idle) in zip(pools, (large, small), strict=True):
        found = layout(own)
        assert len(own) == n_tensors
        assert found.reserved == reserved
        assert (found.reserved - found.allocated) // KIB == idle // KIB
    both = layout(sizes)
    assert both.reserved == large[1] + small[1]


def test_what_is_freed_is_merged_and_used_again():
    allocator = CachingAllocator()
    for key, size in (("a", 4 * MIB), ("b", 4 * MIB), ("c", 13 * MIB)):
        allocator.allocate(key, size)
    # c has a segment of its own, and keeps the last of its 14 MiB.
    assert allocator.now == Layout(21 * MIB, 22 * MIB, 34 * MIB)
    allocator.free("a")
    allocator.free("b")
    # 4 and 4 MiB are next to 12 that were never assigned: d has the whole segment.
    allocator.allocate("d", 20 * MIB)
    assert allocator.now == Layout(33 * MIB, 34 * MIB, 34 * MIB)
    allocator.free("c")
    allocator.allocate("e", 11 * MIB + 1)
    assert allocator.now == Layout(31 * MIB + 1, 31 * MIB + 512, 34 * MIB)
    allocator.allocate("f", 2 * MIB)
    assert allocator.now == Layout(33 * MIB + 1, 34 * MIB, 34 * MIB)
    assert allocator.peak == Layout(33 * MIB + 1, 34 * MIB, 34 * MIB)


def test_peaks_belong_to_their_phase():
    changes = [("a", 600), ("b", 100), ("b", None), ("c", 512), ("a", None), ("b", 1)]
    found = peaks(changes, {"first": 3, "second": 6})
    assert found == {
        "first": Layout(700, 1536, 2 * MIB),
        "second": Layout(1112, 1536, 2 * MIB),
    }


@given(st.data())
def test_blocks_lie_in_their_segments_and_never_on_each_other(data):
    """In any order of coming and going."""
    allocator, there = CachingAllocator(), {}
    for number in range(data.draw(st.integers(1, 60))):
        if there and data.draw(st.booleans()):
            key = data.draw(st.sampled_from(sorted(there)))
            allocator.free(key)
            del there[key]
        else:
            size = data.draw(st.integers(1, 30 * MIB) | st.integers(1, 2 * MIB))
            allocator.allocate(number, size)
            there[number] = size
        assert allocator.now.requested == sum(there.values())
        taken = sorted((block.place, block.size) for block in allocator._taken.values())
        free = [(place, size) for pool in allocator._free.values() for size, place, _ in pool]
        assert sum(size for _, size in taken) == allocator.now.allocated
        # Together they cover what is reserved, without a gap.
        end = 0
        for place, size in sorted(taken + free):
            assert place == end
            end += size
        assert end == allocator.now.reserved
    for key in there:
        allocator.free(key)
    assert allocator.now == Layout(0, 0, allocator.peak.reserved)
    # All is merged: no segment is left in pieces.
    assert all(size % SEGMENT == 0 for pool in allocator._free.values() for size, _, _ in pool)
