"""Experts in an encoder–decoder: formulas against our module, and published counts."""

import pytest
from helpers.training import measured_as_predicted

from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.terms import total
from modelbudget.catalogue.named_models import Base
from modelbudget.families.encoder_decoder import EncoderDecoder
from modelbudget.huggingface.read_config import fields_of
from modelbudget.huggingface.value_meanings import NoFormulaError
from modelbudget.sweeps.derive import named_architecture

SIZES = {
    "n_vocab": 19, "d_model": 16, "n_head": 2, "d_head": 8, "d_value": 8, "d_ff": 24, "n_ctx": 9,
    "n_encoder_layer": 3, "n_decoder_layer": 4, "position": "buckets", "norm": "rmsnorm",
    "norm_placement": "pre", "n_bucket": 8, "n_expert": 4, "n_expert_per_token": 1, "d_expert": 7,
}  # fmt: skip
KINDS = {
    "Switch": {"mlps": "mlp moe"},
    "NLLB": {"mlps": "mlp mlp mlp moe", "n_expert_per_token": 2, "router_bias": "selection"},
    "all": {"mlps": "moe", "norm_placement": "post", "router_bias": "logit", "d_shared": 5},
}
SWITCH = "SwitchTransformersForConditionalGeneration"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("settings", [{"batch": 2, "length": 9}, {"dtype": "bfloat16"}])
def test_training(kind, settings):
    a, run = EncoderDecoder(**SIZES | KINDS[kind]), RunConfig(**settings)
    measured_as_predicted(a, run)


def test_switch_base_with_128_experts():
    """Fedus et al. 2022, table 9: 7B parameters with 128 experts, in every other layer of 12; a
    token uses as many as T5 Base has, 0.22B.
    """
    config = {
        "d_ff": 3072, "num_experts": 128, "num_sparse_encoder_layers": 6,
        "num_sparse_decoder_layers": 6,
    }  # fmt: skip
    fields = fields_of(SWITCH, config)
    a = named_architecture(Base("", "", EncoderDecoder, fields, {}))
    assert round(total(a.parameters(a)) / 1e9) == 7
    assert round(total(a.active_parameters(a)) / 1e9, 2) == 0.22


def test_nllb_with_128_experts():
    """NLLB Team 2022 (No Language Left Behind): 54.5B parameters, with experts in every fourth
    layer of 24 and 24.
    """
    sizes = {"d_model": 2048, "vocab_size": 256206}
    both = {"layers": 24, "ffn_dim": 8192, "attention_heads": 16}
    sizes |= {f"{stack}_{key}": n for stack in ("encoder", "decoder") for key, n in both.items()}
    fields = fields_of("NllbMoeForConditionalGeneration", sizes)
    a = named_architecture(Base("", "", EncoderDecoder, fields, {}))
    assert round(total(a.parameters(a)) / 1e9, 1) == 54.5


@pytest.mark.parametrize(
    "config",
    [
        {"num_sparse_encoder_layers": 6},
        {"num_sparse_encoder_layers": 0, "num_sparse_decoder_layers": 0},
        {"num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1},
    ],
)
def test_other_steps_have_no_formula(config):
    with pytest.raises(NoFormulaError, match="not supported"):
        fields_of(SWITCH, config)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"mlps": "mlp"}, "n_expert = 4 needs moe in mlps"),
        ({"mlps": "moe", "d_expert": 0}, "d_expert = 0: moe in mlps needs at least 1"),
    ],
)
def test_sizes_of_experts_need_experts(changed, message):
    with pytest.raises(ValueError, match=message):
        EncoderDecoder(**SIZES | changed)
