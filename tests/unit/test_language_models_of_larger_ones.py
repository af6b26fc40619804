"""Files of models that read images or sound too: their language model is counted, and said so."""

import json

import pytest
import torch

import modelbudget as mb
from modelbudget.api.model import model
from modelbudget.huggingface.config_file import read
from modelbudget.huggingface.construct import config_object, construct
from modelbudget.modules.initialise import uninitialised

TEXT = {
    "vocab_size": 90, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0,
    "max_position_embeddings": 64,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
MROPE = {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4}}
OF_GLM = MROPE | {"attention_bias": True}
WRAPPED = {
    "Gemma3ForConditionalGeneration": ("gemma3", "gemma3_text", {"sliding_window": 16}),
    "LlavaForConditionalGeneration": ("llava", "llama", {}),
    "LlavaOnevisionForConditionalGeneration": ("llava_onevision", "qwen2", {"head_dim": None}),
    "Llama4ForConditionalGeneration": ("llama4", "llama4_text", {"intermediate_size_mlp": 48}),
    "Mistral3ForConditionalGeneration": ("mistral3", "mistral", {}),
    "PaliGemmaForConditionalGeneration": ("paligemma", "gemma", {}),
    "Idefics3ForConditionalGeneration": ("idefics3", "llama", {}),
    "Qwen2VLForConditionalGeneration": ("qwen2_vl", "qwen2_vl_text", MROPE | {"head_dim": None}),
    "Qwen2_5_VLForConditionalGeneration": (
        "qwen2_5_vl", "qwen2_5_vl_text", MROPE | {"head_dim": None},
    ),
    "Qwen3VLForConditionalGeneration": ("qwen3_vl", "qwen3_vl_text", MROPE),
    "Qwen3VLMoeForConditionalGeneration": ("qwen3_vl_moe", "qwen3_vl_moe_text", MROPE | EXPERTS),
    "Glm4vForConditionalGeneration": ("glm4v", "glm4v_text", OF_GLM),
    "Glm4vMoeForConditionalGeneration": (
        "glm4v_moe", "glm4v_moe_text",
        OF_GLM | {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8,
                  "n_shared_experts": 1, "first_k_dense_replace": 1},
    ),
    "Qwen2AudioForConditionalGeneration": ("qwen2_audio", "qwen2", {"head_dim": None}),
    "AudioFlamingo3ForConditionalGeneration": ("audioflamingo3", "qwen2", {"head_dim": None}),
    "VoxtralForConditionalGeneration": ("voxtral", "llama", {}),
}  # fmt: skip
"""Class → its model_type, that of its language model, and what that has in addition."""


@pytest.fixture
def read_file(tmp_path):
    def write_and_read(config: dict):
        (tmp_path / "config.json").write_text(json.dumps(config))
        return read(tmp_path / "config.json")

    return write_and_read


def config_of(kind: str, tied: bool, tied_in_text: bool) -> dict:
    """Return the config.json of a class around a small language model."""
    model_type, of_text, more = WRAPPED[kind]
    sizes = {key: value for key, value in (TEXT | more).items() if value is not None}
    return {
        "model_type": model_type, "architectures": [kind], "tie_word_embeddings": tied,
        "text_config": {"model_type": of_text, "tie_word_embeddings": tied_in_text} | sizes,
    }  # fmt: skip


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", WRAPPED)
def test_as_many_parameters_as_in_the_class(read_file, tmp_path, kind, tied):
    config = config_of(kind, tied, tied)
    found = read_file(config)
    assert found.notes[0].text.startswith(f"{kind}: only its language model, ")
    with torch.device("meta"), uninitialised():
        whole = construct(kind, config_object(kind, json.loads(json.dumps(config))))
    parts = ("language_model.", "text_model.", "lm_head.")
    routers = [(n, b) for n, b in whole.named_buffers() if n.endswith("e_score_correction_bias")]
    numbers = {name: one.numel() for name, one in (*whole.named_parameters(), *routers)}
    expected = sum(n for name, n in numbers.items() if any(part in name for part in parts))
    assert model(str(tmp_path / "config.json")).predict("parameters").total == expected


@pytest.mark.parametrize("kind", WRAPPED)
def test_a_head_that_only_the_class_ties_has_a_line(read_file, kind):
    """Published files of Mistral 3 leave the key out, and their checkpoints have a head."""
    config = {k: v for k, v in config_of(kind, False, False).items() if k != "tie_word_embeddings"}
    found = read_file(config)
    with torch.device("meta"), uninitialised():
        whole = construct(kind, config_object(kind, config))
    head, table = whole.get_output_embeddings(), whole.get_input_embeddings()
    is_tied = head.weight is table.weight
    assert ("a head of its own" in found.notes[0].text) == (is_tied and not found.fields["tied"])


@pytest.mark.parametrize(
    ("kind", "model_type"),
    [
        ("MuseGlimmerForConditionalGeneration", "muse_glimmer"),  # no attribute: not tied
        ("Blip2ForConditionalGeneration", "blip-2"),  # its language model ties itself
    ],
)
def test_a_file_without_the_key_ties_as_in_its_class(read_file, kind, model_type):
    """Of classes without a formula, whose own config has no such attribute."""
    config = {"architectures": [kind], "model_type": model_type}
    with torch.device("meta"), uninitialised():
        module = construct(kind, config_object(kind, {}))
    head, table = module.get_output_embeddings(), module.get_input_embeddings()
    assert read_file(config).fields["tied"] == (head.weight is table.weight)


def test_what_reads_images_is_no_part_of_the_layers(tmp_path):
    """A traced class whose encoder of images has paths as those of the language model."""
    text = {"num_hidden_layers": 2, "hidden_size": 256, "intermediate_size": 96}
    config = {"architectures": ["MuseGlimmerForConditionalGeneration"], "text_config": text}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config | {"model_type": "muse_glimmer"}))
    counted = {row["component"]: row["value"] for row in model(path).parameters().rows()}
    assert counted["layer.mlp.up"] == counted["layer.mlp.down"] == 2 * 256 * 96


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", [*WRAPPED])
def test_keys_that_contradict_each_other_tie_as_in_the_class(read_file, kind, tied):
    """huggingface.co/llava-hf/llava-onevision-qwen2-0.5b-ov-hf: tied only in its text_config."""
    config = config_of(kind, tied, not tied)
    is_tied = read_file(config).fields["tied"]
    with torch.device("meta"), uninitialised():
        whole = construct(kind, config_object(kind, config))
    head, table = whole.get_output_embeddings(), whole.get_input_embeddings()
    assert is_tied == (head.weight is table.weight)


QWEN = {
    "hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28,
    "num_hidden_layers": 28, "num_key_value_heads": 4, "tie_word_embeddings": False,
    "vocab_size": 152064, "max_position_embeddings": 32768, "torch_dtype": "bfloat16",
}  # fmt: skip
VISION = {"vision_config": {"depth": 32, "hidden_size": 1280}}
PUBLISHED = {
    # huggingface.co/Qwen/Qwen2.5-7B: 7,615,616,512, also in both forms of Qwen2.5-VL-7B.
    "keys next to those of vision": ({"model_type": "qwen2_5_vl"} | QWEN | VISION, 7_615_616_512),
    "llm_config": (
        {"model_type": "internvl_chat", "llm_config": {"model_type": "qwen2"} | QWEN} | VISION,
        7_615_616_512,
    ),
    # huggingface.co/mistralai/Mistral-Small-24B-Base-2501: 23,572,403,200
    "text_config": (
        {
            "model_type": "mistral3", "architectures": ["Mistral3ForConditionalGeneration"],
            "text_config": {
                "model_type": "mistral", "head_dim": 128, "hidden_size": 5120, "num_hidden_layers":
                40, "intermediate_size": 32768, "num_attention_heads": 32, "num_key_value_heads": 8,
                "vocab_size": 131072, "sliding_window": None,
            },
        },
        23_572_403_200,
    ),
    # huggingface.co/deepseek-ai/DeepSeek-OCR, whose attention is not latent: as many as
    # DeepseekOcr2TextModel of these sizes and a head
    "language_config": (
        {
            "model_type": "deepseek_vl_v2", "architectures": ["DeepseekOCRForCausalLM"],
            "language_config": {
                "model_type": "deepseek_v2", "architectures": ["DeepseekV2ForCausalLM"],
                "first_k_dense_replace": 1, "hidden_size": 1280, "intermediate_size": 6848,
                "kv_lora_rank": None, "q_lora_rank": None, "qk_nope_head_dim": 0, "v_head_dim": 0,
                "qk_rope_head_dim": 0, "use_mla": False, "lm_head": True, "rm_head": False,
                "max_position_embeddings": 8192, "moe_intermediate_size": 896, "n_group": 1,
                "n_routed_experts": 64, "n_shared_experts": 2, "num_attention_heads": 10,
                "num_experts_per_tok": 6, "num_hidden_layers": 12, "num_key_value_heads": 10,
                "topk_group": 1, "topk_method": "greedy", "vocab_size": 129280,
            },
            "vision_config": {"model_name": "deeplip_b_l", "model_type": "vision"},
        },
        2_934_734_080,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_counts(read_file, tmp_path, name):
    config, expected = PUBLISHED[name]
    found = read_file(config)
    assert "only its language model" in found.notes[0].text
    assert ("left out: vision_config" in found.notes[0].text) == ("vision_config" in config)
    assert model(str(tmp_path / "config.json")).predict("parameters").total == expected


@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_places_in_images_are_those_of_text(read_file, tmp_path, key):
    """huggingface.co/Qwen/Qwen2.5-VL-7B-Instruct: the class of its text refused this type."""
    rope = {"rope_scaling": {key: "mrope", "mrope_section": [16, 24, 24]}}
    read_file({"model_type": "qwen2_5_vl"} | QWEN | rope | VISION)
    run = {"length": 64, "implementation": "transformers"}
    of_text = mb.model("qwen-2.5-7b").predict("activation_bytes", run)
    of_whole = model(str(tmp_path / "config.json")).predict("activation_bytes", run)
    assert of_whole.total == of_text.total


LINEAR = {"rope_type": "linear", "factor": 8.0}


@pytest.mark.parametrize(
    ("config", "rows"),
    [({"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}, 4),
     ({"rope_parameters": {"rope_type": "default", "mrope_section": [11, 11, 10]}}, 4),
     ({"rope_scaling": LINEAR}, 8), ({"rope_scaling": None}, 1),
     ({"rope_scaling": LINEAR, "model_type": "gemma3"}, 9), ({"model_type": "gemma3"}, 2),
     ({"rope_parameters": {"full_attention": LINEAR, "sliding_attention": {"rope_type": "default"}},
       "model_type": "gemma3"}, 9)],
)  # fmt: skip
def test_rows_that_vllm_has_for_a_position(read_file, config, rows):
    """By rotary_embedding/mrope.py and linear_scaling_rope.py, and gemma3.py's two bases."""
    whole = {"model_type": "qwen2_5_vl"} | QWEN | VISION | config
    assert read_file(whole).run.get("rope_rows", 1) == rows


@pytest.mark.parametrize(
    "rope",
    ["linear", [1], 3, True, {"full_attention": 3}, {"full_attention": None},
     *({"rope_type": "linear", "factor": factor} for factor in ("x", None, -4, 1e30))],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_a_scaling_that_is_none_has_one_row(read_file, key, rope):
    """Each of them ended in a traceback of `--serve` and of `modelbudget config.json`."""
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], key: rope}
    assert "rope_rows" not in read_file(TEXT | config).run


def test_settings_of_the_whole_are_those_of_its_language_model(read_file):
    of_modules = {"modules_to_not_convert": ["visual", "lm_head"]}
    awq = {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"} | of_modules
    config = {
        "model_type": "qwen2_5_vl", "text_config": {"torch_dtype": "float32"} | QWEN,
        "dtype": "float16", "quantization_config": awq,
    }  # fmt: skip
    found = read_file(config)
    assert found.run == {"dtype": "float16", "weights": "awq", "weight_group": 128}
    assert sum("dtype" in note.text for note in found.notes) == 1


def test_sizes_that_another_model_type_would_fill_in_are_left_to_the_class(read_file):
    """Qwen2-VL has 80 layers by default, Qwen 2 has 32."""
    config = {"model_type": "qwen2_vl", "text_config": {"hidden_size": 16}}
    assert read_file(config).family == "hugging-face"


def test_an_unknown_language_model_is_measured_with_the_whole(read_file):
    config = {"model_type": "mllama", "text_config": {"model_type": "mllama_text_model"}}
    found = read_file(config)
    assert found.family == "hugging-face"
    assert not any("language model" in note.text for note in found.notes)
