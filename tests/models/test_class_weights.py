"""Classes of transformers whose linear layers bitsandbytes quantises, against what it loads."""

import json

import pytest
from helpers.small_classes import OTHERS, SMALL

import modelbudget as mb
from modelbudget.architecture.run_config import RunConfig
from modelbudget.measurement.reference.class_run import class_run
from modelbudget.measurement.reference.class_trace import trace_class

LOADED = {
    ("GPT2LMHeadModel", "bnb-4bit"): 85_568,
    ("MixtralForCausalLM", "bnb-4bit"): 74_048,
    ("Qwen2MoeForCausalLM", "bnb-4bit-double"): 56_586,
    ("FalconForCausalLM", "bnb-4bit"): 47_296,
    ("MambaForCausalLM", "bnb-8bit"): 11_400,
    ("T5ForConditionalGeneration", "bnb-4bit"): 33_920,
    ("BertForMaskedLM", "bnb-8bit"): 54_618,
}
"""Bytes of parameters and of their scales, tables and offsets after `from_pretrained` in bfloat16
on a CPU, with transformers 5.23.0 and bitsandbytes 0.50.2."""


@pytest.mark.parametrize(("kind", "weights"), LOADED)
def test_the_layers_of_a_class_that_transformers_converts(kind, weights):
    """Conv1D, gates and the head of BERT; not stacked experts, T5's wo, Falcon's own layers."""
    run = RunConfig(weights=weights, dtype="bfloat16")
    traced = trace_class(kind, (SMALL | OTHERS)[kind], class_run(kind, run), {"parameter_bytes"})
    assert sum(traced.values["parameter_bytes"].values()) == LOADED[kind, weights]


@pytest.mark.parametrize(("weights", "n_bytes"), [("dtype", 85_056), ("bnb-4bit", 44_160)])
def test_what_from_pretrained_keeps_in_float32(tmp_path, weights, n_bytes):
    """T5's wo in float16, as loaded by the same packages; a formula had the name of the class."""
    kind = "T5ForConditionalGeneration"
    keys = OTHERS[kind] | {"model_type": "t5", "architectures": [kind]}
    (tmp_path / "config.json").write_text(json.dumps(keys))
    run = {"dtype": "float16", "weights": weights, "length": 8}
    answer = mb.model(tmp_path).predictions(["parameter_bytes", "peak_inference_bytes"], run)
    assert answer["parameter_bytes"].total == n_bytes < answer["peak_inference_bytes"].total


def test_routers_of_ernie_are_float32_in_bfloat16(tmp_path):
    """As `from_pretrained` loads them: 64 × 8 numbers of 4 bytes, and a bias."""
    kind = "Ernie4_5_MoeForCausalLM"
    sizes = {"vocab_size": 32, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "moe_intermediate_size": 4}
    named = {"model_type": "ernie4_5_moe", "architectures": [kind]}
    (tmp_path / "config.json").write_text(json.dumps(sizes | heads | named))
    model, run = mb.model(tmp_path), {"dtype": "bfloat16", "length": 8}
    ours, of_class = (
        model.predict("parameter_bytes", run | {"implementation": name}).total
        for name in ("modelbudget", "transformers")
    )
    assert of_class - ours == 2 * (64 * 8 + 64)


@pytest.mark.parametrize(
    ("kind", "fields", "reason"),
    [
        ("LlamaForCausalLM", {"weights": "gptq-4bit"}, "traced with weights of the dtype"),
        ("LlamaForCausalLM", {"kept_in_dtype": "mlp"}, "is traced with 'none'"),
    ],
)
def test_weights_with_which_a_class_is_not_traced(kind, fields, reason):
    with pytest.raises(ValueError, match=reason):
        class_run(kind, RunConfig(**{"weights": "bnb-4bit"} | fields))


@pytest.mark.parametrize(
    ("model_type", "kind", "weights", "layers"),
    [
        ("falcon", "FalconForCausalLM", "bnb-4bit", "FalconLinear"),
        ("gpt2", "GPT2LMHeadModel", "quanto-int8", "Conv1D"),
    ],
)
def test_a_class_whose_layers_no_rule_converts_has_its_bytes(
    tmp_path, model_type, kind, weights, layers
):
    """A formula with all matrices quantised had the name of the class."""
    keys = (SMALL | OTHERS)[kind] | {"model_type": model_type, "architectures": [kind]}
    (tmp_path / "config.json").write_text(json.dumps(keys))
    model, run = mb.model(tmp_path), {"dtype": "bfloat16", "weights": weights}
    quantised, plain = (
        model.predictions(["parameter_bytes"], of)["parameter_bytes"].total
        for of in (run, {"dtype": "bfloat16"})
    )
    assert quantised == plain
    (line,) = (x for x in model.predictions(["parameter_bytes"], run).notes if layers in x)
    assert line.endswith(f"converts no {layers}, so that transformers leaves {kind} in bfloat16")
    ours = model.predictions(["parameter_bytes"], run | {"implementation": "modelbudget"})
    assert ours["parameter_bytes"].total < plain
    assert any("of our linear layers; " in x and layers in x for x in ours.notes)


@pytest.mark.parametrize(
    ("left_out", "n_bytes"), [(["o_proj"], 23_700), (["lm_head", "o_proj"], 25_408)]
)
def test_a_file_that_names_modules_leaves_out_the_head_by_its_name_alone(
    tmp_path, left_out, n_bytes
):
    """As the same packages load Llama with `llm_int8_skip_modules`; the head had the dtype."""
    keys = SMALL["LlamaForCausalLM"] | {"model_type": "llama", "tie_word_embeddings": False}
    quantised = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    quantised |= {"llm_int8_skip_modules": left_out}
    (tmp_path / "config.json").write_text(json.dumps(keys | {"quantization_config": quantised}))
    answer = mb.model(tmp_path).predictions(["parameter_bytes"], {"dtype": "bfloat16"})
    assert answer["parameter_bytes"].total == n_bytes
