"""CUDA's allocator: its rounding by hand, its statistics by their names, and what was recorded."""

import json

import pytest
import torch
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st

from modelbudget.caching_allocator import BLOCK, MIB, SEGMENT, Layout, layout
from modelbudget.expand import named_architecture
from modelbudget.measure import cuda
from modelbudget.measure.place import Room
from modelbudget.measure.pool import measure_one
from modelbudget.run import Run
from modelbudget.sweep import Measure

RECORDED = sorted((ROOT / "tests" / "golden").glob("cuda-*.json"))


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


def test_a_change_between_two_statistics_has_its_parts_apart():
    """The keys are those that torch documents for `torch.cuda.memory_stats()`. The numbers are made
    up by hand: they show how the parts are told apart, and are no recording of any device.
    """
    before = {
        "requested_bytes.all.current": 8_519_680, "requested_bytes.all.peak": 9_000_000,
        "allocated_bytes.all.current": 8_519_680, "allocated_bytes.all.peak": 9_000_000,
        "reserved_bytes.all.current": 20_971_520, "reserved_bytes.all.peak": 20_971_520,
    }  # fmt: skip
    after = {
        "requested_bytes.all.current": 8_519_680 + 1_000, "requested_bytes.all.peak": 8_530_000,
        "allocated_bytes.all.current": 8_519_680 + 1_024, "allocated_bytes.all.peak": 8_540_160,
        "reserved_bytes.all.current": 23_068_672, "reserved_bytes.all.peak": 23_068_672,
    }  # fmt: skip
    assert cuda.change(before, after) == {
        "requested": 1_000, "allocated": 1_024, "reserved": 2_097_152,
        "peak_requested": 10_320, "peak_allocated": 20_480,
    }  # fmt: skip


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
@pytest.mark.parametrize("ask", [cuda.statistics, cuda.context_bytes, cuda.workspace_bytes])
def test_without_cuda_it_refuses_where_torch_would_say_zero(ask):
    with pytest.raises(RuntimeError, match="no CUDA device"):
        ask()


@pytest.fixture(params=RECORDED or [None], ids=lambda path: path.stem if path else "none")
def recorded(request) -> dict:
    if request.param is None:
        pytest.skip("nothing recorded: benchmarks/record_cuda.py does it where a GPU is")
    return json.loads(request.param.read_text())


def test_parameters_lie_as_recorded(recorded):
    for model in recorded["parameters"]:
        told = Layout(model["requested"], model["allocated"], model["reserved"])
        assert layout(model["sizes"]) == told, model["model"]


def test_training_takes_what_a_trace_on_meta_says(recorded, catalogue):
    """Up to a thousandth, as bytes that tensors request: kernels may want scratch of their own."""
    for case in recorded["training"]:
        architecture, run = named_architecture(catalogue[case["model"]]), Run(**case["run"])
        traced = Measure(device="meta", quantities=["peak_training_bytes"])
        values = measure_one(architecture, run, traced, Room(0, 0)).values
        peak = max(values["peak_training_bytes"].values())
        assert case["peak_requested"] == pytest.approx(peak, rel=1e-3), case["model"]
