"""Parts that few classes have: formulas against our module, values against the class."""

import pytest
import torch
from helpers.inference import measured_inference, predicted_inference
from helpers.training import OF_STEP, measured_as_predicted

from modelbudget.architecture.run_config import RunConfig
from modelbudget.families.decoder import Decoder
from modelbudget.modules.feed_forward.mlp import MLP
from modelbudget.modules.mixers.attention import Attention

SIZES = {
    "n_vocab": 19, "d_model": 16, "n_layer": 3, "n_head": 2, "n_kv_head": 1, "d_head": 8,
    "d_ff": 24, "norm": "rmsnorm", "position": "rotary", "activation": "silu",
}  # fmt: skip
XIELU = {"activation": "xielu"}
HEADS = {"attention_gate": True, "gate_per_head": True}
PARTS = {
    "learned activation": XIELU,
    "learned activation of a gate": XIELU | {"gated": True, "tied": False, "up_bias": True},
    "squared ReLU": {"activation": "relu2", "n_vocab": 2},
    "squared ReLU of a gate": {"activation": "relu2", "gated": True, "n_vocab": 2},
    "inner norms": {"inner_norm": True, "activation": "gelu"},
    "inner norms of a gate": {"inner_norm": True, "gated": True, "activation": "relu2"},
    "inner LayerNorms": HEADS | {"inner_norm": True, "norm": "layernorm", "norm_bias": True},
    "gated heads": HEADS | {"n_kv_head": 2, "query_bias": True},
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(
    "settings",
    [
        {"batch": 2, "length": 9},
        {"length": 13, "dtype": "bfloat16", "recompute": "selective"},
        {"length": 5, "dtype": "float64", "backend": "cpu", "recompute": "full"},
    ],
)
def test_training(part, settings):
    a, run = Decoder(**SIZES | PARTS[part]), RunConfig(**settings)
    measured_as_predicted(a, run, OF_STEP)
    if a.activation == "relu2" and not a.inner_norm:
        used = measured_inference(a, run)["peak_inference_bytes"]
        of_use = predicted_inference(a, run, "peak_inference_bytes")
        assert of_use == {phase: used[phase] for phase in of_use}


def test_a_learned_activation_computes_what_its_class_computes():
    from transformers.models.apertus.modeling_apertus import ApertusConfig, ApertusMLP

    torch.manual_seed(0)
    settings = ApertusConfig(hidden_size=16, intermediate_size=24, dtype=torch.float32)
    theirs, ours = ApertusMLP(settings), MLP(Decoder(**SIZES | XIELU))
    names = {"activation.positive": "act_fn.alpha_p", "activation.negative": "act_fn.alpha_n"}
    names |= {f"{name}.weight": f"{name}_proj.weight" for name in ("up", "down")}
    ours.activation.reset_parameters()
    with torch.no_grad():
        for name in ("activation.positive", "activation.negative"):
            initial = theirs.get_parameter(names[name])
            torch.testing.assert_close(ours.get_parameter(name), initial)
        for parameter in theirs.parameters():
            parameter.normal_()
        for name, parameter in ours.named_parameters():
            parameter.copy_(theirs.get_parameter(names[name]))
        x = torch.randn(2, 7, 16)
        torch.testing.assert_close(ours(x), theirs(x))


def test_gated_heads_compute_what_their_class_computes():
    """Without rotation: cosines of 1 and sines of 0."""
    from transformers.models.lfm3.modeling_lfm3 import Lfm3Attention, Lfm3Config

    torch.manual_seed(0)
    settings = Lfm3Config(
        hidden_size=16, num_attention_heads=2, num_key_value_heads=1, head_dim=8,
        layer_types=["full_attention"], num_hidden_layers=1, attn_implementation="sdpa",
    )  # fmt: skip
    theirs = Lfm3Attention(settings, 0)
    a = Decoder(**SIZES | HEADS | {"position": "none", "qk_norm": "shared"})
    ours, x = Attention(a), torch.randn(2, 7, 16)
    names = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "gate": "g_proj"}
    names |= {"output": "o_proj", "query_norm": "q_norm", "key_norm": "k_norm"}
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_()
        for name, other in names.items():
            ours.get_submodule(name).load_state_dict(theirs.get_submodule(other).state_dict())
        unrotated = torch.ones(1, 7, 8), torch.zeros(1, 7, 8)
        torch.testing.assert_close(ours(x), theirs(x, unrotated, None)[0])
