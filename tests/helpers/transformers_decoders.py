"""Configurations of transformers' decoder classes for our architectures."""

import transformers

COMMON = {
    "vocab_size": "n_vocab", "hidden_size": "d_model", "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head", "num_key_value_heads": "n_kv_head",
    "intermediate_size": "d_ff", "tie_word_embeddings": "tied", "max_position_embeddings": "n_ctx",
}  # fmt: skip
GPT = {
    "vocab_size": "n_vocab", "n_embd": "d_model", "n_layer": "n_layer", "n_head": "n_head",
    "n_positions": "n_ctx", "tie_word_embeddings": "tied",
}  # fmt: skip
EXPERTS = {"num_experts_per_tok": "n_expert_per_token"}
LATENT = {
    "kv_lora_rank": "kv_lora_rank", "qk_nope_head_dim": "d_nope", "qk_rope_head_dim": "d_rope",
    "v_head_dim": "d_value", "n_routed_experts": "n_expert", "moe_intermediate_size": "d_expert",
    "first_k_dense_replace": "n_dense_layer",
}  # fmt: skip
HEAD = {"head_dim": "d_head"}
KEYS = {
    "OpenAIGPT": GPT,
    "GPT2": GPT,
    "GPTJ": GPT | {"rotary_dim": "d_rotary"},
    "CTRL": GPT | {"dff": "d_ff"},
    "Bloom": GPT | {"hidden_size": "d_model"},
    "OPT": COMMON | {"ffn_dim": "d_ff"},
    "Falcon": COMMON | {"num_kv_heads": "n_kv_head", "ffn_hidden_size": "d_ff"},
    "Mpt": {
        "vocab_size": "n_vocab", "d_model": "d_model", "n_layers": "n_layer", "n_heads": "n_head",
        "max_seq_len": "n_ctx",
    },
    "GPTNeo": COMMON | {"num_layers": "n_layer", "num_heads": "n_head"},
    "Mixtral": COMMON | EXPERTS | HEAD | {"num_local_experts": "n_expert"},
    "GptOss": COMMON | EXPERTS | HEAD
    | {"num_local_experts": "n_expert", "intermediate_size": "d_expert"},
    "Qwen3Moe": COMMON | EXPERTS | HEAD
    | {"num_experts": "n_expert", "moe_intermediate_size": "d_expert"},
    "Qwen3Next": COMMON | EXPERTS | HEAD
    | {
        "num_experts": "n_expert", "moe_intermediate_size": "d_expert",
        "shared_expert_intermediate_size": "d_shared", "linear_num_key_heads": "n_linear_key_head",
        "linear_num_value_heads": "n_linear_head", "linear_key_head_dim": "d_linear_key",
        "linear_value_head_dim": "d_linear_value",
        "linear_conv_kernel_dim": "d_linear_convolution",
    },
    "Olmoe": COMMON | EXPERTS | {"num_experts": "n_expert", "intermediate_size": "d_expert"},
    "DeepseekV2": COMMON | EXPERTS | LATENT,
    "DeepseekV3": COMMON | EXPERTS | LATENT,
    "Glm4Moe": COMMON | EXPERTS | HEAD
    | {
        "n_routed_experts": "n_expert", "moe_intermediate_size": "d_expert",
        "first_k_dense_replace": "n_dense_layer", "attention_bias": "query_bias",
    },
    **dict.fromkeys(
        ["Llama", "Mistral", "Gemma", "Gemma2", "Gemma3", "Qwen3", "Cohere"], COMMON | HEAD
    ),
    **dict.fromkeys(
        [
            "GPTNeoX", "Granite", "Olmo", "Olmo2", "Olmo3", "Phi", "Phi3", "Qwen2", "SmolLM3",
            "StableLm",
        ],
        COMMON,
    ),
}  # fmt: skip


def config(kind: str, a):
    """The class's configuration of architecture `a`."""
    keys = {key: getattr(a, name) for key, name in KEYS[kind].items()}
    if "vocab_size" in keys:
        keys["vocab_size"] = -(-a.n_vocab // a.vocab_multiple) * a.vocab_multiple
    match kind:
        case "OPT":
            keys |= {"word_embed_proj_dim": a.d_emb or a.d_model}
            keys |= {"do_layer_norm_before": a.norm_placement == "pre"}
        case "GPTNeo":
            names = {"attention": "global", "sliding_attention": "local"}
            kinds = [names[word] for word in a.mixers.split()]
            keys |= {"attention_types": [[kinds, a.n_layer // len(kinds)]]}
            keys |= {"window_size": a.window}
        case "Mistral":
            keys |= {"sliding_window": a.window or None}
        case "Qwen2" if a.window:
            keys |= {"use_sliding_window": True, "sliding_window": a.window}
            keys |= {"max_window_layers": a.mixers.split().index("sliding_attention")}
        case "Falcon":
            keys |= {"new_decoder_architecture": not a.shared_norm}
        case "StableLm":
            keys |= {"use_qkv_bias": a.query_bias, "use_parallel_residual": a.parallel}
            keys |= {"qk_layernorm": a.qk_norm == "separate"}
        case "DeepseekV2" | "DeepseekV3":
            keys |= {"q_lora_rank": a.q_lora_rank or None, "pad_token_id": None}
            keys |= {"n_shared_experts": a.d_shared // max(1, a.d_expert)}
        case "Gemma2" | "Gemma3":
            keys |= {"layer_types": ["full_attention"] * a.n_layer}
        case "Phi" | "Phi3" | "OpenAIGPT":
            keys |= {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
    name = "Gemma3TextConfig" if kind == "Gemma3" else f"{kind}Config"
    return getattr(transformers, name)(**keys)
