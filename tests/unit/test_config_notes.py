"""Keys of a config.json that change memory: used, or reported in one line."""

import json

import pytest
from helpers.config_files import LLAMA, XLNET
from markupsafe import escape

from modelbudget.architecture.terms import total
from modelbudget.common.errors import InputError
from modelbudget.huggingface import bounded_check, class_code, config_file
from modelbudget.huggingface.config_file import read


@pytest.fixture
def notes(tmp_path, sweep):
    """Return the notes of a sweep over a config.json, and its first point."""

    def expand(config: dict, rest: str = "", quantities: str = "parameter_bytes"):
        (tmp_path / "config.json").write_text(json.dumps(config))
        expanded = sweep(
            f"points: [{{base: config.json{rest}}}]\nmeasure: {{device: meta, quantities: "
            f"[{quantities}]}}"
        )
        return expanded.notes, expanded.points[0].run

    return expand


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
@pytest.mark.parametrize("config", [LLAMA, XLNET])
def test_the_dtype_of_a_file_is_that_of_the_run(notes, config, key):
    plain = {k: v for k, v in config.items() if k != "torch_dtype"}
    found, run = notes(plain | {key: "float16"})
    assert run.dtype == "float16"
    (line,) = found
    assert f"config.json: {key} = 'float16'" in line


@pytest.mark.parametrize("order", [("dtype", "torch_dtype"), ("torch_dtype", "dtype")])
def test_dtype_is_read_and_not_its_older_name_next_to_it(notes, order):
    """`PreTrainedConfig` does so; the last in the file was read, which float16 is once."""
    values = {"dtype": "float16", "torch_dtype": "float32"}
    found, run = notes(XLNET | {key: values[key] for key in order})
    assert run.dtype == "float16"
    assert len(found) == 1


def test_a_sweep_sets_another_dtype(notes):
    _, run = notes(LLAMA, ", dtype: float64")
    assert run.dtype == "float64"


def test_counts_need_no_note(notes):
    assert notes(LLAMA | {"attention_dropout": 0.1}, quantities="parameters")[0] == []


NOT_USED = {
    "attention_dropout": 0.1,
    "gradient_checkpointing": True,
    "hidden_act": "gelu_new",
    "num_nextn_predict_layers": 1,
}
OFF = {
    "attention_dropout": 0.0,
    "gradient_checkpointing": False,
    "hidden_act": "silu",
    "num_nextn_predict_layers": 0,
}


@pytest.mark.parametrize("key", NOT_USED)
def test_what_is_not_used_is_reported(notes, key):
    config = {k: v for k, v in LLAMA.items() if k != "torch_dtype"}
    found, _ = notes(config | {key: NOT_USED[key]}, quantities="activation_bytes")
    (line,) = found
    assert f"config.json: {key} = " in line
    assert notes(config | {key: OFF[key]}, quantities="activation_bytes")[0] == []


def test_a_sweep_that_answers_it_needs_no_note(notes):
    config = {k: v for k, v in LLAMA.items() if k != "torch_dtype"}
    case = (config | {"attention_dropout": 0.1}, "", "activation_bytes")
    assert len(notes(*case)[0]) == 1
    assert notes(case[0], ", dropout: true", case[2])[0] == []


PHI_4_MINI = {
    "model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "vocab_size": 200064,
    "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32,
    "num_attention_heads": 24, "num_key_value_heads": 8, "max_position_embeddings": 131072,
    "original_max_position_embeddings": 4096, "partial_rotary_factor": 0.75, "hidden_act": "silu",
    "tie_word_embeddings": True, "sliding_window": 262144, "attention_bias": False,
    "full_attn_mod": 1, "interpolate_factor": 1, "lm_head_bias": False, "mlp_bias": False,
    "rope_scaling": {"type": "longrope", "long_factor": [1, 1.1], "short_factor": [1, 1]},
}  # fmt: skip
"""huggingface.co/microsoft/Phi-4-mini-instruct; rope_scaling has 48 factors there."""


def test_keys_that_the_class_does_not_read_stop_no_import(notes, tmp_path, sweep):
    found, _ = notes(PHI_4_MINI)
    (line,) = found
    assert line.partition("config.json: ")[2] == (
        "full_attn_mod = 1, interpolate_factor = 1, lm_head_bias = false, mlp_bias = false: "
        "not read by Phi3ForCausalLM"
    )
    (point,) = sweep("points: [{base: config.json}]").points
    assert total(point.architecture.parameters(point.architecture)) == 3_836_021_760


def test_a_key_that_the_class_reads_is_refused_if_it_cannot_be_built(notes, monkeypatch):
    assert class_code.keys_in_code("LlamaForCausalLM", ["mlp_bias", "nothing"]) == ["mlp_bias"]
    assert class_code.keys_in_code("NoClass", ["nothing"]) == ["nothing"]
    monkeypatch.setattr(config_file, "keys_in_code", lambda class_name, keys: keys)
    with pytest.raises(InputError, match="add_qkv_heads = 3: unknown key"):
        notes(PHI_4_MINI | {"add_qkv_heads": 3})


@pytest.mark.parametrize("value", ["4096", {"value": 4096}])
def test_no_class_is_asked_about_a_size_that_is_text_or_has_keys(notes, monkeypatch, value):
    monkeypatch.setattr(bounded_check, "ask", None)
    with pytest.raises(InputError, match=r"hidden_size = .*: must be a whole number"):
        notes(LLAMA | {"hidden_size": value})


def test_numbers_as_transformers_5_writes_them(notes):
    limits = {"time_step_limit": [0.0, {"__float__": "Infinity"}]}
    _, run = notes({"model_type": "mamba2", **limits})
    assert run.batch == 1
    with pytest.raises(InputError, match="rope_theta = NaN: must be a number"):
        notes(LLAMA | {"rope_theta": {"__float__": "NaN"}})


def test_a_model_type_that_transformers_knows_under_another_name(notes, sweep):
    """huggingface.co/moonshotai/Kimi-K2-Base: 1,026,408,232,448 parameters on its page."""
    notes(
        {
            "model_type": "kimi_k2", "architectures": ["DeepseekV3ForCausalLM"],
            "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
            "n_routed_experts": 384, "n_shared_experts": 1, "num_attention_heads": 64,
            "num_hidden_layers": 61, "first_k_dense_replace": 1, "vocab_size": 163840,
            "q_lora_rank": 1536, "kv_lora_rank": 512,
        }
    )  # fmt: skip
    (point,) = sweep("points: [{base: config.json}]").points
    assert total(point.architecture.parameters(point.architecture)) == 1_026_408_232_448


WIDE = {
    "vocab_size_per_layer_input": 262144,
    "num_experts": 16384,
    "num_hidden_layers": 9999,
    # No sizes of tensors, and a table of n-grams (Qwen4ExpConfig).
    "seed": 4294967295,
    "model_max_length": 1000000000000000019884624838656,
    "layers": [{"compress_rope_theta": 10**8}],
    "ngram_vocab_size_base": 20000000,
}


def test_limits_are_on_what_costs(notes):
    from modelbudget.huggingface.keys_of_class import impossible_sizes

    assert list(impossible_sizes(WIDE)) == []
    for key in ("num_hidden_layers", "n_layer", "encoder_layers", "num_blocks", "depths"):
        assert list(impossible_sizes({key: 10**5})) == [f"{key} = 100000: must be at most 10,000"]
    assert list(impossible_sizes({"num_experts": 10**7}))


MOBILE = {
    "model_type": "mobilellm", "architectures": ["MobileLLMForCausalLM"], "hidden_size": 576,
    "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
    "num_key_value_heads": 3, "vocab_size": 32000, "share_embedding": True,
    "tie_word_embeddings": False,
}  # fmt: skip
"""huggingface.co/facebook/MobileLLM-125M."""
AS_LLAMA = {k: v for k, v in MOBILE.items() if k not in ("share_embedding", "tie_word_embeddings")}
PYTHIA = {
    "model_type": "gpt_neox", "hidden_size": 5120, "num_hidden_layers": 40,
    "num_attention_heads": 40, "intermediate_size": 20480, "vocab_size": 50688,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "right", "published"),
    [
        (MOBILE, {"tied": True}, 124.6e6),
        (AS_LLAMA | {"model_type": "llama", "architectures": []}, {"tied": True}, 124.6e6),
        (PYTHIA, {"n_layer": 36}, 11.846e9),
    ],
)
def test_a_published_file_that_does_not_describe_the_model(notes, sweep, config, right, published):
    found, _ = notes(config, quantities="parameters")
    assert sum("trained with" in line for line in found) == 1
    (point,) = sweep("points: [{base: config.json}]").points
    a = point.architecture.model_copy(update=right)
    assert total(a.parameters(a)) == pytest.approx(published, rel=1e-3)
    assert total(point.architecture.parameters(point.architecture)) > 1.1 * published
    other = {k: v for k, v in config.items() if k != "share_embedding"} | {"num_hidden_layers": 31}
    assert notes(other, quantities="parameters")[0] == []


def test_a_class_that_is_only_on_model_pages(notes, sweep):
    """huggingface.co/deepseek-ai/deepseek-moe-16b-base: 16,375,728,128 parameters on its page."""
    notes(
        {
            "model_type": "deepseek", "architectures": ["DeepseekForCausalLM"],
            "hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408,
            "n_routed_experts": 64, "n_shared_experts": 2, "num_attention_heads": 16,
            "num_hidden_layers": 28, "first_k_dense_replace": 1, "num_experts_per_tok": 6,
            "vocab_size": 102400,
        }
    )  # fmt: skip
    (point,) = sweep("points: [{base: config.json}]").points
    assert point.transformers is None
    assert total(point.architecture.parameters(point.architecture)) == 16_375_728_128


def test_the_page_has_the_notes_of_a_sweep(notes, sweep):
    from modelbudget.report.tables import environment
    from modelbudget.sweeps.sweep_json import summary

    found, _ = notes(LLAMA)
    expanded = sweep("points: [{base: config.json}]\nmeasure: {quantities: [parameter_bytes]}")
    facts = environment().globals["facts"](summary(expanded))
    lines = escape("\n".join(found))
    assert f"<dt>notes</dt><dd>{lines}</dd>" in facts


@pytest.mark.parametrize(
    ("model_type", "keys", "has_line"),
    [
        ("phi3", {"sliding_window": 2047}, False),
        ("starcoder2", {"sliding_window": 4096}, False),
        ("mixtral", {"sliding_window": 4096}, True),
        ("mixtral", {"sliding_window": None}, False),
        ("llama", {"sliding_window": 4096}, True),  # its cache has windows
        ("mistral", {"sliding_window": 4096}, False),  # its layers here have them too
        ("qwen2", {"use_sliding_window": False, "sliding_window": 131072}, False),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 131072}, True),
    ],
)
def test_a_window_has_a_line_unless_it_is_used_or_the_class_ignores_it(
    tmp_path, model_type, keys, has_line
):
    path = tmp_path / "config.json"
    sizes = {"vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 32}
    path.write_text(json.dumps({"model_type": model_type} | sizes | keys))
    lines = [note.text for note in read(path).notes]
    assert ["all layers attend all tokens here" in line for line in lines] == [True] * has_line


@pytest.mark.parametrize(
    ("model_type", "keys", "lines"),
    [
        ("llama4_text", {"use_qk_norm": True, "attn_temperature_tuning": True}, 2),
        ("llama4_text", {"use_qk_norm": False, "attn_temperature_tuning": False}, 0),
        ("glm4_moe", {"use_qk_norm": True}, 0),  # its layers here have them
    ],
)
def test_what_is_left_out_of_queries_and_keys_has_a_line(tmp_path, model_type, keys, lines):
    """Llama 4's norms of queries and keys have no weights, and what they save is not counted."""
    path = tmp_path / "config.json"
    sizes = {"vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 32}
    path.write_text(json.dumps({"model_type": model_type} | sizes | keys))
    notes = [note.text for note in read(path).notes]
    assert sum("queries" in text and "not used" in text for text in notes) == lines


def test_a_class_without_a_formula_reads_all_but_what_the_run_decides(notes):
    """Dropout was off without a word in answers about classes that are only traced."""
    config = XLNET | {"dropout": 0.1, "gradient_checkpointing": True, "ff_activation": "gelu"}
    found, _ = notes(config, ", length: 8", "activation_bytes")
    about = [line.split("config.json: ")[1] for line in found if "not used" in line]
    assert about == [
        "dropout = 0.1: not used: dropout is off unless dropout is set to true",
        "gradient_checkpointing = true: not used: layers keep their activations unless recompute "
        "is set to full",
    ]
    assert not any("not used" in line for line in notes(config, ", length: 8", "parameters")[0])
