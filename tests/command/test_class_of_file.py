"""A config.json with values that no formula covers: its class is counted if it can be built."""

import json

import pytest
from helpers.config_files import LLAMA

import modelbudget as mb
from modelbudget.architecture.run_config import RunConfig
from modelbudget.common.errors import InputError
from modelbudget.huggingface.classes import translations
from modelbudget.measurement.reference.class_counts import witness
from modelbudget.measurement.reference.class_trace import trace_class

GPT2 = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 1, "n_head": 4}
NOT_COVERED = {
    "an activation": (LLAMA | {"hidden_act": "tanh"}, "hidden_act = 'tanh': not supported"),
    "no layers": (
        LLAMA | {"num_hidden_layers": 0},
        "n_layer = 0: must be at least 1 (n_layer is num_hidden_layers)",
    ),
    "heads that do not divide": (
        LLAMA | {"num_key_value_heads": 3},
        "n_kv_head = 3 does not divide n_head = 4",
    ),
    "two spellings that contradict each other": (
        GPT2 | {"n_embd": 32, "hidden_size": 64},
        "n_embd = 32 and hidden_size = 64 contradict each other",
    ),
    "a gate that its activation has not": (
        {
            "model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "num_layers": 2,
            "feed_forward_proj": "relu", "is_gated_act": True, "decoder_start_token_id": 0,
        },
        "feed_forward_proj = 'relu', is_gated_act = true: not supported",
    ),
    "a list for a number": (
        {
            "model_type": "hunyuan_v1_moe", "architectures": ["HunYuanMoEV1ForCausalLM"],
            "hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": [48, 40],
            "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 8, "num_experts": 4,
            "vocab_size": 100,
        },
        "moe_intermediate_size = [48, 40]: not supported",
    ),
    "a key that the class reads": (
        LLAMA | {"attention_mask": 3}, "attention_mask = 3: unknown key of model_type 'llama'"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("config", "line"), NOT_COVERED.values(), ids=NOT_COVERED)
def test_the_class_is_counted_and_the_reason_is_said(tmp_path, config, line):
    (tmp_path / "config.json").write_text(json.dumps(config))
    (kind,) = config["architectures"]
    found = mb.model(tmp_path).predictions(["parameters"])
    keys = {key: value for key, value in config.items() if key != "model_type"}
    assert found["parameters"].total == witness(kind, keys).parameters
    assert found["parameters"].source == f"traced: {kind}"
    (note,) = (note for note in found.notes_of_file if line in note)
    assert note.endswith(f"; measured without a formula: {kind} is traced")


@pytest.mark.parametrize("settings", [{}, {"dtype": "float32"}, {"dtype": "bfloat16"}])
def test_the_dtype_of_a_file_is_named_where_nothing_else_sets_it(tmp_path, settings):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"torch_dtype": "bfloat16"}))
    answer = mb.model(tmp_path).predictions(["parameters", "cache_bytes"], settings)
    assert any("used as dtype" in line for line in answer.notes_of_file) == (not settings)


def test_parameters_of_a_quantised_file_without_a_formula(tmp_path):
    """A format changes no number of parameters; all else of the class has the reason."""
    config = LLAMA | {"hidden_act": "tanh", "quantization_config": {
        "quant_method": "fp8", "weight_block_size": [128, 128],
    }}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = mb.model(tmp_path).predictions(["parameters", "parameter_bytes"])
    keys = {key: LLAMA[key] for key in LLAMA if key != "model_type"}
    assert found["parameters"].total == witness("LlamaForCausalLM", keys).parameters
    assert "traced with weights of the dtype" in found.missing["parameter_bytes"]
    assert found.run.weights == "fp8-block"


SMALL = {"vocab_size": 1000, "num_hidden_layers": 2, "pad_token_id": 0}
COUNTS = {
    "WhisperForCausalLM": (193_024, SMALL | {
        "d_model": 64, "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 128,
    }),
    "RoFormerForCausalLM": (161_064, SMALL | {
        "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128,
    }),
}  # fmt: skip
"""Keys without a bias; sines of positions that are a parameter without gradient."""


@pytest.mark.parametrize("kind", COUNTS)
def test_a_count_under_the_name_of_a_class_is_that_of_the_class(tmp_path, kind):
    expected, keys = COUNTS[kind]
    model_type = kind.removesuffix("ForCausalLM").lower()
    config = keys | {"architectures": [kind], "model_type": model_type}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = mb.model(tmp_path).predictions(["parameters", "parameter_bytes"], {"dtype": "float32"})
    assert found["parameters"].total == witness(kind, keys).parameters == expected
    assert found["parameter_bytes"].total == 4 * expected
    has_sines = kind == "RoFormerForCausalLM"
    assert any("+24,576: " in note for note in found.notes) == has_sines
    ours = mb.model(tmp_path).predictions(["parameters"], {"implementation": "modelbudget"})
    assert ours["parameters"].total == expected - 24_576 * has_sines


LAYERS = ["mamba", "hybrid", "mamba", "hybrid"]
SMALL_ZAMBA = {
    "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4, "n_mamba_heads": 4,
    "num_hidden_layers": 4, "layers_block_type": LAYERS,
}  # fmt: skip
ODD = [
    ("AlbertForPreTraining", {"embedding_size": 0}),
    ("BigBirdForMaskedLM", {"use_bias": False}),
    ("DeepseekV2ForCausalLM", {"q_lora_rank": 0}),
    ("DeepseekV3ForCausalLM", {"q_lora_rank": 0, "first_k_dense_replace": 1}),
    ("ElectraForMaskedLM", {"embedding_size": 0}),
    ("FalconMambaForCausalLM", {"intermediate_size": 768}),
    ("Gemma3nForCausalLM", {"num_hidden_layers": 20, "laurel_rank": 0}),
    ("Glm4MoeLiteForCausalLM", {"q_lora_rank": 0}),
    ("HYV3ForCausalLM", {"num_shared_experts": 0}),
    ("KimiLinearForCausalLM", {"num_hidden_layers": 4, "q_lora_rank": 0}),
    ("Lfm2ForCausalLM", {"num_hidden_layers": 0, "layer_types": []}),
    ("MambaForCausalLM", {"intermediate_size": 768}),
    ("MiniCPM3ForCausalLM", {"q_lora_rank": 0}),
    ("MiniCPM3ForCausalLM", {"v_head_dim": 0}),
    ("ModernBertForMaskedLM", {"classifier_bias": True}),
    ("ModernBertDecoderForCausalLM", {"classifier_bias": True}),
    ("OlmoHybridForCausalLM", {"num_hidden_layers": 2}),
    ("OPTForCausalLM", {"word_embed_proj_dim": 0}),
    ("RecurrentGemmaForCausalLM", {"num_hidden_layers": 3, "head_dim": 128}),
    ("RecurrentGemmaForCausalLM", {"num_hidden_layers": 3, "attention_window_size": 0}),
    (
        "NemotronHForCausalLM",
        {
            "num_hidden_layers": 4,
            "layers_block_type": ["mamba", "moe", "attention", "moe"],
            "moe_shared_expert_intermediate_size": 0,
        },
    ),
    ("RoFormerForMaskedLM", {"embedding_size": 0}),
    ("RwkvForCausalLM", {"attention_hidden_size": 0}),
    ("T5ForConditionalGeneration", {"num_layers": 2, "num_decoder_layers": 0}),
    ("YoutuForCausalLM", {"q_lora_rank": 0}),
    ("ZambaForCausalLM", SMALL_ZAMBA | {"head_dim": 16}),
    ("Zamba2ForCausalLM", SMALL_ZAMBA | {"head_dim": 16}),
    ("Zamba2ForCausalLM", SMALL_ZAMBA | {"attention_hidden_size": 64}),
]
"""Keys at which a class has other parameters than its defaults let one expect."""


@pytest.mark.parametrize(("kind", "odd"), ODD, ids=[f"{kind}-{list(odd)[-1]}" for kind, odd in ODD])
def test_an_odd_value_of_a_key_counts_as_in_the_class(tmp_path, kind, odd):
    keys = {"num_hidden_layers": 2} | odd
    config = keys | {"architectures": [kind], "model_type": translations()[kind].model_type}
    (tmp_path / "config.json").write_text(json.dumps(config))
    expected = witness(kind, keys).parameters
    found = mb.model(tmp_path).predictions(["parameters"], {"dtype": "float32"})
    assert found["parameters"].total == expected


def test_a_class_of_another_model_type_is_not_taken_for_one_of_its_name(tmp_path):
    """qwen3_vl_moe_text is read as qwen3_moe, whose classes have a head; this class has none."""
    keys = {
        "vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 48, "num_experts": 4,
        "moe_intermediate_size": 16, "num_experts_per_tok": 2, "pad_token_id": 0,
    }  # fmt: skip
    of_text = {"model_type": "qwen3_vl_moe_text", "architectures": ["Qwen3VLMoeTextModel"]}
    (tmp_path / "config.json").write_text(json.dumps(keys | of_text))
    found = mb.model(tmp_path).parameters()
    assert found.total == witness("Qwen3VLMoeTextModel", keys).parameters
    (tmp_path / "config.json").write_text(json.dumps(keys | {"model_type": "qwen3_vl_moe_text"}))
    with_head = mb.model(tmp_path).predictions(["parameters"])
    assert with_head.whose == "transformers (Qwen3MoeForCausalLM)"


def test_its_memory_is_that_of_the_traced_class(tmp_path):
    config = LLAMA | {"hidden_act": "tanh"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    run = {"batch": 2, "length": 12, "dtype": "bfloat16", "foreach": False}
    found = mb.model(tmp_path).memory(run | {"attention_kernel": "math"})
    quantities = {"activation_bytes", "cache_bytes", "optimizer_bytes"}
    keys = {key: value for key, value in config.items() if key != "model_type"}
    run = RunConfig(**run, attention_kernel="math")
    traced = trace_class("LlamaForCausalLM", keys, run, quantities)
    for quantity in quantities:
        assert found[quantity].total == sum(traced.values[quantity].values())
    assert {one.source for one in found.breakdowns.values()} == {"traced: LlamaForCausalLM"}
    assert found.whose == "transformers (LlamaForCausalLM)"


def test_a_class_whose_trace_needs_values_is_answered_for_our_modules(tmp_path):
    """It loops over the experts that tokens choose; a file had no answer, and torch's message."""
    sizes = {"vocab_size": 50, "d_model": 16, "n_heads": 2, "n_layers": 1}
    parts = {
        "attn_config": {"rope_theta": 1e4, "clip_qkv": 8},
        "ffn_config": {"ffn_hidden_size": 24},
    }
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "dbrx", **sizes, **parts}))
    model, quantities = mb.model(tmp_path), ["cache_bytes", "peak_training_bytes"]
    found = model.predictions(quantities, {"length": 8})
    assert found.whose == "modelbudget"
    assert "DbrxForCausalLM was not traced: its code reads values of tensors" in found.notes[0]
    of_ours = {"length": 8, "implementation": "modelbudget"}
    for quantity in quantities:
        assert found[quantity].total == model.predict(quantity, of_ours).total
    of_class = model.predictions(quantities, {"length": 8, "implementation": "transformers"})
    assert of_class.missing.keys() == {*quantities}


def test_a_key_that_nobody_reads_stays_a_mistake(tmp_path):
    config = LLAMA | {"hidden_act": "tanh", "num_hidden_layer": 3}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError) as refusal:
        mb.model(tmp_path)
    assert "did you mean num_hidden_layers?" in str(refusal.value)


def test_a_key_without_a_value_sets_nothing(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"v_head_dim": None}))
    found = mb.model(tmp_path).predictions(["parameters"])
    assert found["parameters"].source == "formula"
    assert not any("v_head_dim" in note for note in found.notes_of_file)


def test_what_is_missing_of_a_class_is_in_the_order_of_the_question(tmp_path):
    """It came in another order in each process."""
    kind, quantities = "BertForPreTraining", ["flops_backward", "gradient_bytes", "parameters",
                                              "activation_bytes", "optimizer_bytes"]  # fmt: skip
    config = {"model_type": "bert", "architectures": [kind], "num_hidden_layers": 1,
              "hidden_size": 32, "num_attention_heads": 2, "vocab_size": 50}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    run = {"implementation": "transformers", "length": 8}
    missing = mb.model(tmp_path).predictions(quantities, run).missing
    assert [*missing] == [quantity for quantity in quantities if quantity != "parameters"]
