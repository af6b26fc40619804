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
