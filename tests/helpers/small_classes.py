"""Small configs of `transformers` classes."""

COMMON = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0,
}  # fmt: skip
SMALL = {
    "GPT2LMHeadModel": {"vocab_size": 61, "n_embd": 32, "n_layer": 2, "n_head": 4},
    "LlamaForCausalLM": COMMON,
    "MistralForCausalLM": COMMON | {"sliding_window": None},
    "Qwen2ForCausalLM": COMMON,
    "Qwen3ForCausalLM": COMMON | {"head_dim": 8},
    "Olmo2ForCausalLM": COMMON,
    "Phi3ForCausalLM": COMMON,
    "MixtralForCausalLM": COMMON | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "GemmaForCausalLM": COMMON | {"head_dim": 8},
    "Gemma2ForCausalLM": COMMON | {"head_dim": 8, "sliding_window": 100},
}
"""Classes whose settings are in configs/implementations/transformers.yaml."""

OTHERS = {
    "GraniteForCausalLM": COMMON,
    "Qwen2MoeForCausalLM": COMMON | {
        "moe_intermediate_size": 16, "shared_expert_intermediate_size": 24, "num_experts": 4,
        "num_experts_per_tok": 2,
    },
    "CohereForCausalLM": COMMON,
    "GPTNeoXForCausalLM": COMMON,
    "StableLmForCausalLM": COMMON,
    "FalconForCausalLM": {
        "vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    },
    "Gemma3ForCausalLM": COMMON | {"head_dim": 8, "sliding_window": 6},
    "DeepseekV2ForCausalLM": COMMON | {
        "num_key_value_heads": 4, "kv_lora_rank": 8, "q_lora_rank": None, "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4, "v_head_dim": 8, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "n_shared_experts": 1, "moe_intermediate_size": 16, "first_k_dense_replace": 1,
        "n_group": 1, "topk_group": 1, "topk_method": "greedy",
    },
    "MambaForCausalLM": {"vocab_size": 61, "hidden_size": 16, "num_hidden_layers": 2},
    "T5ForConditionalGeneration": {
        "vocab_size": 61, "d_model": 32, "d_kv": 8, "d_ff": 40, "num_layers": 2, "num_heads": 4,
        "decoder_start_token_id": 0,
    },
    "BertForMaskedLM": {
        "vocab_size": 61, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2,
        "num_attention_heads": 4,
    },
}  # fmt: skip
"""Classes without a formula for their memory."""
