"""Bytes of quantised weights: formula, own module, and the layouts that libraries write."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from itertools import groupby, product

import polars as pl
import pytest
import torch
from helpers.tiers import examples
from helpers.training import without_zeros
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    FineGrainedFP8Config,
    LlamaConfig,
    LlamaForCausalLM,
)
from transformers.integrations.finegrained_fp8 import replace_with_fp8_linear

import modelbudget as mb
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.stored_formats import FORMATS as FORMATS_BY_WORD
from modelbudget.architecture.stored_formats import sizes_of
from modelbudget.architecture.terms import total
from modelbudget.components.weight_formats import Matrix, fit, matrix_bytes
from modelbudget.families.decoder import Decoder
from modelbudget.measurement import one_model
from modelbudget.measurement.count import count
from modelbudget.measurement.process.device import Room
from modelbudget.modules.weight_formats import quantise
from modelbudget.predict import prediction_or_reason
from modelbudget.predict.predict import predict
from modelbudget.predict.prediction_or_reason import terms_or_reason
from modelbudget.sweeps.points_table import points_table
from modelbudget.sweeps.sweep_file import Measure

FORMATS = [*FORMATS_BY_WORD]
SIZES = {
    "n_vocab": 100, "d_model": 256, "n_layer": 3, "n_head": 4, "n_kv_head": 2, "d_head": 64,
    "d_ff": 384, "n_ctx": 32,
}  # fmt: skip
OF_MAMBA2 = {
    "n_mamba_head": 64, "d_mamba_head": 8, "n_mamba_group": 1, "d_mamba_state": 32,
    "d_mamba_convolution": 4,
}  # fmt: skip
MODELS = {
    "gated": {"gated": True, "norm": "rmsnorm", "position": "rotary"},
    "biases": {"query_bias": True, "up_bias": True, "down_bias": True, "output_bias": True},
    "windows": {"mixers": "sliding_attention attention", "window": 8},
    "distances": {"position": "relative", "n_kv_head": 4},
    "experts": {
        "mlps": "moe", "n_expert": 4, "n_expert_per_token": 2, "d_expert": 128, "d_shared": 256,
        "shared_gate": True, "gated": True, "n_dense_layer": 1,
    },
    "mla": {
        "mixers": "mla", "position": "rotary", "kv_lora_rank": 128, "q_lora_rank": 128,
        "d_nope": 64, "d_rope": 64, "d_value": 64,
    },
    "states": {
        "mixers": "gated_deltanet attention", "n_linear_head": 16, "n_linear_key_head": 2,
        "d_linear_key": 64, "d_linear_value": 16, "d_linear_convolution": 4,
    },
    "decay of channels": {
        "mixers": "kimi_delta attention", "n_linear_head": 16, "d_linear_key": 64,
        "d_linear_convolution": 4,
    },
    "state spaces": {"mixers": "mamba2 attention"} | OF_MAMBA2,
    "scans": {
        "mixers": "selective_scan attention", "d_scan": 512, "d_scan_state": 32, "d_scan_step": 64,
        "d_scan_convolution": 4,
    },
    "both at once": {"mixers": "attention_and_mamba2", "mamba_norm": False} | OF_MAMBA2,
}  # fmt: skip


NEEDS_ROWS = "torchao-nvfp4"
"""A format whose library raises an error over a gate, which has a single row."""


def cases() -> Iterator:
    """Yield each model with each format, marked `slow` where others of the library stand for it.

    Each library stays with each model, and each format with two models at least.
    """
    by_library = groupby(FORMATS, lambda weights: FORMATS_BY_WORD[weights].library.library)
    for _, of_library in by_library:
        words = list(of_library)
        for (i, weights), (j, model) in product(enumerate(words), enumerate(MODELS)):
            stays = (i - j) % min(len(words), len(MODELS) // 2) == 0
            yield pytest.param(model, weights, marks=[] if stays else pytest.mark.slow)


@pytest.mark.parametrize(("model", "weights"), list(cases()))
def test_formula_and_module_agree(model, weights):
    """Catches a part whose matrices the formula lists otherwise than the module has them."""
    options = MODELS[model]
    needs_rows = weights == NEEDS_ROWS and "shared_gate" in options
    a = Decoder(**SIZES | options | ({"shared_gate": False} if needs_rows else {}))
    of = "layers" if weights == "mxfp4" and "mlps" not in options else "library"
    run = RunConfig(weights=weights, weights_of=of, weight_group=64, length=8, dtype="bfloat16")
    quantities = ["parameters", "parameter_bytes", "file_bytes"]
    measure = Measure(device="meta", quantities=quantities)
    found = one_model.measure_one(a, run, measure, Room(cpu=0, cuda=0, limit="none", at_once=1))
    if "n_expert" in options and "routers" in FORMATS_BY_WORD[weights].library.converts:
        refusal = terms_or_reason("parameter_bytes", a, run)[1]
        assert "in which format their routers are" in refusal
        return
    assert found.missing.keys() <= {"file_bytes"}
    for quantity in {*quantities[1:]} - found.missing.keys():
        predicted = {name: term.total for name, term in a.terms(quantity, a, run).items()}
        measured = found.values[quantity]
        assert {n: b for n, b in measured.items() if b} == {n: b for n, b in predicted.items() if b}
    assert sum(found.values["parameters"].values()) == total(a.parameters(a))


def test_a_gate_that_its_library_cannot_store_is_refused_twice():
    """torchao's prototype/mx_formats/inference_workflow.py: 16 must divide the rows."""
    a, run = Decoder(**SIZES | MODELS["experts"]), RunConfig(weights=NEEDS_ROWS, length=8)
    why = "moe.shared_gate of 1 rows by 256 columns"
    assert why in terms_or_reason("parameter_bytes", a, run)[1]
    with torch.device("meta"), pytest.raises(ValueError, match=why):
        quantise(a.build(), run)


LINEAR_SIZES = {
    "vocab_size": 320, "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 128, "linear_num_value_heads": 8,
    "linear_num_key_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
    "tie_word_embeddings": False, "max_position_embeddings": 128,
}  # fmt: skip
OF_EXPERTS = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128,
    "shared_expert_intermediate_size": 128,
}  # fmt: skip
LINEAR_CLASSES: dict[str, tuple[dict, list[str]]] = {
    "qwen3_next": (OF_EXPERTS, ["in_proj_ba"]),
    "qwen3_5_text": ({"intermediate_size": 384}, ["in_proj_b", "in_proj_a"]),
    "qwen3_5_moe_text": (OF_EXPERTS, ["in_proj_b", "in_proj_a"]),
}
OLMO = LINEAR_SIZES | {"intermediate_size": 384, "pad_token_id": 0}
del OLMO["head_dim"]
KIMI = {
    "vocab_size": 320, "hidden_size": 256, "num_hidden_layers": 5, "num_attention_heads": 2,
    "linear_head_dim": 128, "linear_num_heads": 2, "kv_lora_rank": 128, "intermediate_size": 384,
    "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128,
    "qk_nope_head_dim": 64, "qk_rope_head_dim": 64, "v_head_dim": 64, "n_shared_experts": 1,
    "layer_types": ["linear_attention"] * 4 + ["full_attention"],
    "mlp_layer_types": ["dense"] + ["sparse"] * 4, "pad_token_id": 0,
}  # fmt: skip


def in_fp8(name: str, left_out: list[str]) -> tuple[dict, nn.Module]:
    """Return a config.json with the modules that it leaves out, and its class on meta in FP8."""
    config = AutoConfig.for_model(name, **LINEAR_SIZES | LINEAR_CLASSES[name][0])
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    replace_with_fp8_linear(model, left_out, FineGrainedFP8Config(), pre_quantized=True)
    keys = LINEAR_SIZES | LINEAR_CLASSES[name][0] | {
        "model_type": name, "architectures": [type(model).__name__], "dtype": "bfloat16",
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128],
                                "modules_to_not_convert": left_out},
    }  # fmt: skip
    return keys, model


INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128}
FP8 = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}
AS_LISTED = ["lm_head", "re:.*mlp.gate$", "re:.*mlp.shared_expert_gate$", "re:.*linear_attn.*"]
AS_QWEN: dict = {"lm_head": {}, "model.language_model.embed_tokens": {}}
AS_QWEN |= {f"-:.*{part}.*": {} for part in ("attn", "shared_expert", "mtp", "visual")}


def of_groups(form: str, weights: dict, ignore: list[str]) -> dict:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    return {"quant_method": "compressed-tensors", "format": form, "ignore": ignore,
            "config_groups": {"group_0": group}}  # fmt: skip


LEFT_OUT: list[tuple[str, dict, str, str]] = [
    ("qwen3_next", of_groups("float-quantized", FP8, [*AS_LISTED, "re:.*mlp\\.shared_expert$"]),
     "linear_attn|_gate$", "fp8"),
    ("qwen3_5_text", of_groups("pack-quantized", INT4, ["re:visual.*", *AS_LISTED]),
     "linear_attn", "int4"),
    ("qwen3_5_moe_text", of_groups("pack-quantized", INT4, [*AS_LISTED, "re:.*self_attn.*"]),
     "attn|_gate$", "int4"),
    ("qwen3_5_moe_text", {"quant_method": "gptq", "bits": 4, "group_size": 128,
                          "dynamic": AS_QWEN}, "attn|shared_expert", "gptq"),
    ("qwen3_next", {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm",
                    "modules_to_not_convert": ["linear_attn", "self_attn.q_proj", "gate",
                                               "shared_expert_gate"]},
     "linear_attn|q_proj|_gate$", "awq"),
    ("olmo_hybrid", {"quant_method": "fp8", "modules_to_not_convert": [
        "lm_head", *(f"linear_attn.{name}_proj" for name in "abqkvo"), "self_attn.k_proj"]},
     "linear_attn.[abqkvo]_|k_proj", "fp8-matrix"),
    ("kimi_linear", of_groups("pack-quantized", INT4, ["lm_head", "re:.*self_attn.*",
                                                       "re:.*shared_experts.*"]),
     "self_attn|shared_experts", "int4"),
    ("kimi_linear", {"load_in_8bit": True, "llm_int8_skip_modules": ["lm_head", "o_proj"]},
     "o_proj", "int8"),
    ("qwen3_next", {"load_in_8bit": True, "llm_int8_skip_modules": [
        "lm_head", "linear_attn.in_proj_ba"]}, "in_proj_ba", "int8"),
]  # fmt: skip


def bytes_in(form: str, rows: int, columns: int) -> int:
    """Count the bytes of a matrix by hand."""
    numbers, groups = rows * columns, rows * columns // 128
    return {
        "fp8": numbers + 2 * rows,
        "fp8-matrix": numbers + 4,
        "int8": numbers + 4 * rows,
        "int4": numbers // 2 + 2 * groups + 16,
        "awq": numbers // 2 + groups // 2 + 2 * groups,
        "gptq": numbers // 2 + groups // 2 + 2 * groups + 4 * columns,
    }[form]


OF_HYBRIDS = {
    "vocab_size": 320, "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 128, "tie_word_embeddings": False,
}  # fmt: skip
OF_MAMBA = {
    "mamba_n_heads": 8, "mamba_d_head": 64, "mamba_d_state": 32, "mamba_n_groups": 1,
    "intermediate_size": 384,
}  # fmt: skip
HYBRIDS: dict[str, dict] = {
    "granitemoehybrid": OF_MAMBA | {
        "num_hidden_layers": 3, "layer_types": ["mamba", "attention", "mamba"],
        "num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 256,
        "position_embedding_type": "nope",
    },
    "falcon_h1": OF_MAMBA | {"num_hidden_layers": 2, "mamba_d_ssm": 512},
    "bamba": OF_MAMBA | {"num_hidden_layers": 3, "attn_layer_indices": [1]},
    "jamba": {
        "num_hidden_layers": 4, "attn_layer_period": 4, "attn_layer_offset": 1,
        "expert_layer_period": 2, "expert_layer_offset": 1, "num_experts": 4,
        "num_experts_per_tok": 2, "intermediate_size": 384, "mamba_d_state": 32,
        "mamba_dt_rank": 64, "use_mamba_kernels": False,
    },
    "nemotron_h": {
        "num_hidden_layers": 5, "hybrid_override_pattern": "M-M*-", "head_dim": 64,
        "mamba_num_heads": 8, "mamba_head_dim": 64, "ssm_state_size": 32, "n_groups": 2,
        "intermediate_size": 384,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", HYBRIDS)
def test_hybrids_of_recurrences_have_the_bytes_of_their_linear_layers(name, tmp_path):
    """Each linear layer and stack of experts of the class on meta in FP8, a scale for each row."""
    sizes = OF_HYBRIDS | HYBRIDS[name]
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **sizes))
    given = of_groups("float-quantized", FP8, ["lm_head"])
    keys = sizes | {"model_type": name, "architectures": [type(model).__name__],
                    "dtype": "bfloat16", "quantization_config": given}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(keys))
    linear = [layer.weight for path, layer in model.named_modules()
              if isinstance(layer, nn.Linear) and path != "lm_head"]  # fmt: skip
    stacks = [p for path, p in model.named_parameters() if ".experts." in path]
    saved = sum(p.numel() - 2 * p.shape[:-1].numel() for p in (*linear, *stacks))
    by_hand = 2 * sum(p.numel() for p in model.parameters()) - saved
    asked = mb.model(tmp_path, implementation="modelbudget")
    assert asked.predict("parameter_bytes", {}).total == by_hand


@pytest.mark.parametrize(("name", "given", "left_out", "form"), LEFT_OUT)
def test_what_a_file_leaves_out_has_the_dtype(name, given, left_out, form, tmp_path):
    """Files of Qwen3-Next and Qwen3.5 that leave out mixers were refused, and Kimi Delta Attention.

    The class on meta, its linear layers counted by hand: those that a pattern of this test finds
    have two bytes a number. llm-compressor's examples leave out what AS_LISTED does,
    Qwen3.5-35B-A3B-GPTQ-Int4 what AS_QWEN does.
    """
    others = {"kimi_linear": KIMI, "olmo_hybrid": OLMO}
    sizes = others.get(name) or LINEAR_SIZES | LINEAR_CLASSES[name][0]
    config = AutoConfig.for_model(name, **sizes)
    with torch.device("meta"):
        of_class = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    keys = sizes | {"model_type": name, "architectures": [type(of_class).__name__],
                    "dtype": "bfloat16", "quantization_config": given}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(keys))
    expected = sum(p.nbytes for p in of_class.parameters())
    # The router's bias of Kimi Linear is a buffer.
    expected += sum(b.nbytes for n, b in of_class.named_buffers() if n.endswith("correction_bias"))
    for path, module in of_class.named_modules():
        shapes = []
        if isinstance(module, nn.Linear) and path != "lm_head" and not re.search(left_out, path):
            shapes = [module.weight.shape]
        elif path.endswith("mlp.experts") and form != "int8":  # bitsandbytes converts no stacks
            (n, both, width), (_, _, inner) = (p.shape for p in module.parameters())
            shapes = n * [(both // 2, width), (both // 2, width), (width, inner)]
        expected += sum(bytes_in(form, *shape) - 2 * shape[0] * shape[1] for shape in shapes)
    found = mb.model(tmp_path).predict("parameter_bytes", {"implementation": "modelbudget"})
    # Queries and their gate are one layer there, and two matrices here, each with its shape.
    assert found.total == expected + 16 * ((name, form) == ("qwen3_5_text", "int4"))


def published_names(name: str, n_layer: int = 4) -> list[str]:
    """Return what Qwen3-Next-80B-A3B-Instruct-FP8 leaves out, with the gates of a class."""
    names = ["lm_head", "mtp.fc", "mtp.norm", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden"]
    gates = LINEAR_CLASSES[name][1]
    of_state = [f"linear_attn.{n}" for n in ("A_log", "conv1d", "dt_bias", *gates, "norm")]
    of_attention = ["self_attn.k_norm", "self_attn.q_norm"]
    of_all = ["input_layernorm", "mlp.gate", "mlp.shared_expert_gate", "post_attention_layernorm"]
    for i in range(n_layer):
        of_layer = of_all + (of_attention if i % 4 == 3 else of_state)
        names += [f"model.layers.{i}.{n}" for n in of_layer]
    return names


@pytest.mark.parametrize("by_layer", [True, False])
@pytest.mark.parametrize("name", LINEAR_CLASSES)
def test_gated_deltanet_in_fp8_as_published(name, by_layer, tmp_path):
    """Its projections were refused: Qwen's files have β and decay in bfloat16, all else in FP8."""
    short = ["lm_head", "mlp.shared_expert_gate"]
    short += [f"linear_attn.{gate}" for gate in LINEAR_CLASSES[name][1]]
    keys, of_class = in_fp8(name, published_names(name) if by_layer else short)
    (tmp_path / "config.json").write_text(json.dumps(keys))
    found = mb.model(tmp_path).predict("parameter_bytes", {"implementation": "modelbudget"})
    assert found.total == sum(p.nbytes for p in of_class.parameters())
    if name == "qwen3_next":
        assert of_class.model.layers[0].linear_attn.in_proj_ba.weight.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("left_out", "others", "why"),
    [
        (["lm_head"], {}, "model.layers.0.linear_attn.in_proj_ba is not left out"),
        (["re:.*layers.[01].linear_attn.in_proj_ba"], {}, "layers.0.linear_attn.in_proj_ba is not"),
        ([f"model.layers.{i}.linear_attn.in_proj_ba" for i in (0, 1, 3)], {},
         "model.layers.2.linear_attn.in_proj_ba is not left out"),
        (["linear_attn"], {}, "linear_attn are left out"),
    ],
    ids=["none", "a pattern", "but for a layer", "the mixer"],
)  # fmt: skip
def test_gates_that_are_converted_otherwise_are_refused(left_out, others, why, tmp_path):
    """FP8 converts β and decay where the file does not name them."""
    keys, _ = in_fp8("qwen3_next", left_out)
    keys["quantization_config"] |= others
    (tmp_path / "config.json").write_text(json.dumps(keys))
    model = mb.model(tmp_path)
    assert model.run().weights == "unknown"
    assert any(why in note.text for note in model.base.notes)


def test_gates_of_a_file_without_layers_are_a_mistake_in_one_line(tmp_path):
    """Only here: layers are counted before sizes are checked."""
    keys, _ = in_fp8("qwen3_next", ["linear_attn.in_proj_ba"])
    (tmp_path / "config.json").write_text(json.dumps(keys | {"num_hidden_layers": None}))
    with pytest.raises(mb.InputError) as raised:
        mb.model(tmp_path)
    assert "n_layer" in str(raised.value)


@pytest.mark.parametrize("options", ["gated", "windows", "experts"])
@pytest.mark.parametrize("weights", ["bnb-4bit-double", "fp8-block", "autogptq-4bit"])
def test_projections_that_are_one_matrix_are_stored_as_one(weights, options):
    """Catches tables of three matrices where there is one, and a matrix that is counted twice."""
    a = Decoder(**SIZES | MODELS[options])
    gate_and_up = "packed" if a.gated else "separate"
    packed = {"projections": "packed", "gate_and_up": gate_and_up, "expert_kernel": "gathered"}
    run = RunConfig(weights=weights, weight_group=64, length=8, dtype="bfloat16", **packed)
    measure = Measure(device="meta", quantities=["parameter_bytes"])
    found = one_model.measure_one(a, run, measure, Room(cpu=0, cuda=0, limit="none", at_once=1))
    predicted = {name: term.total for name, term in a.parameter_bytes(a, run).items()}
    measured = found.values["parameter_bytes"]
    assert {n: b for n, b in measured.items() if b} == {n: b for n, b in predicted.items() if b}
    assert predicted["layer.attention.query_key_value"] > 0


@pytest.mark.parametrize("of", ["layers", "dense", "experts", "all"])
@pytest.mark.parametrize("weights", ["bnb-4bit", "fp8-block", "mxfp4"])
def test_which_matrices_have_the_format(weights, of):
    """Catches experts or a head that only one side converts."""
    others = {"tied": False, "head_bias": True, "n_dense_layer": 0}
    a = Decoder(**SIZES | MODELS["experts"] | others)
    run = RunConfig(weights=weights, weights_of=of, length=8, dtype="bfloat16")
    with torch.device("meta"):
        model = a.build().bfloat16()
    quantise(model, run)
    measured = {name: entry.parameter_bytes for name, entry in count(model).items()}
    predicted = {name: term.total for name, term in a.parameter_bytes(a, run).items()}
    assert {n: b for n, b in measured.items() if b} == {n: b for n, b in predicted.items() if b}
    dense = {name: term.total for name, term in a.parameter_bytes(a, RunConfig()).items()}
    changed = {name for name in dense if 2 * predicted[name] != dense[name]}
    assert ("layer.moe.gate" in changed) == (of != "dense")
    assert ("layer.attention.query" in changed) == (of != "experts")
    assert ("head" in changed) == (of == "all")


@pytest.mark.parametrize("kept", ["attention moe.shared", "attention.output moe", "mlp.up moe.up"])
def test_matrices_that_are_kept_in_the_dtype(kept):
    """Catches a matrix that only one side keeps; of a tape, one whose product makes a copy."""
    a = Decoder(**SIZES | MODELS["experts"])
    run = RunConfig(weights="fp8-block", kept_in_dtype=kept, length=8, dtype="bfloat16")
    quantities = ["parameter_bytes", "peak_inference_bytes"]
    measure = Measure(device="meta", quantities=quantities)
    found = one_model.measure_one(a, run, measure, Room(cpu=0, cuda=0, limit="none", at_once=1))
    for quantity in quantities:
        terms, why = terms_or_reason(quantity, a, run)
        assert why is None
        predicted = {name: term.total for name, term in terms.items()}
        assert without_zeros(found.values[quantity]) == without_zeros(predicted), quantity
    dense = {name: term.total for name, term in a.parameter_bytes(a, RunConfig()).items()}
    stays = {n for n, term in a.parameter_bytes(a, run).items() if 2 * term.total == dense.get(n)}
    for name in kept.split():
        assert any(path.startswith(f"layer.{name}") for path in stays)
    assert "layer.mlp.down" not in stays


def test_a_name_that_no_matrix_has_is_refused():
    a, run = Decoder(**SIZES), RunConfig(weights="fp8-block", kept_in_dtype="moe", length=8)
    assert "kept_in_dtype = moe: no such matrices" in terms_or_reason("parameter_bytes", a, run)[1]


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("weights", ["dtype", "bnb-4bit"])
@pytest.mark.parametrize("of", ["library", "all"])
def test_a_vocabulary_in_another_dtype(weights, of, tied):
    """Catches a tied matrix that is counted twice, or a bias of the head that is cast too.

    Rows are cast to bfloat16 and states to float32, in which the logits are, and no cache is.
    """
    a = Decoder(**SIZES | {"tied": tied, "head_bias": True})
    fields = {"adapter": "lora"} if weights != "dtype" and not tied else {}
    run = RunConfig(weights=weights, weights_of=of, vocabulary_dtype="float32", dtype="bfloat16",
                    length=8, prepare_for_kbit_training=False)  # fmt: skip
    of_vocabulary(a, run, ["parameter_bytes", "file_bytes", *OF_INFERENCE])
    if weights == "dtype" or fields:
        of_vocabulary(a, run.model_copy(update=fields), OF_STEP)
    plain = a.parameter_bytes(a, run.model_copy(update={"vocabulary_dtype": "dtype"}))
    n_cast = 1 if tied or (of == "all" and weights != "dtype") else 2
    more = total(a.parameter_bytes(a, run)) - total(plain)
    assert more == 2 * n_cast * 100 * 256


def test_a_tied_matrix_in_another_dtype_without_a_bias_of_the_head():
    run = RunConfig(vocabulary_dtype="float32", dtype="bfloat16", length=8)
    of_vocabulary(Decoder(**SIZES | {"tied": True}), run, ["parameter_bytes", *OF_INFERENCE])


OF_STEP = ["peak_training_bytes", "optimizer_bytes", "gradient_bytes", "activation_bytes"]
OF_INFERENCE = ["peak_inference_bytes", "cache_bytes"]


def of_vocabulary(a, run, quantities):
    """Return what is measured, which must be predicted."""
    measure = Measure(device="meta", quantities=quantities)
    found = one_model.measure_one(a, run, measure, Room(cpu=0, cuda=0, limit="none", at_once=1))
    assert not found.missing
    for quantity in quantities:
        terms, why = terms_or_reason(quantity, a, run)
        assert why is None
        predicted = {name: term.total for name, term in terms.items()}
        assert without_zeros(found.values[quantity]) == without_zeros(predicted), quantity
    return found.values


def test_an_embedding_in_int8():
    """Catches another dtype of scales or zero points than torchao 0.18 was seen to make here.

    Of an embedding of 100 × 256 in bfloat16: int8 (100, 256), bfloat16 (100, 1), int8 (100, 1).
    Operations seen there: two tables in bfloat16 at once, before rows are taken of the second.
    """
    a = Decoder(**SIZES | {"tied": False})
    run = RunConfig(weights="torchao-intx4", weight_group=32, vocabulary_dtype="int8",
                    dtype="bfloat16", length=8)  # fmt: skip
    measured = of_vocabulary(a, run, ["parameter_bytes", *OF_INFERENCE])["parameter_bytes"]
    assert measured["embedding.token"] == 100 * (256 + 2 + 1)
    of_vocabulary(a, run.model_copy(update={"adapter": "lora"}), OF_STEP)
    tied = Decoder(**SIZES | {"tied": True})
    assert "the head has the same matrix" in tied.why_not_quantised(run)


def layers_of(rows, columns, has_bias=False):
    """Return a model with one linear layer among its layers."""
    with torch.device("meta"):
        linear = nn.Linear(columns, rows, bias=has_bias, dtype=torch.bfloat16)
    return nn.ModuleDict({"layer": nn.ModuleDict({"up": linear})})


SIZE = st.one_of(st.integers(1, 300), st.integers(1, 40).map(lambda n: 32 * n))


@settings(max_examples=examples(300), deadline=None)
@given(st.sampled_from(FORMATS), SIZE, SIZE, st.sampled_from([0, 32, 64, 128]), st.booleans())
def test_any_matrix_in_any_format(weights, rows, columns, group, has_bias):
    """The formula's arithmetic against tensors that are made and counted; both refuse the same."""
    run = RunConfig(weights=weights, weight_group=group, weights_of="layers", dtype="bfloat16")
    matrix = Matrix("up", columns, rows, bias=int(has_bias))
    model = layers_of(rows, columns, has_bias)
    if not fit([matrix], run):
        with pytest.raises(ValueError, match=f"{weights}: layer.up of {rows} rows"):
            quantise(model, run)
        return
    quantise(model, run)
    entry = count(model)["layer.up"]
    assert entry.parameter_bytes == matrix_bytes(matrix, run)
    assert entry.file_bytes == matrix_bytes(matrix, run, in_file=True)


RECORDED = pl.read_csv("tests/golden/stored_matrices.csv", null_values="")


@pytest.mark.parametrize("word", RECORDED["format"].unique(maintain_order=True))
def test_tensors_are_those_that_the_library_holds(word):
    """Bytes by dtype, against what scripts/dev/record_stored_matrices.py recorded."""
    rows = RECORDED.filter(pl.col("format") == word).rows(named=True)
    for row in rows:
        run = RunConfig(
            weights=word,
            weight_block=row["block"],
            weight_group=row["group"],
            weights_of="layers",
            dtype="bfloat16",
        )
        matrix = Matrix("up", row["columns"], row["rows"])
        drops_rows = word.startswith("hqq")  # those that do not fill a byte, in place of a refusal
        if row["refusal"] or (drops_rows and not fit([matrix], run)):
            assert not fit([matrix], run), row
            continue
        recorded = Counter()
        for one in row["bytes"].split():
            dtype, n = one.split("=")
            recorded[dtype] += int(n)
        stored = FORMATS_BY_WORD[word].format
        tensors = stored.tensors if row["where"] == "memory" else stored.tensors_in_file
        sizes = sizes_of(stored, row["rows"], row["columns"], 0, run)
        found = Counter()
        for tensor in tensors.values():
            dtype = "bfloat16" if tensor.dtype == "dtype" else tensor.dtype
            found[dtype] += tensor.n_bytes(sizes, 2)
        if word == "bnb-4bit-double" and row["where"] == "file":
            assert abs(found["uint8"] - recorded["uint8"]) <= 20, row  # digits of the offset
            found["uint8"] = recorded["uint8"]
        assert +found == +recorded, row


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
        assert total(a.file_bytes(a, run)) == published


def test_a_grid_of_formats_is_predicted_as_its_points(sweep):
    """Catches arithmetic that holds for integers and not for columns, and refusals that differ."""
    words = ["awq", "bnb-4bit-double", "fp8-block", "quanto-int4", "torchao-int4", "int4-group"]
    expanded = sweep(
        "base: llama-3-8b\nfixed: {n_layer: 2, dtype: bfloat16}\ngrid:\n"
        f"  weights: [{', '.join(words)}]\n  weight_group: [0, 32, 64]\n"
        "  d_ff: [500, 1000, 1024]\n  weights_of: [library, all]\n"
        "measure: {device: meta, quantities: [parameter_bytes, file_bytes]}"
    )
    quantities = ["parameter_bytes", "file_bytes"]
    table = predict(points_table(expanded.points), quantities)
    n_refused = 0
    for point in expanded.points:
        of_point_alone = table.filter(
            pl.col("architecture") == point.architecture.digest(),
            pl.col("run") == point.run.digest(),
        )
        for quantity in quantities:
            terms, why = prediction_or_reason.terms_or_reason(
                quantity, point.architecture, point.run
            )
            values = of_point_alone.filter(pl.col("quantity") == quantity)["predicted"]
            n_refused += bool(why)
            if why:
                assert values.is_null().all(), (point.run, why)
            else:
                assert values.sum() == total(terms), point.run
    assert n_refused > 0
