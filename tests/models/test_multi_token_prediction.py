"""Layers for multi-token prediction: formulas against our module and published counts."""

import pytest
import torch
from helpers.inference import measured_inference, predicted_inference
from helpers.training import OF_STEP, measured_as_predicted

import modelbudget as mb
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_constraints import run_mistake
from modelbudget.architecture.terms import total
from modelbudget.catalogue.named_models import Catalogue
from modelbudget.common.paths import CONFIGS
from modelbudget.families.decoder import Decoder
from modelbudget.measurement.build import build
from modelbudget.modules.initialise import initialise
from modelbudget.sweeps.derive import named_architecture

SIZES = {
    "n_vocab": 19, "d_model": 16, "n_layer": 3, "n_head": 2, "n_kv_head": 1, "d_head": 8,
    "d_ff": 24, "norm": "rmsnorm", "position": "rotary", "activation": "silu", "n_mtp_layer": 1,
}  # fmt: skip
EXPERTS = {
    "mlps": "moe", "n_expert": 4, "n_expert_per_token": 2, "d_expert": 7, "d_shared": 5,
    "n_dense_layer": 1, "router_bias": "selection",
}  # fmt: skip
LATENT = {"mixers": "mla", "kv_lora_rank": 4, "d_nope": 6, "d_rope": 2, "d_value": 8}
KINDS = {
    "dense": {},
    "two": {"n_mtp_layer": 2, "tied": False, "gated": True, "final_norm": False},
    "DeepSeek V3": EXPERTS | LATENT | {"n_mtp_layer": 2, "norm_placement": "pre"},
    "A.X K1": EXPERTS | LATENT | {"moe_output_norm": True, "router_bias": "none"},
    "a pattern": {"mixers": "sliding_attention attention", "window": 4},
    "LayerNorms": {"norm": "layernorm", "norm_bias": True, "head_bias": True, "position": "none"},
    "norms of outputs": {"norm_placement": "both", "n_mtp_layer": 3},
}


SETTINGS = (
    {"batch": 2, "length": 9},
    {"length": 13, "dtype": "bfloat16", "recompute": "selective", "targets": "shifted"},
    {"length": 5, "dtype": "float64", "backend": "cpu", "recompute": "full"},
    {"length": 7, "dropout": True, "norm_kernel": "written_out", "loss_dtype": "float32"},
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("settings", SETTINGS)
def test_training(kind, settings):
    a, run = Decoder(**SIZES | KINDS[kind]), RunConfig(**settings)
    measured_as_predicted(a, run, OF_STEP)


def test_inference_leaves_the_layers_out():
    """The next token is what the model without them computes; their parameters are resident."""
    a, alone = (Decoder(**SIZES | {"n_mtp_layer": n}) for n in (2, 0))
    run = RunConfig(batch=2, length=9)
    found, without = measured_inference(a, run), measured_inference(alone, run)
    more = 4 * (total(a.parameters(a)) - total(alone.parameters(alone)))
    assert found["flops_decode"] == without["flops_decode"]
    assert found["cache_bytes"] == without["cache_bytes"]
    for phase, peak in predicted_inference(a, run, "peak_inference_bytes").items():
        assert peak == found["peak_inference_bytes"][phase]
        assert peak == without["peak_inference_bytes"][phase] + more
    with_layers, without_layers = (build(one, "cpu", "float64").eval() for one in (a, alone))
    torch.manual_seed(0)
    initialise(with_layers)
    without_layers.load_state_dict(with_layers.state_dict(), strict=False)
    tokens = torch.randint(19, (2, 7))
    with torch.no_grad():
        torch.testing.assert_close(with_layers(tokens), without_layers(tokens))
        first, *ahead = with_layers.logits_ahead(tokens)
    torch.testing.assert_close(first, with_layers(tokens))
    assert len(ahead) == 2


def test_deepseek_v3_with_its_layer_is_its_checkpoint():
    """The safetensors metadata of huggingface.co/deepseek-ai/DeepSeek-V3 count 3,918,786,560
    numbers in BF16 and 680,571,043,840 in F8_E4M3; in F32 are scales, and the biases of the routers
    of 59 layers. The layer has copies of embedding and head there.

    README_WEIGHTS.md of its repository: 11.5B without the two, 2.4B active with them. Both figures
    are those without the projection of two vectors (0.1B).
    """
    base = Catalogue(CONFIGS / "models")["deepseek-v3"]
    alone, a = (
        named_architecture(base._replace(fields=base.fields | {"n_mtp_layer": n})) for n in (0, 1)
    )
    ends, projection = 2 * a.n_vocab * a.d_model, 2 * a.d_model * a.d_model
    checkpoint = 3_918_786_560 + 680_571_043_840 + 59 * 256
    assert total(a.parameters(a)) + ends == checkpoint
    more, active = (
        total(of(a)) - total(of(alone)) for of in (Decoder.parameters, Decoder.active_parameters)
    )
    assert round((more - projection) / 1e9, 1) == 11.5
    assert round((active + ends - projection) / 1e9, 1) == 2.4


def test_deepseek_v3_in_fp8_has_the_bytes_of_its_checkpoint():
    """Numbers as above, and 41,555,600 in F32: 59 × 256 biases of routers, which ours have in the
    dtype, and a scale for each block. They were counted in bfloat16 in the last layer.
    """
    model = mb.model("deepseek-v3", n_mtp_layer=1)
    settings = {"weights": "fp8-block", "dtype": "bfloat16", "implementation": "modelbudget"}
    ends, biases = 2 * 129_280 * 7168, 59 * 256
    in_bf16, in_f8, in_f32 = 3_918_786_560 - ends + biases, 680_571_043_840, 41_555_600 - biases
    by_hand = 2 * in_bf16 + in_f8 + 4 * in_f32
    assert model.predict("parameter_bytes", settings).total == by_hand
    kept = model.predict("parameter_bytes", settings | {"kept_in_dtype": "mtp"}).total
    without = mb.model("deepseek-v3").predict("parameter_bytes", settings).total
    plain = {"weights": "dtype", "dtype": "bfloat16", "implementation": "modelbudget"}
    in_dtype = [m.predict("parameter_bytes", plain).total for m in (model, mb.model("deepseek-v3"))]
    assert kept - without == in_dtype[0] - in_dtype[1]


@pytest.mark.parametrize(
    "settings", [{"loss_chunks": 2}, {"zero": 3, "data_parallel": 2}, {"rope_tables": "model"}]
)
def test_runs_that_are_not_known_are_refused(settings):
    mistake = run_mistake(Decoder(**SIZES), RunConfig(**settings))
    name, value = next(iter(settings.items()))
    assert f"n_mtp_layer = 1: not known yet with {name}: {value}; allowed: " in mistake


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"n_mtp_layer": 4}, "n_mtp_layer = 4 is more than n_layer = 3"),
        ({"position": "learned"}, "n_mtp_layer = 1: not known yet with position: learned"),
        ({"d_emb": 8}, "n_mtp_layer = 1: not known yet with position: rotary, d_emb = 8"),
    ],
)
def test_a_model_that_cannot_have_such_layers(changed, message):
    with pytest.raises(ValueError, match=message):
        Decoder(**SIZES | changed)
