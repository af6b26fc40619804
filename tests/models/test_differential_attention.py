"""Differential attention: predictions against our module, values against the class."""

import pytest
import torch
from helpers.inference import logits_at_once_and_in_turn, measured_inference, predicted_inference
from helpers.training import measured_as_predicted, without_zeros

from modelbudget.architecture.run_config import RunConfig
from modelbudget.families.decoder import Decoder
from modelbudget.modules.mixers import differential_attention

SIZES = {
    "n_vocab": 19, "d_model": 16, "n_layer": 3, "n_head": 4, "n_kv_head": 2, "d_head": 6,
    "d_ff": 24, "norm": "rmsnorm", "position": "rotary", "mixers": "differential_attention",
}  # fmt: skip
BOTH = {"mixers": "differential_attention attention"}


@pytest.mark.parametrize(
    "settings",
    [
        {"batch": 2, "length": 9},
        {"length": 13, "dtype": "bfloat16", "recompute": "selective"},
        {"length": 5, "dtype": "float64", "backend": "cpu", "recompute": "full"},
    ],
)
@pytest.mark.parametrize("changed", [{}, BOTH])
def test_predictions_equal_the_module(changed, settings):
    a, run = Decoder(**SIZES | changed), RunConfig(**settings)
    measured_as_predicted(a, run)
    used = measured_inference(a, run)
    for quantity in ("cache_bytes", "flops_decode"):
        assert predicted_inference(a, run, quantity) == without_zeros(used[quantity]), quantity


def test_a_token_at_a_time_gives_what_all_at_once_give():
    at_once, in_turn = logits_at_once_and_in_turn(Decoder(**SIZES))
    torch.testing.assert_close(in_turn, at_once)


def test_it_computes_what_its_class_computes():
    """In a late layer, where the class adds 0.8 to the factor; without rotation."""
    from transformers.models.diffllama import modeling_diffllama as theirs

    settings = theirs.DiffLlamaConfig(
        hidden_size=16, num_attention_heads=4, num_key_value_heads=2, head_dim=6,
        rms_norm_eps=torch.finfo(torch.float32).eps, attn_implementation="sdpa",
    )  # fmt: skip
    block = theirs.DiffLlamaAttention(settings, 1000)
    ours = differential_attention.make(Decoder(**SIZES | {"position": "none"}))
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.normal_(std=0.5)
        vectors = (block.lambda_q1, block.lambda_k1, block.lambda_q2, block.lambda_k2)
        ours.factor.copy_(torch.stack(vectors))
        for name, other in {"query": "q", "key": "k", "value": "v", "output": "o"}.items():
            ours.get_submodule(name).load_state_dict(
                block.get_submodule(f"{other}_proj").state_dict()
            )
        x = torch.randn(2, 7, 16)
        unrotated = torch.ones(1, 7, 6), torch.zeros(1, 7, 6)
        torch.testing.assert_close(ours(x), block(x, unrotated)[0])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"n_kv_head": 1}, "n_kv_head = 1, d_head = 6: differential_attention in mixers needs"),
        ({"position": "alibi"}, "position"),
        ({"qk_norm": "shared"} | BOTH, "qk_norm = shared: differential_attention in mixers has no"),
        ({"sinks": True} | BOTH, "sinks = true: differential_attention in mixers has no such"),
    ],
)
def test_a_model_that_cannot_be(changed, message):
    with pytest.raises(ValueError, match=message):
        Decoder(**SIZES | changed)
