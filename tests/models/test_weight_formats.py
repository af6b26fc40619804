"""Bytes of quantised weights: formula, own module, and the layouts that libraries write."""

import pytest
import torch
from transformers import FineGrainedFP8Config, LlamaConfig, LlamaForCausalLM
from transformers.integrations.finegrained_fp8 import replace_with_fp8_linear

from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_step import WEIGHTS
from modelbudget.architecture.terms import total
from modelbudget.components.weight_formats import Matrix, matrix_bytes
from modelbudget.families.decoder import Decoder
from modelbudget.measurement import one_model
from modelbudget.measurement.device import Room
from modelbudget.sweeps.sweep_file import Measure

FORMATS = [word for word in WEIGHTS if word not in ("dtype", "unknown")]
SIZES = {
    "n_vocab": 100, "d_model": 256, "n_layer": 3, "n_head": 4, "n_kv_head": 2, "d_head": 64,
    "d_ff": 384, "n_ctx": 32,
}  # fmt: skip
MODELS = {
    "gated": {"gated": True, "norm": "rmsnorm", "position": "rotary"},
    "biases": {"query_bias": True, "up_bias": True, "down_bias": True, "output_bias": True},
    "windows": {"mixers": "sliding_attention attention", "window": 8},
    "experts": {
        "mlps": "moe", "n_expert": 4, "n_expert_per_token": 2, "d_expert": 128, "d_shared": 256,
        "shared_gate": True, "gated": True, "n_dense_layer": 1,
    },
    "mla": {
        "mixers": "mla", "position": "rotary", "kv_lora_rank": 128, "q_lora_rank": 128,
        "d_nope": 64, "d_rope": 64, "d_value": 64,
    },
}  # fmt: skip


@pytest.mark.parametrize("weights", FORMATS)
@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)
def test_formula_and_module_agree(options, weights):
    a = Decoder(**SIZES | options)
    run = RunConfig(weights=weights, weight_group=64, length=8, dtype="bfloat16")
    measure = Measure(device="meta", quantities=["parameters", "parameter_bytes"])
    found = one_model.measure_one(a, run, measure, Room(cpu=0, cuda=0, limit="none", at_once=1))
    predicted = {name: term.total for name, term in a.parameter_bytes(a, run).items()}
    assert found.missing == {}
    measured = found.values["parameter_bytes"]
    assert {n: b for n, b in measured.items() if b} == {n: b for n, b in predicted.items() if b}
    assert sum(found.values["parameters"].values()) == total(a.parameters(a))


BY_LIBRARY = {
    # bitsandbytes 0.50.2: state_dict of Linear4bit and Linear8bitLt of 192 by 320, on a CPU.
    "bnb-4bit": 30720 + 4 * (960 + 16),
    "bnb-4bit-double": 30720 + 960 + 4 * (16 + 4 + 256 + 1),
    "bnb-8bit": 192 * 320 + 4 * 320,
    # AutoAWQ 0.2.9, awq/modules/linear/gemm.py: buffers of WQLinear_GEMM(4, 64, 192, 320).
    "awq": 4 * 192 * 40 + 4 * 3 * 40 + 2 * 3 * 320,
    # compressed-tensors 0.20.0, pack-quantized: weight_packed, weight_scale, weight_shape.
    "int4-group": 4 * 320 * 24 + 2 * 320 * 3 + 2 * 8,
}


@pytest.mark.parametrize("weights", BY_LIBRARY)
def test_a_layer_as_its_library_stores_it(weights):
    run = RunConfig(weights=weights, weight_group=64, dtype="bfloat16")
    assert matrix_bytes(Matrix("query", 192, 320), run) == BY_LIBRARY[weights]


def test_fp8_blocks_as_transformers_builds_them():
    config = LlamaConfig(
        vocab_size=100, hidden_size=256, intermediate_size=384, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, dtype="bfloat16",
    )  # fmt: skip
    with torch.device("meta"):
        model = LlamaForCausalLM(config).to(torch.bfloat16)
    replace_with_fp8_linear(
        model, modules_to_not_convert=["lm_head"], quantization_config=FineGrainedFP8Config()
    )
    there = sum(p.numel() * p.element_size() for p in model.parameters())
    a = Decoder(**SIZES | MODELS["gated"], tied=False)
    run = RunConfig(weights="fp8-block", dtype="bfloat16")
    assert total(a.parameter_bytes(a, run)) == there


def test_gpt_oss_as_published(catalogue):
    """huggingface.co/openai/gpt-oss-20b: model.safetensors.index.json, total_size."""
    from modelbudget.sweeps.derive import named_architecture

    run = RunConfig(weights="mxfp4", dtype="bfloat16")
    for name, published in (("gpt-oss-20b", 13_761_264_768), ("gpt-oss-120b", 65_248_815_744)):
        a = named_architecture(catalogue[name])
        assert total(a.parameter_bytes(a, run)) == published
