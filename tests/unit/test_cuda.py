"""Readings of a CUDA device: its statistics by name, and what is read when."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from modelbudget.architecture.run_config import RunConfig
from modelbudget.measurement import one_model
from modelbudget.measurement.build import build
from modelbudget.measurement.one_model import measure_one
from modelbudget.measurement.process import allocator
from modelbudget.measurement.process.device import Room
from modelbudget.measurement.step.operations_of_step import operations_of_device
from modelbudget.memory.caching_allocator import Layout
from modelbudget.sweeps.derive import named_architecture
from modelbudget.sweeps.quantity_names import OF_ALLOCATOR
from modelbudget.sweeps.sweep_file import Measure


def test_a_change_between_two_statistics_has_its_parts_apart():
    """The keys are those that torch documents for `torch.cuda.memory_stats()`. The numbers are made
    up by hand: they show how the parts are separated, and are no recording of any device.
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
    now, peak = allocator.change(before, after)
    assert now == Layout(requested=1_000, allocated=1_024, reserved=2_097_152)
    assert peak == Layout(requested=10_320, allocated=20_480, reserved=2_097_152)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
@pytest.mark.parametrize(
    "read", [allocator.statistics, allocator.context_bytes, allocator.workspace_bytes]
)
def test_without_cuda_it_raises_where_torch_would_return_zero(read):
    with pytest.raises(RuntimeError, match="no CUDA device"):
        read()


def test_a_device_is_read_phase_by_phase(monkeypatch, catalogue):
    """The device is simulated: tensors without storage, statistics that rise at each reading."""
    readings = iter(range(100))

    def statistics() -> dict[str, int]:
        n = 1000 * next(readings)
        return {
            f"{kind}_bytes.all.{when}": n + more
            for more, kind in enumerate(Layout._fields)
            for when in ("current", "peak")
        }

    monkeypatch.setattr(allocator, "statistics", statistics)
    monkeypatch.setattr(allocator, "workspace_bytes", lambda: 8_519_680)
    monkeypatch.setattr(allocator, "context_bytes", lambda: 500_000_000)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(allocator, "build", lambda a, _, dtype: build(a, "meta", dtype))
    a, run = named_architecture(catalogue["gpt-2-124m"]), RunConfig(batch=1, length=16)
    found = allocator.of_cuda(a, run)
    phases = [
        f"{s}.{phase}" for s in ("first", "second") for phase in ("forward_backward", "optimizer")
    ]
    rising = dict(zip(phases, (1000, 2000, 3000, 4000), strict=True))
    assert found == {f"peak_{kind}_bytes": rising for kind in Layout._fields} | {
        "workspace_bytes": {"device": 8_519_680},
        "context_bytes": {"device": 500_000_000},
    }
    assert found.keys() == OF_ALLOCATOR


def test_the_allocator_is_read_before_anything_computes_there(monkeypatch, catalogue):
    """A trace on the device would have taken the workspace of products already."""
    order = []

    def look(device, run, quantities, missing):
        order.append(f"trace on {device}")
        return {}, {}, {}

    monkeypatch.setattr(one_model, "_built", lambda architecture, run, device: device)
    monkeypatch.setattr(one_model, "look", look)
    readings = {"workspace_bytes": {"device": 8_519_680}}
    monkeypatch.setattr(allocator, "of_cuda", lambda *_: order.append("allocator") or readings)
    settings = Measure(device="cuda", quantities=["peak_training_bytes", "workspace_bytes"])
    found = measure_one(
        named_architecture(catalogue["gpt-2-124m"]), RunConfig(length=16), settings, Room(0, 2**40)
    )
    assert order == ["trace on meta", "allocator", "trace on cuda"]
    assert found.values["workspace_bytes"] == readings["workspace_bytes"]


def test_a_run_of_a_cpus_operations_is_not_measured_on_a_gpu(monkeypatch, catalogue):
    """Its formulas are those of a CPU's norms and kernels."""
    chosen = []
    monkeypatch.setattr(one_model, "_on_device", lambda *args: chosen.append(args[3]) or ({}, {}))
    a = named_architecture(catalogue["pythia-14m"])
    for backend in ("cpu", "gpu"):
        run = RunConfig(length=16, backend=backend)
        measure_one(a, run, Measure(quantities=["activation_bytes"]), Room(2**40, 2**40))
    assert chosen == ["cpu", "cuda"]


@pytest.mark.parametrize("kernel", ["flash", "efficient", "math"])
def test_torch_chooses_among_the_kernels_of_the_run_on_a_device(kernel):
    """Nothing stands in for attention there, and cuDNN's kernel, which no run has, is off."""
    sdpa, model, on = functional.scaled_dot_product_attention, nn.Linear(1, 1), torch.backends.cuda
    model.weight = type("OnDevice", (nn.Parameter,), {"is_cuda": True})(torch.ones(1, 1))
    run = RunConfig(attention_kernel=kernel, dtype="bfloat16")
    with operations_of_device(model, run):
        assert functional.scaled_dot_product_attention is sdpa
        assert on.flash_sdp_enabled() is (kernel == "flash")
        assert on.mem_efficient_sdp_enabled() is (kernel != "math")
        assert on.math_sdp_enabled()
        assert not on.cudnn_sdp_enabled()
