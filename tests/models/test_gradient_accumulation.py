"""A batch in parts (`n_microbatch`): programs against traces of loops over forward and backward."""

import json

import pytest
from helpers.devices import measured as measured_device
from helpers.devices import programmed
from helpers.strategies import decoders_that_run
from helpers.tiers import examples
from helpers.training import (
    OF_STEP,
    measured,
    measured_as_predicted,
    predicted,
    without_zeros,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import modelbudget as mb
from modelbudget.architecture.run_config import RunConfig
from modelbudget.families.decoder import Decoder

PEAK = "peak_training_bytes"
A = Decoder(
    n_vocab=60, d_model=32, n_layer=2, n_head=2, n_kv_head=1, d_head=16, d_ff=48, n_ctx=16,
    position="rotary",
)  # fmt: skip


@settings(max_examples=examples(30), deadline=None)
@given(decoders_that_run(), st.integers(2, 4))
def test_gradients_of_microbatches_are_added_up(pair, n_microbatch):
    """Only here are gradients live in a forward pass of random decoders and settings."""
    a, run = pair
    run = run.model_copy(update={"batch": n_microbatch * run.batch, "n_microbatch": n_microbatch})
    measured_as_predicted(a, run, OF_STEP)


SMALL = {
    "model_type": "llama", "vocab_size": 60, "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 2,
}  # fmt: skip
DEVICES = {
    "zero: 2": {"data_parallel": 2, "zero": 2},
    "zero: 3": {"data_parallel": 2, "zero": 3, "recompute": "full"},
    "tensors": {"tensor_parallel": 2, "sequence_parallel": True, "foreach": True},
    "context": {"context_parallel": 2, "attention_kernel": "flash", "dtype": "bfloat16"},
}


@pytest.mark.parametrize("name", DEVICES)
def test_shards_and_shares_add_gradients_up(name):
    """FSDP2 adds up shards of gradients: those of whole tensors are never live together."""
    run = RunConfig(batch=6, length=8, n_microbatch=3, **DEVICES[name])
    a = A.model_copy(update={"n_kv_head": 2})
    assert programmed(a, run) == measured_device(a, run)


def test_activations_are_those_of_one_microbatch_and_flops_of_all():
    """Against runs without microbatches, which share no loop with it."""
    whole, part = RunConfig(batch=6, length=8), RunConfig(batch=2, length=8)
    in_parts = RunConfig(batch=6, length=8, n_microbatch=3)
    saved, flops = "activation_bytes", "flops_backward"
    of_parts, of_part, of_whole = (
        predicted(A, run, (saved, flops, PEAK)) for run in (in_parts, part, whole)
    )
    assert without_zeros(of_parts[saved]) == without_zeros(of_part[saved])
    assert without_zeros(of_parts[flops]) == without_zeros(of_whole[flops])
    first = "first.forward_backward"
    assert of_part[PEAK][first] < of_parts[PEAK][first] < of_whole[PEAK][first]
    forward = measured(A, in_parts, quantities=("activation_bytes", "flops_forward"))
    assert without_zeros(forward["flops_forward"]) == without_zeros(
        predicted(A, whole, ("flops_forward",))["flops_forward"]
    )


def test_what_would_fit_keeps_the_batch(tmp_path):
    """The change `one sequence at a time` trains with the same batch, whose bytes it predicts."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps(SMALL))
    model, run = mb.model(file), RunConfig(batch=4, length=64, recompute="full", adapter="lora")
    of_fit = model.fit("2MB", run).changes
    change = next(change for change in of_fit if change.text == "one sequence at a time")
    assert change.fields == {"n_microbatch": 4}
    in_parts, of_one = (run.model_copy(update=x) for x in (change.fields, {"batch": 1}))
    assert change.needed == model.memory(in_parts).totals()[PEAK]
    assert change.needed > model.memory(of_one).totals()[PEAK]
