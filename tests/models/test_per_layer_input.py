"""Gemma 3n and Gemma 4: inputs of each layer, alternating updates, keys of other layers."""

import pytest
import torch
from helpers.allocations import first_difference, programmed, traced
from helpers.inference import logits_at_once_and_in_turn, measured_inference, predicted_inference
from helpers.training import measured_as_predicted, without_zeros

from modelbudget.architecture.run_config import RunConfig
from modelbudget.families.per_layer_input import PerLayerInput
from modelbudget.modules.per_layer_input import AltUp, Laurel

SIZES = {
    "n_vocab": 19, "d_model": 16, "n_layer": 8, "n_head": 2, "n_kv_head": 1, "d_head": 8,
    "d_ff": 24, "norm": "rmsnorm", "gated": True, "qk_norm": "shared", "n_kv_shared_layer": 2,
    "mixers": "sliding_attention sliding_attention attention", "window": 4, "d_per_layer": 3,
    "n_vocab_per_layer": 17,
}  # fmt: skip
FEW_LAYERS = SIZES | {"n_layer": 5}
"""Layers with keys for each mixer, and two that read those of others."""
KINDS = {
    "Gemma 3n": {"n_stream": 4, "d_laurel": 5},
    "Gemma 4": {"d_full_head": 16, "wide_mlp": True, "window": 99},
    "Gemma 4 31B": {"d_full_head": 4, "n_full_kv_head": 2, "values_are_keys": True},
    "Gemma 4 without inputs": {"d_per_layer": 0, "n_vocab_per_layer": 0, "tied": False},
    "Gemma 4 26B": {
        "d_full_head": 4,
        "n_full_kv_head": 2,
        "values_are_keys": True,
        "d_per_layer": 0,
        "n_vocab_per_layer": 0,
        "n_kv_shared_layer": 0,
        "n_expert": 5,
        "n_expert_per_token": 2,
        "d_expert": 7,
    },
    "LayerNorms": {"n_stream": 2, "norm": "layernorm", "norm_bias": True, "head_bias": True},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "settings",
    [
        {"batch": 2, "length": 9},
        {"dtype": "bfloat16"},
        {"length": 9, "attention_kernel": "efficient"},
    ],
)
def test_all_quantities_equal_those_of_the_module(kind, settings):
    """Every allocation of a training step, in order; by component and phase what it adds up to."""
    a, run = PerLayerInput(**SIZES | KINDS[kind]), RunConfig(**settings)
    assert not first_difference(programmed(a, run, a.program()), traced(a, run))
    measured_as_predicted(a, run)
    used = measured_inference(a, run)
    for quantity in ("cache_bytes", "flops_decode", "peak_inference_bytes"):
        assert predicted_inference(a, run, quantity) == without_zeros(used[quantity])


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_at_a_time_gives_what_all_at_once_give(kind):
    at_once, in_turn = logits_at_once_and_in_turn(PerLayerInput(**SIZES | KINDS[kind]))
    torch.testing.assert_close(in_turn, at_once)


def test_streams_and_residuals_compute_what_their_classes_compute():
    from transformers.models.gemma3n import modeling_gemma3n as theirs

    settings = theirs.Gemma3nTextConfig(
        hidden_size=16, num_attention_heads=2, laurel_rank=5, altup_num_inputs=4,
        rms_norm_eps=torch.finfo(torch.float32).eps,
    )  # fmt: skip
    a = PerLayerInput(**SIZES | KINDS["Gemma 3n"])
    altup, laurel = AltUp(a), Laurel(a)
    their_altup, their_laurel = (
        theirs.Gemma3nTextAltUp(settings),
        theirs.Gemma3nTextLaurelBlock(settings),
    )
    names = {
        "correction": "correction_coefs", "prediction": "prediction_coefs",
        "modalities": "modality_router", "norm": "router_norm", "down": "linear_left",
        "up": "linear_right",
    }  # fmt: skip
    torch.manual_seed(0)
    with torch.no_grad():
        for ours, other in ((altup, their_altup), (laurel, their_laurel)):
            for parameter in other.parameters():
                parameter.normal_(std=0.5)
            for name, module in ours.named_children():
                named = names[name] if ours is altup or name != "norm" else "post_laurel_norm"
                module.load_state_dict(other.get_submodule(named).state_dict())
        streams, computed = torch.randn(4, 2, 7, 16), torch.randn(2, 7, 16)
        predicted = altup(streams)
        torch.testing.assert_close(predicted, their_altup.predict(streams))
        expected = their_altup.correct(predicted, computed)
        torch.testing.assert_close(altup.correct(predicted, computed), expected)
        torch.testing.assert_close(laurel(computed), their_laurel(computed))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"n_kv_shared_layer": 8}, "must be less than n_layer = 8"),
        ({"n_kv_shared_layer": 6}, "no layer of attention before them has keys and values"),
        ({"d_per_layer": 0, "n_stream": 2}, "n_stream = 2 needs d_per_layer"),
        ({"n_vocab_per_layer": 0}, "n_vocab_per_layer = 0: d_per_layer = 3 needs at least 1"),
        ({"window": 0}, "window = 0: sliding_attention in mixers needs at least 1"),
        ({"sinks": True}, "sinks = true: not known yet in this family"),
    ],
)
def test_a_model_that_cannot_be(changed, message):
    with pytest.raises(ValueError, match=message):
        PerLayerInput(**SIZES | changed)
