"""config.json files of model pages whose keys are spelled otherwise than in transformers."""

import json

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
    counted, lines = lines_of(tmp_path, UMT5)
    n_of_head = UMT5["vocab_size"] * UMT5["d_model"]
    assert counted == 390_323_712
    assert f"ties the head nevertheless; with its own it has {n_of_head:,} more" in lines
    assert not lines_of(tmp_path, UMT5 | {"tie_word_embeddings": True})[1]
