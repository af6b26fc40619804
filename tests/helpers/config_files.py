"""Contents of small config.json files."""

LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 100,
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "torch_dtype": "bfloat16", "rms_norm_eps": 1e-5, "rope_scaling": None, "bos_token_id": 1,
}  # fmt: skip


XLNET = {
    "model_type": "xlnet", "architectures": ["XLNetLMHeadModel"], "vocab_size": 100, "d_model": 32,
    "n_layer": 2, "n_head": 4, "d_inner": 48,
}  # fmt: skip
