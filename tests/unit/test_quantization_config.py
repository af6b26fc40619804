"""Quantised config.json files: counts in any case, bytes of the named format or none."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from helpers.config_files import LLAMA, XLNET
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

import modelbudget as mb
from modelbudget.architecture.run_config import RunConfig
from modelbudget.catalogue.named_models import Base
from modelbudget.compare.comparison import compare
from modelbudget.families import families
from modelbudget.huggingface.config_file import read_keys
from modelbudget.huggingface.module_names import linear_layers, names_in_classes
from modelbudget.measurement.measured_table import failures, measured_table
from modelbudget.measurement.one_model import measure_one
from modelbudget.measurement.process.device import Room
from modelbudget.measurement.reference.class_trace import trace_class
from modelbudget.modules.initialise import uninitialised
from modelbudget.predict.predict import predict
from modelbudget.sweeps.derive import resolved
from modelbudget.sweeps.points_table import points_table

WIDE = LLAMA | {"hidden_size": 256, "intermediate_size": 512, "torch_dtype": "float16"}
COMPRESSED: dict = {
    "quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
    "config_groups": {"group_0": {
        "targets": ["Linear"], "input_activations": None,
        "weights": {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group",
                    "group_size": 128},
    }},
}  # fmt: skip


def compressed(form, of, bits, strategy, **inputs) -> dict:
    """Return the config of a format of compressed-tensors, with activations if any are given."""
    weights = {"type": of, "num_bits": bits, "strategy": strategy, "symmetric": True}
    if strategy == "block":
        weights["block_structure"] = [128, 128]
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs or None}
    return COMPRESSED | {"format": form, "config_groups": {"group_0": group}}


def torchao_by_names(default=None, table=None, includes=True) -> dict:
    """Return what transformers' TorchAoConfig writes with torchao 0.18: int8 rows, int4 groups."""
    group = {"_type": "PerGroup", "_version": 1, "_data": {"group_size": 32}}
    linear = {"weight_dtype": {"_type": "torch.dtype", "_data": "int4"},
              "weight_granularity": group, "weight_scale_dtype": None}  # fmt: skip
    rows = {"weight_dtype": {"_type": "torch.dtype", "_data": "int8"}, "scale_dtype": None,
            "granularity": {"_type": "PerAxis", "_version": 1, "_data": {"axis": 0}}}  # fmt: skip
    names = {
        "_default": {"_type": "Int8DynamicActivationIntxWeightConfig", "_data": linear},
        "model.embed_tokens": {"_type": "IntxWeightOnlyConfig", "_data": rows | (table or {})},
    }
    kind = {"_type": "FqnToConfig", "_version": 1, "_data": {"fqn_to_config": names}}
    return {"quant_method": "torchao", "quant_type": {"default": default or kind},
            "include_input_output_embeddings": includes, "modules_to_not_convert": []}  # fmt: skip


def quark(weight: dict, is_dynamic: bool) -> dict:
    """Return a config of AMD's Quark, with keys and values in FP8, as its files have them."""
    of_all = {"weight": weight, "input_tensors": {"is_dynamic": is_dynamic}}
    of_cache = of_all | {"output_tensors": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}}
    names = ["*k_proj", "*v_proj"]
    return {"quant_method": "quark", "exclude": ["lm_head"], "global_quant_config": of_all,
            "layer_quant_config": dict.fromkeys(names, of_cache),
            "export": {"kv_cache_group": names}}  # fmt: skip


KNOWN = {
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"},
    "gptq-4bit": {"quant_method": "gptq", "bits": 4, "group_size": -1, "desc_act": False},
    "gptq-8bit": {"quant_method": "gptq", "bits": 8, "group_size": 32},
    "bnb-8bit": {"load_in_8bit": True, "quant_method": "bitsandbytes"},
    "bnb-4bit": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "bnb-4bit-double": {"load_in_4bit": True, "bnb_4bit_use_double_quant": True},
    "gptq-3bit": {"quant_method": "gptq", "bits": 3, "group_size": 128},
    "autogptq-4bit": {"quant_method": "gptq", "bits": 4, "group_size": 64,
                      "model_name_or_path": None},
    "awq-gemv": {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemv"},
    "fp8-block": {"quant_method": "fp8", "weight_block_size": [64, 32]},
    "fp8-matrix-static": {"quant_method": "fp8", "activation_scheme": "static"},
    "fbgemm-fp8": {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0},
    "hqq-4bit": {"quant_method": "hqq", "quant_config": {"weight_quant_params": {
        "nbits": 4, "group_size": 32, "axis": 1}}},
    "quanto-int4": {"quant_method": "quanto", "weights": "int4", "activations": None},
    "aqlm-2x8": {"quant_method": "aqlm", "num_codebooks": 2, "nbits_per_codebook": 8,
                 "in_group_size": 8, "out_group_size": 1},
    "eetq-int8": {"quant_method": "eetq", "weights": "int8"},
    "torchao-int4": {"quant_method": "torchao", "quant_type": {"default": {
        "_type": "Int4WeightOnlyConfig", "_data": {"group_size": 32}}}},
    "torchao-int8": {"quant_method": "torchao", "quant_type": "int8_weight_only"},
    "torchao-intx4": torchao_by_names(),
    "modelopt-nvfp4": {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]},
    "int4-group": COMPRESSED,
    "fp8-tensor-static": compressed("float-quantized", "float", 8, "tensor", dynamic=False)
    | {"sparsity_config": {"format": "dense"}},
    "compressed-nvfp4-a4": compressed(
        "nvfp4-pack-quantized", "float", 4, "tensor_group", num_bits=4, dynamic="local"),
    "compressed-fp8-block": compressed("float-quantized", "float", 8, "block"),
    "mlx-4bit": {"group_size": 64, "bits": 4},
    "mlx-6bit": {"group_size": 32, "bits": 6, "mode": "affine"},
    "mlx-mxfp4": {"group_size": 32, "bits": 4, "mode": "mxfp4"},
    "auto-round-4bit": {
        "quant_method": "auto-round", "bits": 4, "group_size": 64, "data_type": "int",
        "packing_format": "auto_round:auto_gptq", "block_name_to_quantize": "model.layers",
        "extra_config": {"lm_head": {"bits": 16, "data_type": "float"}}},
    "auto-round-awq": {
        "quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": False,
        "packing_format": "auto_round:auto_awq"},
    "quark-fp8": quark({"dtype": "fp8_e4m3", "qscheme": "per_tensor"}, is_dynamic=False),
    "quark-mxfp4": quark({"dtype": "fp4", "qscheme": "per_group", "group_size": 32,
                          "scale_format": "e8m0"}, is_dynamic=True),
}  # fmt: skip
INT4 = COMPRESSED["config_groups"]["group_0"]
GROUPS = {
    "gptq-4bit": 0,
    "gptq-8bit": 32,
    "torchao-int4": 32,
    "torchao-intx4": 32,
    "fp8-block": 32,
    "awq-gemv": 64,
    "auto-round-4bit": 64,
}
BLOCKS = {
    "fp8-block": 64, "hqq-4bit": 32, "compressed-fp8-block": 128, "mlx-4bit": 64, "mlx-6bit": 32,
    "mlx-mxfp4": 32,
}  # fmt: skip


def by_name(targets, others=(), weights=None) -> dict:
    """Return the config of one or two groups that choose by name, the second with other weights."""
    groups = {"group_0": INT4 | {"targets": [*targets]}}
    if others:
        second = INT4["weights"] | (weights or {})
        groups["group_1"] = {"targets": [*others], "weights": second}
    return COMPRESSED | {"config_groups": groups}


def ordered(actorder: str) -> dict:
    """Return a config of compressed-tensors whose columns are quantised in an order."""
    weights = INT4["weights"] | {"actorder": actorder}
    return COMPRESSED | {"config_groups": {"group_0": INT4 | {"weights": weights}}}


@pytest.mark.parametrize(
    ("actorder", "weights"),
    [("weight", "int4-group"), ("static", "int4-group"), ("group", "int4-group-ordered"),
     ("dynamic", "int4-group-ordered")],
)  # fmt: skip
def test_an_order_of_columns_is_stored_where_groups_are_not_contiguous(tmp_path, actorder, weights):
    """compressed-tensors: quantization/lifecycle/initialize.py registers g_idx for `group` alone.

    Red Hat's w4a16 files have `weight`, and were refused.
    """
    (tmp_path / "config.json").write_text(
        json.dumps(WIDE | {"quantization_config": ordered(actorder)})
    )
    assert mb.model(tmp_path).run().weights == weights


REFUSED = {
    "five bits": {"quant_method": "gptq", "bits": 5, "group_size": 128},
    "another method": {"quant_method": "aqlm"},
    "a layer left out": KNOWN["awq"] | {"modules_to_not_convert": ["model.layers.0"]},
    "actorder": ordered("another"),
    "other bits of some layers": {
        "quant_method": "auto-round", "bits": 4, "group_size": 128, "data_type": "int",
        "extra_config": {"model.layers.1.mlp.down_proj": {"bits": 8}}},
    "another format of some layers": quark(
        {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}, is_dynamic=False
    ) | {"layer_quant_config": {"*down_proj": {"weight": None}}, "export": {}},
    "two formats": by_name(("re:.*self_attn.*",), ("Linear",), {"group_size": 64}),
    "part of the layers": by_name(("re:.*mlp.*", "model.layers.0.self_attn.q_proj")),
    "embedding chosen": by_name(("re:.*",)),
    "a pattern without an end": by_name(("re:(.*)*proj",)),
    "no pattern": by_name(("re:(",)),
    "int8 by groups": torchao_by_names(table={"granularity": {"_type": "PerGroup"}}),
    "int8 without the key": torchao_by_names(includes=False),
    "int8 for all": torchao_by_names({"_type": "Int8WeightOnlyConfig"}),
    "true for a list": KNOWN["awq"] | {"modules_to_not_convert": True},
    "settings of some layers": KNOWN["gptq-4bit"] | {"dynamic": {"+:.*down.*": {"bits": 8}}},
    "two of four numbers": COMPRESSED | {"sparsity_config": {"format": "sparse-24-bitmask"}},
    "no list": COMPRESSED | {"config_groups": {"group_0": INT4 | {"targets": 4}}},
}  # fmt: skip

GPT2 = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 256, "n_head": 4}
WRONG_BYTES = {
    "a cache in int8": (WIDE, COMPRESSED | {"kv_cache_scheme": {"num_bits": 8, "type": "int"}}),
}  # fmt: skip


@pytest.mark.parametrize(("config", "given"), WRONG_BYTES.values(), ids=WRONG_BYTES)
def test_bytes_that_would_be_wrong_are_refused_in_one_line(tmp_path, config, given):
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": given}))
    model = mb.model(tmp_path)
    for quantity in ("parameter_bytes", "cache_bytes"):
        with pytest.raises(mb.InputError, match="quantised weights: weights = unknown") as raised:
            model.predict(quantity, {"implementation": "modelbudget"})
        assert len(raised.value.mistakes) == 1
    assert model.parameters().total > 0


MLX = {"group_size": 64, "bits": 7}
"""A config of MLX with bits that no file has."""


@pytest.mark.parametrize("given", [MLX, {"quant_method": "exl3"}], ids=["mlx", "exl3"])
def test_a_cache_is_known_where_weights_are_not(tmp_path, given):
    """By hand, and measured on the module: a cache depends on no weights. Only here it is asked."""
    (tmp_path / "config.json").write_text(json.dumps(WIDE | {"quantization_config": given}))
    model = mb.model(tmp_path)
    settings = {"implementation": "modelbudget", "batch": 2, "length": 16}
    a = model.architecture
    by_hand = 2 * 2 * 16 * 2 * a.n_kv_head * a.d_head * a.n_layer
    assert model.predict("cache_bytes", settings).total == by_hand
    assert model.measure(settings, ["cache_bytes"]).agrees
    with pytest.raises(mb.InputError, match="quantised weights: weights = unknown"):
        model.predict("peak_inference_bytes", settings)


def test_the_file_of_modelopt_next_to_a_config_is_read(tmp_path):
    """Such a folder was counted in bfloat16; early configs had no method and the cache as text."""
    (tmp_path / "config.json").write_text(json.dumps(WIDE))
    n = mb.model(tmp_path).parameters().total
    n_kept = 2 * 100 * 256 + 5 * 256
    of_modelopt = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": of_modelopt}))
    written = {"producer": {"name": "modelopt"}, "quant_algo": "FP8", "kv_cache_scheme": "FP8"}
    (tmp_path / "in.json").write_text(json.dumps(WIDE | {"quantization_config": written}))
    for path in (tmp_path, tmp_path / "in.json"):
        asked = mb.model(path, implementation="modelbudget")
        values = asked.predictions(["parameter_bytes", "cache_bytes"], {"length": 8}).totals()
        assert values["parameter_bytes"] == 2 * n_kept + (n - n_kept) + 2 * 7 * 8
        assert values["cache_bytes"] == 2 * 2 * 8 * 256
        assert "weights: modelopt-fp8" in " ".join(note.text for note in asked.base.notes)
    exact = of_modelopt | {"exclude_modules": ["model.layers.0.mlp*"]}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": exact}))
    notes = " ".join(note.text for note in mb.model(tmp_path).base.notes)
    one_layer = "model.layers.0.mlp.gate_proj is left out, and model.layers.1.mlp.gate_proj is not"
    assert f"({one_layer}): bytes are refused" in notes


def test_layers_that_are_not_counted_are_left_out_without_a_difference(tmp_path):
    """nvidia/DeepSeek-R1-FP4 leaves out layer 61, zai-org/GLM-4.5-Air-FP8 parts of layer 46.

    Those predict further tokens, and follow the last of num_hidden_layers; they were refused.
    """
    runs = []
    for names in (["lm_head"], ["lm_head", "model.layers.2*", "model.layers.2.eh_proj"]):
        given = KNOWN["modelopt-nvfp4"] | {"ignore": names}
        (tmp_path / "config.json").write_text(json.dumps(WIDE | {"quantization_config": given}))
        runs.append(mb.model(tmp_path).run())
    assert (runs[0].weights, runs[0].kept_in_dtype) == ("modelopt-nvfp4", "none")
    assert (runs[1].weights, runs[1].kept_in_dtype) == ("modelopt-nvfp4", "mtp.attention mtp.mlp")
    for quantity in ("parameter_bytes", "cache_bytes"):
        of_both = [mb.model(tmp_path).predict(quantity, run).total for run in runs]
        assert of_both[0] == of_both[1]


def test_a_cache_alone_may_be_in_fp8(tmp_path):
    """compressed-tensors without groups of layers: it raised IndexError."""
    fp8 = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}
    given = {"quant_method": "compressed-tensors", "config_groups": {}, "kv_cache_scheme": fp8}
    (tmp_path / "config.json").write_text(json.dumps(WIDE | {"quantization_config": given}))
    run = mb.model(tmp_path).run()
    assert (run.weights, run.cache_dtype) == ("dtype", "fp8")


def test_quarks_files_have_a_cache_in_fp8(tmp_path):
    for export, cache_dtype in ((None, "fp8"), ({"kv_cache_group": []}, "dtype")):
        given = KNOWN["quark-fp8"] | ({} if export is None else {"export": export})
        (tmp_path / "config.json").write_text(json.dumps(WIDE | {"quantization_config": given}))
        assert mb.model(tmp_path).run().cache_dtype == cache_dtype


def test_a_pattern_that_ends_in_the_head_leaves_out_nothing_else(tmp_path):
    """Recipes of llm-compressor for models with vision have re:.*lm_head, which was refused."""
    names = ["re:.*lm_head", "re:vision_tower.*", "re:.*multi_modal_projector.*"]
    runs = []
    for ignored in (names, ["lm_head"]):
        config = WIDE | {"quantization_config": COMPRESSED | {"ignore": ignored}}
        (tmp_path / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
        runs.append(mb.model(tmp_path).run())
    assert runs[0] == runs[1]
    assert (runs[0].weights, runs[0].kept_in_dtype) == ("int4-group", "none")


def test_a_file_of_mlx_is_named(tmp_path):
    """mlx-community's files name no method: they were called bitsandbytes'."""
    given = {"group_size": 64, "bits": 4, "model.layers.0.mlp.down_proj": {"bits": 8}}
    (tmp_path / "config.json").write_text(json.dumps(WIDE | {"quantization_config": given}))
    notes = " ".join(note.text for note in mb.model(tmp_path).base.notes)
    assert "MLX: no formula covers it (model.layers.0.mlp.down_proj is set)" in notes
    del given["model.layers.0.mlp.down_proj"]
    (tmp_path / "config.json").write_text(json.dumps(WIDE | {"quantization": given}))  # of 2024
    early = mb.model(tmp_path)
    assert early.run().weights == "mlx-4bit"
    assert not any("not read" in note.text for note in early.base.notes)
    (tmp_path / "config.json").write_text(
        json.dumps(WIDE | {"quantization_config": {"load_in_8bit": True}})
    )
    assert mb.model(tmp_path).run().weights == "bnb-8bit"


def test_names_of_modules_of_other_models_leave_out_nothing(tmp_path):
    """Unsloth names those of all models in each file, huggingface.co/unsloth/Qwen3-14B-bnb-4bit."""
    names = ["embed_tokens", "embedding", "lm_head", "multi_modal_projector", "merger",
             "modality_projection", "router"]  # fmt: skip
    given = KNOWN["bnb-4bit-double"] | {"llm_int8_skip_modules": names}
    (tmp_path / "config.json").write_text(json.dumps(WIDE | {"quantization_config": given}))
    run = mb.model(tmp_path).run()
    assert (run.weights, run.kept_in_dtype) == ("bnb-4bit-double", "none")


@pytest.mark.parametrize(
    ("config", "given"),
    [(GPT2, KNOWN["fp8-block"]), (GPT2, KNOWN["torchao-int8"]), (WIDE, {"quant_method": "mxfp4"})],
    ids=["Conv1D in FP8", "Conv1D in torchao", "MXFP4 of a dense model"],
)
def test_what_transformers_leaves_in_the_dtype_is_counted_so(tmp_path, config, given):
    """GPT-2 in FP8 was 163,965,696 bytes; transformers converts none of its Conv1D."""
    read = {}
    for name, others in (("plain", {}), ("quantised", {"quantization_config": given})):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config | others))
        model = mb.model(folder)
        settings = {"implementation": "modelbudget"}
        read[name] = model.predict("parameter_bytes", settings).total
    assert read["plain"] == read["quantised"] > 0
    assert any("all stays in the dtype" in note.text for note in model.base.notes)


def test_a_head_that_compressed_tensors_does_not_ignore_is_converted(tmp_path):
    given = COMPRESSED | {"ignore": []}
    config = WIDE | {"tie_word_embeddings": False, "quantization_config": given}
    (tmp_path / "config.json").write_text(json.dumps(config))
    run = mb.model(tmp_path).run()
    assert (run.weights, run.weights_of) == ("int4-group", "all")


def test_an_fp8_cache_has_half_the_bytes(tmp_path):
    """One byte a number; until 0.9 it was counted in the dtype."""
    fp8 = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}
    given = COMPRESSED | {"kv_cache_scheme": fp8}
    (tmp_path / "config.json").write_text(json.dumps(WIDE | {"quantization_config": given}))
    model = mb.model(tmp_path)
    of_file = model.predict("cache_bytes", {"length": 1024}).total
    assert (
        2 * of_file == model.predict("cache_bytes", {"length": 1024, "cache_dtype": "dtype"}).total
    )
    assert model.run().cache_dtype == "fp8"


KIMI_K2 = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "kimi_k2", "vocab_size": 163840,
    "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "num_hidden_layers": 61, "num_attention_heads": 64, "num_key_value_heads": 64,
    "n_shared_experts": 1, "n_routed_experts": 384, "num_experts_per_tok": 8,
    "first_k_dense_replace": 1, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128, "v_head_dim": 128, "n_group": 1, "topk_group": 1,
    "tie_word_embeddings": False, "dtype": "bfloat16", "hidden_act": "silu",
    "num_nextn_predict_layers": 0,
}  # fmt: skip


def test_experts_alone_are_converted_as_in_a_published_file(tmp_path):
    """Kimi K2 Thinking ignores attention, shared experts and its dense layer; it was refused.

    594 GB on Hugging Face: simonwillison.net/2025/Nov/6/kimi-k2-thinking.
    """
    kept = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*",
            "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"]  # fmt: skip
    given: dict = by_name(("Linear",)) | {"ignore": kept}
    given["config_groups"]["group_0"]["weights"] = INT4["weights"] | {"group_size": 32}
    (tmp_path / "config.json").write_text(json.dumps(KIMI_K2 | {"quantization_config": given}))
    model = mb.model(tmp_path)
    assert (model.run().weights, model.run().weights_of) == ("int4-group", "experts")
    assert model.predict("file_bytes", {"implementation": "modelbudget"}).total // 10**9 == 594


@pytest.mark.parametrize("has_groups", [False, True])
def test_experts_have_a_format_of_their_own(tmp_path, has_groups):
    """Experts in int4 by groups of 32, all else in FP8 by rows or int4 by groups of 128: refused.

    By hand: each number of an expert has half a byte and 2 / 32 of a scale, each tensor two int64.
    """
    weights = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
    fp8 = {"targets": ["Linear"], "weights": weights, "format": "float-quantized",
           "input_activations": {"num_bits": 8, "type": "float", "dynamic": True}}  # fmt: skip
    int4 = {"targets": ["re:.*mlp.experts.*"], "format": "pack-quantized",
            "weights": INT4["weights"] | {"group_size": 32}}  # fmt: skip
    others = {"targets": ["Linear"], "format": "pack-quantized", "weights": INT4["weights"]}
    groups = {"group_0": int4, "group_1": others if has_groups else fp8}
    given = COMPRESSED | {"config_groups": groups, "format": "mixed-precision"}
    (tmp_path / "config.json").write_text(json.dumps(KIMI_K2 | {"quantization_config": given}))
    run = (model := mb.model(tmp_path)).run()
    assert run.weights == ("int4-group" if has_groups else "fp8-channel")
    assert (run.expert_weights, run.expert_weight_group, run.weight_group) == (
        "int4-group",
        32,
        128,
    )
    found = model.predict("parameter_bytes", {"implementation": "modelbudget"})
    names = {"layer.moe.gate", "layer.moe.up", "layer.moe.down"}
    of_experts = sum(part.value for part in found.components if part.name in names)
    n = 60 * 384 * 3
    assert of_experts == n * (7168 * 2048 // 2 + 2 * 7168 * 2048 // 32 + 16)


SIZES = {
    "num_experts_per_tok": 2,
    "num_hidden_layers": 2, "first_k_dense_replace": 1, "vocab_size": 64, "pad_token_id": 0,
    "layer_types": ["full_attention"] * 2,
}  # fmt: skip


OF_BOTH_MIXERS = {
    "num_hidden_layers": 5, "num_experts": 8, "num_experts_per_tok": 2, "num_local_experts": 8,
    "layer_types": ["linear_attention"] * 4 + ["full_attention"],
    "mlp_layer_types": ["dense"] + ["sparse"] * 4,
}  # fmt: skip


OF_CLASSES = names_in_classes()


@pytest.mark.parametrize(
    "kind", sorted({*OF_CLASSES.recurrences, *OF_CLASSES.like_llama} - {"kimi_k2"})
)
def test_names_are_those_of_the_class(kind):
    """Catches a layer that patterns are not asked about, so that its bytes would be wrong.

    A layer of the class has the numbers of our matrices that are said to be in it; several that
    are in one of ours have them together. Kimi K2 has DeepSeek V3's class.
    """
    config = AutoConfig.for_model(kind)
    sizes = SIZES | (OF_BOTH_MIXERS if kind in OF_CLASSES.recurrences else {})
    config.update({name: value for name, value in sizes.items() if hasattr(config, name)})
    with torch.device("meta"), uninitialised():
        model = AutoModelForCausalLM.from_config(config)
    of_class = {
        name.removeprefix("model."): module.weight.numel()
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    }
    of_file = read_keys(Path(kind), config.to_dict() | {"architectures": [type(model).__name__]})
    layers = linear_layers(kind, of_file.fields)
    kept = {"lm_head"} if config.tie_word_embeddings else set()
    of_experts = {name for name in layers if ".experts." in name}
    assert layers.keys() - of_experts == of_class.keys() - kept
    has_experts = any(name.endswith("mlp.experts") for name, _ in model.named_modules())
    assert bool(of_experts) == has_experts
    base = Base(kind, kind, families()["decoder"], of_file.fields, {})
    a: Any = resolved(base, {})[0]
    ours = {
        m.path: m.d_in * m.d_out for _, matrices, _ in a._matrices(RunConfig()) for m in matrices
    }
    of_layer: Counter = Counter()
    for name in layers.keys() - of_experts:
        of_layer[name.split(".")[1] if "." in name else name, layers[name]] += of_class[name]
    for (_, paths), numbers in of_layer.items():
        assert numbers == sum(ours[path] for path in paths), paths


@pytest.fixture
def compared(tmp_path, sweep):
    def run(config: dict, quantities=("parameters", "parameter_bytes", "activation_bytes")):
        (tmp_path / "config.json").write_text(json.dumps(config))
        expanded = sweep(
            "points: [{base: config.json, length: 8}]\nmeasure: {device: meta, quantities: "
            f"[{', '.join(quantities)}]}}"
        )
        points, measure = points_table(expanded.points), expanded.sweep.measure
        found = [measure_one(p.architecture, p.run, measure, Room(0, 0)) for p in expanded.points]
        table = compare(
            points,
            predict(points, measure.quantities),
            measured_table(found, measure.quantities),
            [],
            failures(found),
        )
        return expanded, table

    return run


def of(table: pl.DataFrame, quantity: str) -> pl.DataFrame:
    return table.filter(pl.col("quantity") == quantity)


@pytest.mark.parametrize("weights", KNOWN)
def test_a_known_format_has_its_bytes(compared, weights):
    expanded, table = compared(WIDE | {"quantization_config": KNOWN[weights]})
    run = expanded.points[0].run
    assert run.weights == weights
    assert run.weight_group == GROUPS.get(weights, run.weight_group)
    assert run.weight_block == BLOCKS.get(weights, 0)
    assert any(f"used as weights: {weights}" in line for line in expanded.notes)
    counts, stored = of(table, "parameters"), of(table, "parameter_bytes")
    assert counts["agrees"].all()
    assert stored["agrees"].all()
    assert stored["measured"].sum() < 2 * counts["measured"].sum()
    (reason,) = of(table, "activation_bytes")["failure"].unique()
    assert reason.startswith(f"quantised weights: weights = {weights}")


def test_experts_without_a_number_are_a_mistake_in_one_line(tmp_path):
    """Names of experts are listed before sizes are checked."""
    keys = {"model_type": "qwen3_moe", "num_experts": None, "vocab_size": 100, "hidden_size": 64,
            "num_hidden_layers": 2, "quantization_config": COMPRESSED | {
                "ignore": ["re:.*experts.1.*"]}}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(keys))
    with pytest.raises(mb.InputError, match="n_expert"):
        mb.model(tmp_path)


@pytest.mark.parametrize("given", REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("config", [WIDE, XLNET], ids=["formula", "class"])
def test_an_unknown_format_has_counts_and_no_bytes(compared, config, given):
    expanded, table = compared(config | {"quantization_config": given})
    assert expanded.points[0].run.weights == "unknown"
    assert any("bytes are refused" in line for line in expanded.notes)
    assert of(table, "parameters")["measured"].sum() > 0
    for quantity in ("parameter_bytes", "activation_bytes"):
        rows = of(table, quantity)
        assert rows["measured"].is_null().all()
        assert rows["predicted"].is_null().all()
        assert not rows["agrees"].any()
        assert rows["failure"].str.contains("quantised weights").all()


def test_a_refusal_of_two_formats_says_what_is_allowed(tmp_path):
    config = WIDE | {"quantization_config": REFUSED["two formats"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    notes = [note.text for note in mb.model(tmp_path).base.notes]
    (line,) = (text for text in notes if text.startswith("quantization_config"))
    assert "(config_groups: 2 groups; allowed: one format, of all layers" in line


def test_a_refusal_is_no_failed_measurement(compared):
    from modelbudget.compare.comparison import verdict

    _, table = compared(WIDE | {"quantization_config": REFUSED["another method"]})
    assert verdict(table)["points_failed"] == 0


def test_a_class_without_quantised_weights_is_no_reference_for_them():
    run = RunConfig(weights="awq", length=8, dtype="float16")
    wanted = {"parameters", "parameter_bytes", "activation_bytes", "cache_bytes"}
    traced = trace_class("LlamaForCausalLM", LLAMA, run, wanted)
    assert traced.missing.keys() == {"parameter_bytes", "activation_bytes"}
    assert traced.values.keys() == {"parameters", "cache_bytes"}
