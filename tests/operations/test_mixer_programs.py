"""Programs of mixers against traces of their torch modules: every allocation, in order."""

import pytest
from helpers.allocations import (
    first_difference,
    programmed,
    programmed_inference,
    traced,
    traced_inference,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from modelbudget.architecture.run_config import RunConfig
from modelbudget.components.decoder import program as decoder
from modelbudget.families.decoder import Decoder
from modelbudget.quantities.training_step import training_step

small = st.integers(1, 4)


@st.composite
def mamba2(draw) -> dict:
    n_group = draw(st.integers(1, 2))
    return {
        "n_mamba_group": n_group,
        "n_mamba_head": n_group * draw(st.integers(1, 3)),
        "d_mamba_head": draw(small),
        "d_mamba_state": draw(small),
        "d_mamba_convolution": draw(small),
        "mamba_norm": draw(st.booleans()),
    }


SIZES = {"mamba2": mamba2()}
LENGTHS: dict[str, list[int]] = {}
"""Lengths of the sequences, if not of 1 to 4 tokens."""


@st.composite
def decoders_and_runs(draw, mixer: str) -> tuple[Decoder, RunConfig]:
    fields = {
        "mixers": mixer,
        "mlps": draw(st.sampled_from(["none", "mlp"])),
        "n_vocab": draw(small),
        "d_model": draw(small),
        "d_ff": draw(small),
        "n_layer": draw(st.integers(1, 2)),
        "tied": draw(st.booleans()),
        "norm_placement": draw(st.sampled_from(["pre", "post", "output", "both"])),
        "position": "none",
        "n_head": 1,
        "n_kv_head": 1,
        "d_head": 2,
    }
    run = RunConfig(
        batch=draw(st.integers(1, 2)),
        length=draw(st.sampled_from(LENGTHS.get(mixer, [1, 2, 3, 4]))),
        dtype=draw(st.sampled_from(["float32", "bfloat16"])),
        norm_kernel=draw(st.sampled_from(["fused", "written_out"])),
        recompute=draw(st.sampled_from(["none", "full"])),
        state_dtype=draw(st.sampled_from(["dtype", "float32"])),
        dropout=draw(st.booleans()),
    )
    return Decoder(**fields | draw(SIZES[mixer])), run


few_examples = settings(max_examples=6, deadline=None)


@pytest.mark.parametrize("mixer", SIZES)
@few_examples
@given(st.data())
def test_training_is_that_of_the_module(mixer, data):
    a, run = data.draw(decoders_and_runs(mixer))
    assert not first_difference(programmed(a, run), traced(a, run)), (a, run)
    step = training_step(decoder.program, a, run, n_steps=0)
    assert +step.parameters == {
        name: term.total for name, term in Decoder.parameters(a).items() if term.total
    }


@pytest.mark.parametrize("mixer", SIZES)
@few_examples
@given(st.data())
def test_inference_is_that_of_the_module(mixer, data):
    a, run = data.draw(decoders_and_runs(mixer))
    step, allocations = programmed_inference(a, run)
    measured, of_trace = traced_inference(a, run)
    assert not first_difference(allocations, of_trace), (a, run)
    assert step.peaks == measured["peak_inference_bytes"]
    assert step.caches == measured["cache_bytes"]
    assert +step.flops_decode == measured["flops_decode"]
