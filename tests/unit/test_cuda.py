"""What is asked of a CUDA device: its statistics by their names, and what was recorded of it."""

import json

import pytest
import torch
from helpers.project import ROOT

from modelbudget.architecture.run_config import RunConfig
from modelbudget.measure import allocator, cuda, one_model
from modelbudget.measure.build import build
from modelbudget.measure.device import Room
from modelbudget.measure.one_model import measure_one
from modelbudget.memory.caching_allocator import Layout, layout
from modelbudget.sweep.derive import named_architecture
from modelbudget.sweep.sweep_file import OF_ALLOCATOR, OF_DEVICE, Measure

RECORDED = sorted((ROOT / "tests" / "golden").glob("cuda-*.json"))


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
    now, peak = cuda.change(before, after)
    assert now == Layout(requested=1_000, allocated=1_024, reserved=2_097_152)
    assert peak == Layout(requested=10_320, allocated=20_480, reserved=2_097_152)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
@pytest.mark.parametrize("ask", [cuda.statistics, cuda.context_bytes, cuda.workspace_bytes])
def test_without_cuda_it_refuses_where_torch_would_say_zero(ask):
    with pytest.raises(RuntimeError, match="no CUDA device"):
        ask()


def test_a_device_is_asked_phase_by_phase(monkeypatch, catalogue):
    """The device is a stand-in: tensors without storage, and statistics that rise at each asking;
    what comes of them is the way, and no number of a real device.
    """
    asked = iter(range(100))

    def statistics() -> dict[str, int]:
        n = 1000 * next(asked)
        return {
            f"{kind}_bytes.all.{when}": n + more
            for more, kind in enumerate(Layout._fields)
            for when in ("current", "peak")
        }

    monkeypatch.setattr(cuda, "statistics", statistics)
    monkeypatch.setattr(cuda, "workspace_bytes", lambda: 8_519_680)
    monkeypatch.setattr(cuda, "context_bytes", lambda: 500_000_000)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(allocator, "build", lambda a, _, dtype: build(a, "meta", dtype))
    a, run = named_architecture(catalogue["gpt-2-124m"]), RunConfig(batch=1, length=16)
    told = allocator.of_cuda(a, run)
    phases = [
        f"{s}.{phase}" for s in ("first", "second") for phase in ("forward_backward", "optimizer")
    ]
    rising = dict(zip(phases, (1000, 2000, 3000, 4000), strict=True))
    assert told == {f"peak_{kind}_bytes": rising for kind in Layout._fields} | {
        "workspace_bytes": {"device": 8_519_680},
        "context_bytes": {"device": 500_000_000},
    }
    assert told.keys() == OF_ALLOCATOR


def test_the_allocator_is_asked_before_anything_computes_there(monkeypatch, catalogue):
    """A trace on the device would have taken the workspace of products already."""
    order = []

    def look(architecture, run, asked, device, missing):
        order.append(f"trace on {device}")
        return {}, {}

    monkeypatch.setattr(one_model, "_look", look)
    told = {"workspace_bytes": {"device": 8_519_680}}
    monkeypatch.setattr(allocator, "of_cuda", lambda *_: order.append("allocator") or told)
    asked = Measure(device="cuda", quantities=["peak_training_bytes", "workspace_bytes"])
    found = measure_one(
        named_architecture(catalogue["gpt-2-124m"]), RunConfig(length=16), asked, Room(0, 2**40)
    )
    assert order == ["trace on meta", "allocator", "trace on cuda"]
    assert found.values["workspace_bytes"] == told["workspace_bytes"]


@pytest.fixture(params=RECORDED or [None], ids=lambda path: path.stem if path else "none")
def recorded(request) -> dict:
    if request.param is None:
        pytest.skip("nothing recorded: benchmarks/record_cuda.py does it where a GPU is")
    return json.loads(request.param.read_text())


def test_parameters_lie_as_recorded(recorded):
    for model in recorded["parameters"]:
        told = Layout(model["requested"], model["allocated"], model["reserved"])
        assert layout(model["sizes"]) == told, model["model"]


def test_training_takes_what_is_predicted_and_laid_out(recorded, catalogue):
    """Requested bytes up to a thousandth: kernels may want scratch of their own. Blocks up to a
    hundredth.
    """
    for case in recorded["training"]:
        architecture, run = named_architecture(catalogue[case["model"]]), RunConfig(**case["run"])
        asked = Measure(device="meta", quantities=sorted(OF_ALLOCATOR - OF_DEVICE))
        found = measure_one(architecture, run, asked, Room(0, 0))
        values = found.values | found.laid_out
        for quantity, share in (("peak_requested_bytes", 1e-3), ("peak_allocated_bytes", 1e-2)):
            assert case["told"][quantity] == pytest.approx(values[quantity], rel=share)
