"""Tokens that are read and never predicted: all quantities of a step equal the traced module."""

import pytest
from helpers.inference import measured_inference, predicted_inference
from helpers.training import OF_STEP, measured_as_predicted

from modelbudget.architecture.run_config import RunConfig
from modelbudget.families.decoder import Decoder

SIZES = {
    "n_vocab": 19, "d_model": 16, "n_layer": 3, "n_head": 2, "n_kv_head": 1, "d_head": 8,
    "d_ff": 24, "norm": "rmsnorm", "position": "rotary", "tied": False, "n_input_token": 300,
}  # fmt: skip


@pytest.mark.parametrize("changed", [{}, {"d_emb": 6}, {"n_input_token": 1, "head_bias": True}])
@pytest.mark.parametrize(
    "settings",
    [
        {"batch": 2, "length": 9},
        {"length": 5, "dtype": "bfloat16", "recompute": "full", "foreach": True},
    ],
)
def test_a_step(changed, settings):
    a, run = Decoder(**SIZES | changed), RunConfig(**settings)
    found = measured_as_predicted(a, run, OF_STEP)
    peaks = {name: term.total for name, term in a.peak_training_bytes(a, run).items()}
    assert peaks == found["peak_training_bytes"]
    used = measured_inference(a, run)["peak_inference_bytes"]
    of_use = predicted_inference(a, run, "peak_inference_bytes")
    assert of_use == {phase: used[phase] for phase in of_use}


def test_a_tied_head_has_the_same_rows():
    with pytest.raises(ValueError, match="n_input_token = 300 needs tied: false"):
        Decoder(**SIZES | {"tied": True})
