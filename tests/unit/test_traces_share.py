"""What a trace leaves out, or takes from an earlier one of the process, changes no number of it."""

import gc
import weakref

import pytest
import torch

from modelbudget.architecture.run_config import RunConfig
from modelbudget.measurement.build import build
from modelbudget.measurement.parallel.trace_of_rank import ShardedTrace
from modelbudget.measurement.step.train import OF_FORWARD, train
from modelbudget.measurement.trace import meta_cache
from modelbudget.measurement.trace.module_trace import Trace
from modelbudget.sweeps.derive import named_architecture

RUN = RunConfig(batch=2, length=16)
EVERY = {*OF_FORWARD, "gradient_bytes", "peak_training_bytes", "flops_backward"}


def traced(catalogue, quantities, foreach=False, **fields):
    a = named_architecture(catalogue["llama-3-8b"])
    small = {"n_vocab": 50, "d_model": 32, "n_layer": 2, "n_head": 4, "n_kv_head": 2, "d_ff": 48}
    model = build(a.model_validate(a.model_dump() | small | fields), "meta", "bfloat16")
    trace = Trace(model)
    values = train(model, RUN.model_copy(update={"foreach": foreach}), quantities, trace)
    return values, [n_bytes for _, n_bytes in trace.changes]


@pytest.mark.parametrize("fields", [{}, {"d_ff": 40}, {"n_kv_head": 4}, {"foreach": True}])
def test_a_model_after_one_of_nearly_its_shapes(catalogue, fields):
    """Without this, a replayed operation whose key lacks what its result depends on is not seen."""
    meta_cache._shared.clear()
    alone = traced(catalogue, EVERY, **fields)
    meta_cache._shared.clear()
    traced(catalogue, EVERY, fields.get("foreach", False))
    assert meta_cache._shared
    assert traced(catalogue, EVERY, **fields) == alone


def test_shared_results_are_few_and_hold_no_tensor(catalogue, monkeypatch):
    monkeypatch.setattr(meta_cache, "MOST_SHARED", 5)
    meta_cache._shared.clear()
    traced(catalogue, EVERY)
    assert 0 < len(meta_cache._shared) <= 5
    inside = [value for key in meta_cache._shared for value in key[1][2]]
    assert not any(isinstance(value, torch.Tensor) for value in inside)


@pytest.mark.parametrize("quantities", [{"activation_bytes"}, {"flops_forward"}, OF_FORWARD])
def test_what_needs_no_backward_pass_is_the_same_without_one(catalogue, quantities):
    """And such a pass is not run: its changes are fewer."""
    values, changes = traced(catalogue, quantities)
    whole, changes_of_all = traced(catalogue, EVERY)
    assert len(changes) < len(changes_of_all)
    for quantity in quantities:
        assert values[quantity] == whole[quantity]


def test_states_are_the_same_without_a_second_step(catalogue):
    """Which is not run."""
    values, changes = traced(catalogue, {"optimizer_bytes"})
    whole, changes_of_all = traced(catalogue, {"optimizer_bytes", *EVERY})
    assert len(changes) < len(changes_of_all)
    assert values["optimizer_bytes"] == whole["optimizer_bytes"]


@pytest.mark.parametrize("kind", [Trace, ShardedTrace])
def test_a_trace_ends_without_garbage_collection(kind):
    """Thousands of objects of each trace were left to it, and it took a twentieth of the tests."""
    model = torch.nn.Linear(2, 3, device="meta")
    trace = kind(model)
    with trace.watching("forward"):
        model(torch.ones(1, 2, device="meta"))
    ends = weakref.ref(trace), weakref.ref(model)
    gc.disable()
    try:
        del trace
        assert ends[0]() is None  # also while the model lives
        del model
        assert ends[1]() is None
    finally:
        gc.enable()
