"""config.json files of model pages whose keys are spelled otherwise than in transformers."""

import json

import pytest
import torch
import transformers
from torch import device

import modelbudget as mb

# huggingface.co/LiquidAI/LFM2-1.2B
LFM2 = {
    "model_type": "lfm2", "architectures": ["Lfm2ForCausalLM"], "vocab_size": 65536,
    "hidden_size": 2048, "block_ff_dim": 12288, "num_hidden_layers": 16, "num_heads": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "tie_embedding": True,
    "block_multiple_of": 256, "block_ffn_dim_multiplier": 1.0, "block_auto_adjust_ff_dim": True,
    "conv_L_cache": 3, "conv_bias": False, "full_attn_idxs": [2, 5, 8, 10, 12, 14],
}  # fmt: skip


def test_lfm2_is_counted_as_its_class(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LFM2))
    with device("meta"):
        of_class = transformers.Lfm2ForCausalLM(transformers.Lfm2Config(**LFM2))
    n = sum(parameter.numel() for parameter in of_class.parameters())
    assert mb.model(tmp_path).parameters().total == n == 1_170_340_608


# huggingface.co/microsoft/Phi-3.5-MoE-instruct: the class of its own code has another name
PHI_MOE = {
    "model_type": "phimoe", "architectures": ["PhiMoEForCausalLM"], "vocab_size": 32064,
    "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 6400, "num_local_experts": 16,
    "num_experts_per_tok": 2, "max_position_embeddings": 131072, "attention_bias": True,
    "lm_head_bias": True, "tie_word_embeddings": False, "input_jitter_noise": 0.01,
    "auto_map": {"AutoConfig": "configuration_phimoe.PhiMoEConfig"},
}  # fmt: skip
# huggingface.co/google/mt5-base and umt5-base: files with a head of their own, which
# transformers 5 ties whatever they say
MT5 = {
    "model_type": "mt5", "architectures": ["MT5ForConditionalGeneration"], "vocab_size": 250112,
    "d_model": 768, "d_kv": 64, "d_ff": 2048, "num_layers": 12, "num_decoder_layers": 12,
    "num_heads": 12, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False,
}  # fmt: skip
UMT5 = MT5 | {"model_type": "umt5", "architectures": ["UMT5ForConditionalGeneration"]}


def lines_of(folder, keys: dict) -> tuple[int, str]:
    (folder / "config.json").write_text(json.dumps(keys))
    predicted = mb.model(folder).predictions(["parameters"])
    return predicted["parameters"].total, " ".join(predicted.notes_of_file)


def test_published_sizes_of_files_that_the_installed_class_reads_otherwise(tmp_path):
    """Against the sizes on the model pages, which count the tensors of the files."""
    assert lines_of(tmp_path, PHI_MOE)[0] == 41_873_153_344
    assert lines_of(tmp_path, MT5)[0] == 582_401_280
    before_4 = {"model_type": "t5", "architectures": ["T5WithLMHeadModel"]}  # as t5-small's first
    assert lines_of(tmp_path, before_4)[0] == 60_506_624
    counted, lines = lines_of(tmp_path, UMT5)
    n_of_head = UMT5["vocab_size"] * UMT5["d_model"]
    assert counted == 390_323_712
    assert f"ties the head nevertheless; with its own it has {n_of_head:,} more" in lines
    assert not lines_of(tmp_path, UMT5 | {"tie_word_embeddings": True})[1]


# huggingface.co/microsoft/phi-2 and phi-1_5 as they were in 2023, allenai/OLMo-7B and OLMo-1B
PHI_2 = {
    "model_type": "phi-msft", "architectures": ["PhiForCausalLM"], "vocab_size": 51200,
    "n_embd": 2560, "n_head": 32, "n_head_kv": None, "n_inner": None, "n_layer": 32,
    "n_positions": 2048, "rotary_dim": 32, "tie_word_embeddings": False, "flash_attn": False,
    "flash_rotary": False, "fused_dense": False, "attn_pdrop": 0.0, "img_processor": None,
}  # fmt: skip
PHI_1_5 = {
    "model_type": "mixformer-sequential", "architectures": ["MixFormerSequentialForCausalLM"],
    "architecture": {"block_cls": "parallel", "mixer": {}, "mlp": {"mlp_cls": "mlp"}},
    "embd_layer": "default", "vocab_size": 51200, "n_embd": 2048, "n_head": 32, "n_layer": 24,
    "n_inner": None, "n_positions": 2048, "rotary_dim": 32, "phyagi_version": "0.0.4.dev",
}  # fmt: skip
OLMO = {
    "model_type": "hf_olmo", "architectures": ["OLMoForCausalLM"], "activation_type": "swiglu",
    "alibi": False, "alibi_bias_max": 8.0, "attention_layer_norm": False, "block_group_size": 1,
    "attention_layer_norm_with_affine": False, "bias_for_layer_norm": False, "d_model": 4096,
    "block_type": "sequential", "embedding_size": 50304, "flash_attention": True,
    "include_bias": False, "init_fn": "mitchell", "init_cutoff_factor": None, "n_layers": 32,
    "layer_norm_type": "default", "layer_norm_with_affine": False, "max_sequence_length": 2048,
    "mlp_hidden_size": 22016, "mlp_ratio": 4, "multi_query_attention": False, "n_heads": 32,
    "precision": "amp_bf16", "rope": True, "rope_full_precision": True, "scale_logits": False,
    "vocab_size": 50280, "weight_tying": False,
}  # fmt: skip
OLMO_1B = OLMO | {
    "d_model": 2048, "n_layers": 16, "n_heads": 16, "mlp_hidden_size": None, "mlp_ratio": 8,
    "weight_tying": True,
}  # fmt: skip


INTERN_LM = {  # internlm/internlm-7b: Llama 7B with biases of attention and more tokens
    "model_type": "internlm", "architectures": ["InternLMForCausalLM"], "bias": True,
    "vocab_size": 103168, "rotary": {"base": 10000, "type": "dynamic"},
}  # fmt: skip
OF_BIASES = 32 * 4 * 4096


@pytest.mark.parametrize(
    ("keys", "n_published"),
    [
        (PHI_2, 2_779_683_840),
        (PHI_1_5, 1_418_270_720),
        (OLMO, 6_888_095_744),
        (OLMO_1B, 1_176_764_416),
        (INTERN_LM, 6_738_415_616 + 2 * 4096 * (103168 - 32000) + OF_BIASES),
    ],
)
def test_files_of_code_before_transformers_had_the_class(tmp_path, keys, n_published):
    """Against the checkpoints of transformers' own classes, which have the same tensors."""
    assert lines_of(tmp_path, keys)[0] == n_published


# As on huggingface.co: Qwen/Qwen3.5-35B-A3B, meta-llama/Llama-4-Maverick-17B-128E-Instruct,
# nvidia/MiniMax-M2.5-NVFP4, Qwen/Qwen3-Coder-480B-A35B-Instruct, microsoft/Phi-3-mini-4k-instruct,
# with small sizes, and what transformers 4 wrote into Kimi K2.5
QWEN = {
    "model_type": "qwen3_5_moe_text", "hidden_size": 64, "num_hidden_layers": 4, "vocab_size": 99,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_experts": 4,
    "num_experts_per_tok": 2, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8, "layer_types": [*["linear_attention"] * 3, "full_attention"],
    "full_attention_interval": 4, "mtp_num_hidden_layers": 1, "attn_output_gate": True,
    "mtp_use_dedicated_embeddings": False, "mamba_ssm_dtype": "float32", "mlp_only_layers": [],
    "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25, "rope_theta": 1e7},
    "tie_word_embeddings": False,
}  # fmt: skip
SIZES = {
    "hidden_size": 64, "num_hidden_layers": 4, "vocab_size": 99, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 24, "pad_token_id": 0,
}  # fmt: skip
EXPERTS = {"num_experts_per_tok": 2, "num_local_experts": 4}
LLAMA_4 = SIZES | EXPERTS | {
    "model_type": "llama4_text", "interleave_moe_layer_step": 2, "intermediate_size_mlp": 40,
}  # fmt: skip
MINIMAX = SIZES | EXPERTS | {
    "model_type": "minimax_m2", "rotary_dim": 8, "partial_rotary_factor": 0.5, "use_mtp": True,
}  # fmt: skip
CODER = SIZES | {
    "model_type": "qwen3_moe", "qkv_bias": False, "num_experts": 4, "moe_intermediate_size": 8,
    "num_experts_per_tok": 2, "no_repeat_ngram_size": 0, "typical_p": 1.0, "torchscript": False,
}  # fmt: skip
AFMOE = SIZES | {  # arcee-ai/Trinity-Mini: its own code has these keys, the class never reads them
    "model_type": "afmoe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8,
    "num_dense_layers": 1, "num_expert_groups": 1, "num_limited_groups": 1, "sliding_window": 8,
    "num_shared_experts": 1, "layer_types": [*["sliding_attention"] * 3, "full_attention"],
}  # fmt: skip
NEMOTRON = SIZES | {  # nvidia/Nemotron-H-8B-Base-8K: Megatron's name of the same number
    "model_type": "nemotron_h", "hybrid_override_pattern": "M-*-", "num_query_groups": 2,
    "mamba_num_heads": 4, "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 8,
}  # fmt: skip
GLM_FLASH = SIZES | {  # zai-org/GLM-4.7-Flash: RoPE's share, which the class has elsewhere
    "model_type": "glm4_moe_lite", "partial_rotary_factor": 1.0, "n_routed_experts": 4,
    "num_experts_per_tok": 2, "moe_intermediate_size": 8, "first_k_dense_replace": 1,
    "q_lora_rank": 16, "kv_lora_rank": 8, "qk_nope_head_dim": 12, "qk_rope_head_dim": 4,
    "v_head_dim": 16, "num_nextn_predict_layers": 1, "head_dim": 4,
}  # fmt: skip
PHI_3 = {k: v for k, v in SIZES.items() if k != "head_dim"} | {"model_type": "phi3"}


@pytest.mark.parametrize(
    "keys",
    [QWEN, LLAMA_4, MINIMAX, CODER, AFMOE, NEMOTRON, GLM_FLASH],
    ids=lambda keys: keys["model_type"],
)
def test_keys_of_published_files_that_no_class_writes(tmp_path, keys):
    """Each file was refused, or was counted without a formula; the class is the oracle."""
    total, lines = lines_of(tmp_path, keys)
    assert total == of_class(keys)
    assert ("attn_output_gate = true" in lines) == ("mtp_num_hidden_layers = 1" in lines)
    assert "ngram" not in lines
    assert "unknown" not in lines


JAMBA = SIZES | {
    "model_type": "jamba", "mamba_d_state": 8, "mamba_dt_rank": 4, "attn_layer_period": 2,
    "attn_layer_offset": 1,
}  # fmt: skip
SWITCH = {
    "model_type": "switch_transformers", "vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 40,
    "num_layers": 4, "num_decoder_layers": 4, "num_heads": 4, "num_experts": 4,
    "num_sparse_encoder_layers": 2, "num_sparse_decoder_layers": 2,
}  # fmt: skip
ZAMBA = {
    "model_type": "zamba2", "hidden_size": 64, "num_hidden_layers": 3, "vocab_size": 99,
    "num_attention_heads": 4, "mamba_d_state": 8, "n_mamba_heads": 4, "mamba_headdim": 32,
    "layers_block_type": ["mamba", "hybrid", "hybrid"],
}  # fmt: skip
GEMMA = SIZES | {
    "model_type": "gemma4_text", "global_head_dim": 32, "vocab_size_per_layer_input": 9,
    "hidden_size_per_layer_input": 4,
}  # fmt: skip
COHERE = SIZES | {"model_type": "cohere2_moe", "num_experts": 4, "num_experts_per_tok": 2}
AS_ITS_CLASS_READS = [
    COHERE | {"first_k_dense_replace": 1},
    COHERE | {"mlp_layer_types": ["dense", *["sparse"] * 3]},
    {key: size for key, size in GLM_FLASH.items() if key != "qk_rope_head_dim"},
    JAMBA | {"num_experts": 1, "num_experts_per_tok": 1},
    SWITCH | {"encoder_sparse_step": 1, "decoder_sparse_step": 1},
    ZAMBA | {"hybrid_layer_ids": [1]},
    ZAMBA | {"use_shared_attention_adapter": True, "attention_head_dim": 16},
    GEMMA | {"layer_types": ["full_attention", *["sliding_attention"] * 3]},
]


@pytest.mark.parametrize("keys", AS_ITS_CLASS_READS, ids=lambda keys: keys["model_type"])
def test_keys_that_a_class_reads_otherwise_than_their_names_say(tmp_path, keys):
    """Formulas were of other sizes; the class is the oracle, and the answer where none is exact."""
    assert lines_of(tmp_path, keys)[0] == of_class(keys)


NEXT = SIZES | {
    "model_type": "qwen3_next", "num_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
}  # fmt: skip
GRIFFIN = SIZES | {"model_type": "recurrent_gemma", "lru_width": 64, "attention_window_size": 8}
MODERN = PHI_3 | {"model_type": "modernbert-decoder", "local_attention": 8}
XGLM = {
    "model_type": "xglm", "vocab_size": 99, "d_model": 64, "ffn_dim": 24, "num_layers": 2,
    "attention_heads": 4, "attention_bias": True,
}  # fmt: skip


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        (NEXT | {"num_hidden_layers": 2}, ""),
        (GRIFFIN | {"num_hidden_layers": 2}, ""),
        (
            MODERN | {"global_attn_every_n_layers": 2},
            "num_key_value_heads = 2: not read by ModernBertDecoderForCausalLM",
        ),
        (XGLM, "attention_bias = true: not read by XGLMForCausalLM"),
    ],
)
def test_sizes_of_a_class_that_had_no_formula_or_were_refused(tmp_path, keys, line):
    """Layers before the first with attention, periods of full attention, keys of other classes."""
    assert lines_of(tmp_path, keys) == (of_class(keys), line)


def test_full_attention_of_modernbert_where_its_file_says(tmp_path):
    """The class reads the older name of its period too, and layer_types before it."""
    lines_of(tmp_path, MODERN | {"global_attn_every_n_layers": 2})
    assert mb.model(tmp_path).architecture.global_every == 2
    types = ["full_attention", "sliding_attention"] * 2
    assert "layer_types" not in lines_of(tmp_path, MODERN | {"layer_types": types})[1]
    types = ["full_attention"] * 4
    assert "measured without a formula" in lines_of(tmp_path, MODERN | {"layer_types": types})[1]


@pytest.mark.parametrize("model_type", ["cohere2", "mistral"])
def test_of_a_window_of_one_token_the_cache_of_a_class_keeps_all(tmp_path, model_type):
    """The formula kept one token; DynamicSlidingWindowLayer cuts [-sliding_window + 1:]."""
    keys = SIZES | {"model_type": model_type, "sliding_window": 1}
    _, lines = lines_of(tmp_path, keys)
    assert "sliding_window = 1: not supported (allowed: 2 or more); measured without" in lines


def of_class(keys: dict) -> int:
    """Return the parameters of the class, and those that it has as buffers."""
    config = transformers.CONFIG_MAPPING[keys["model_type"]](**keys)
    is_causal = type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    auto = transformers.AutoModelForCausalLM if is_causal else transformers.AutoModelForSeq2SeqLM
    with device("meta"):
        module = auto.from_config(config)
    buffers = [b for name, b in module.named_buffers() if name.endswith("correction_bias")]
    return sum(t.numel() for t in [*module.parameters(), *buffers])


@pytest.mark.parametrize(
    ("value", "position"), [(None, "none"), ("nope", "none"), ("rope", "rotary")]
)
def test_granite_has_rope_where_its_file_says_so(tmp_path, value, position):
    """RoPE was counted in all; parameters are the same, so only this sees it. The class knows."""
    keys = SIZES | {
        "model_type": "granitemoehybrid", "num_local_experts": 0, "mamba_n_heads": 8,
        "position_embedding_type": value, "layer_types": ["mamba", "attention"] * 2,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(keys))
    assert mb.model(tmp_path).architecture.position == position
    with device("meta"):
        config = transformers.GraniteMoeHybridConfig(**keys)
        of_class = transformers.GraniteMoeHybridForCausalLM(config)
    assert (of_class.model.rotary_emb is None) == (position == "none")


def test_the_window_of_phi_3_bounds_its_cache(tmp_path):
    """The class keeps one token less than the window before the next token comes."""
    n_tokens, window = 40, 9
    (tmp_path / "config.json").write_text(json.dumps(PHI_3 | {"sliding_window": window}))
    model = mb.model(tmp_path, implementation="modelbudget")
    with device("meta"):
        config = transformers.Phi3Config(**PHI_3, sliding_window=window)
        ids = torch.zeros(1, n_tokens, dtype=torch.long)
        layers = transformers.Phi3ForCausalLM(config)(ids).past_key_values.layers
    kept = [tuple(layer.keys.shape) for layer in layers]
    assert kept == [(1, 2, window - 1, 16)] * 4
    run = {"length": n_tokens, "dtype": "float32"}
    assert model.predict("cache_bytes", run).total == 4 * 2 * 2 * 16 * window * 4


def test_experts_of_longcat_that_compute_nothing(tmp_path):
    """The class has matrices for them, the published 560B have none: a line has the number."""
    longcat = {  # huggingface.co/meituan-longcat/LongCat-Flash-Chat
        "model_type": "longcat_flash", "architectures": ["LongcatFlashForCausalLM"],
        "num_layers": 28, "hidden_size": 6144, "expert_ffn_hidden_size": 2048,
        "ffn_hidden_size": 12288, "n_routed_experts": 512, "zero_expert_num": 256,
        "num_attention_heads": 64, "q_lora_rank": 1536, "kv_lora_rank": 512, "vocab_size": 131072,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "moe_topk": 12,
    }  # fmt: skip
    total, lines = lines_of(tmp_path, longcat)
    of_nothing = 28 * 256 * 2 * 6144 * 2048
    assert f"{of_nothing:,} parameters" in lines
    assert round((total - of_nothing) / 1e9, 1) == 560.7
