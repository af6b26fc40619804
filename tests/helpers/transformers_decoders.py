"""Configurations of transformers' decoder classes for our architectures."""

from itertools import cycle, islice

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
    "v_head_dim": "d_value",
}  # fmt: skip
ROUTED = {
    "n_routed_experts": "n_expert", "moe_intermediate_size": "d_expert",
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
    **dict.fromkeys(
        ["GptOss", "MiniMax", "MiniMaxM2"],
        COMMON | EXPERTS | HEAD
        | {"num_local_experts": "n_expert", "intermediate_size": "d_expert"},
    ),
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
    "DeepseekV2": COMMON | EXPERTS | ROUTED | LATENT,
    "DeepseekV3": COMMON | EXPERTS | ROUTED | LATENT,
    "Glm4Moe": COMMON | EXPERTS | ROUTED | HEAD | {"attention_bias": "query_bias"},
    "Dots1": COMMON | EXPERTS | ROUTED,
    "Ernie4_5_Moe": COMMON
    | {
        "moe_num_experts": "n_expert", "moe_k": "n_expert_per_token",
        "moe_intermediate_size": "d_expert", "moe_layer_start_index": "n_dense_layer",
    },
    "GraniteMoeHybrid": COMMON | EXPERTS
    | {
        "num_local_experts": "n_expert", "intermediate_size": "d_expert",
        "mamba_n_heads": "n_mamba_head", "mamba_d_head": "d_mamba_head",
        "mamba_n_groups": "n_mamba_group", "mamba_d_state": "d_mamba_state",
        "mamba_d_conv": "d_mamba_convolution",
    },
    "HunYuanMoEV1": COMMON | HEAD
    | {
        "num_experts": "n_expert", "moe_topk": "n_expert_per_token",
        "intermediate_size": "d_expert",
    },
    "KimiLinear": COMMON | EXPERTS
    | {
        "kv_lora_rank": "kv_lora_rank", "qk_nope_head_dim": "d_nope", "qk_rope_head_dim": "d_rope",
        "v_head_dim": "d_value", "linear_num_heads": "n_linear_head",
        "linear_head_dim": "d_linear_key", "linear_conv_kernel_dim": "d_linear_convolution",
        "num_local_experts": "n_expert", "moe_intermediate_size": "d_expert",
    },
    "Lfm2": COMMON | {"conv_L_cache": "d_short_convolution"},
    "Lfm2Moe": COMMON | EXPERTS
    | {
        "conv_L_cache": "d_short_convolution", "num_experts": "n_expert",
        "moe_intermediate_size": "d_expert", "num_dense_layers": "n_dense_layer",
    },
    "Llama4": COMMON | EXPERTS | HEAD
    | {
        "num_local_experts": "n_expert", "intermediate_size": "d_expert",
        "intermediate_size_mlp": "d_ff", "attention_chunk_size": "window",
    },
    "Ministral": COMMON | HEAD | {"sliding_window": "window"},
    "SeedOss": COMMON | HEAD | {"attention_bias": "query_bias"},
    **dict.fromkeys(
        ["Llama", "Mistral", "Gemma", "Gemma2", "Gemma3", "Qwen3", "Cohere", "Ernie4_5"],
        COMMON | HEAD,
    ),
    **dict.fromkeys(
        [
            "Apertus", "GPTNeoX", "Granite", "Olmo", "Olmo2", "Olmo3", "Phi", "Phi3", "Qwen2",
            "SmolLM3", "StableLm",
        ],
        COMMON,
    ),
}  # fmt: skip
# The classes' words for a layer's mixer.
WORDS = {
    "attention": "full_attention", "sliding_attention": "sliding_attention",
    "nope_attention": "full_attention",
    "mla": "full_attention", "short_convolution": "conv",
    **dict.fromkeys(["mamba2", "kimi_delta", "lightning_attention"], "linear_attention"),
}  # fmt: skip


def layer_types(a) -> list[str]:
    """Each layer's word, from the pattern that the layers repeat."""
    return [WORDS[word] for word in islice(cycle(a.mixers.split()), a.n_layer)]


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
        case "Glm4Moe":
            keys |= {"use_qk_norm": a.qk_norm == "shared"}
        case "Dots1":
            keys |= {"n_shared_experts": a.d_shared // a.d_expert}
        case "Ernie4_5_Moe":
            keys |= {"moe_num_shared_experts": a.d_shared // a.d_expert}
        case "GraniteMoeHybrid":
            keys |= {"layer_types": layer_types(a)}
            keys |= {"shared_intermediate_size": a.d_shared if a.n_expert else a.d_ff}
            keys |= {"mamba_expand": a.n_mamba_head * a.d_mamba_head // a.d_model}
        case "KimiLinear":
            kinds = ["dense"] * a.n_dense_layer + ["sparse"] * (a.n_layer - a.n_dense_layer)
            keys |= {"layer_types": layer_types(a), "mlp_layer_types": kinds}
            keys |= {"n_shared_experts": a.d_shared // a.d_expert}
        case "Lfm2":
            keys |= {"layer_types": layer_types(a), "block_auto_adjust_ff_dim": False}
        case "Llama4":
            kinds = list(islice(cycle(a.mlps.split()), a.n_layer))
            keys |= {"moe_layers": [i for i, word in enumerate(kinds) if word == "moe"]}
        case "Lfm2Moe" | "MiniMax" | "Ministral":
            keys |= {"layer_types": layer_types(a)}
        case "Gemma2" | "Gemma3":
            keys |= {"layer_types": ["full_attention"] * a.n_layer}
        case "SmolLM3":
            words = islice(cycle(a.mixers.split()), a.n_layer)
            keys |= {"no_rope_layers": [int(word != "nope_attention") for word in words]}
            keys |= {"layer_types": layer_types(a)}
        case "Phi" | "Phi3" | "OpenAIGPT":
            keys |= {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
    name = f"{kind}TextConfig" if kind in ("Gemma3", "Llama4") else f"{kind}Config"
    return getattr(transformers, name)(**keys)
