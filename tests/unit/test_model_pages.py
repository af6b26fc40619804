"""Files of model pages with keys that are not those of a class in transformers: their counts."""

import json

import pytest

from modelbudget.api.model import model

PRIVATE = {"auto_map": {"AutoModelForCausalLM": "modeling.Model"}, "torch_dtype": "bfloat16"}
PAGES = {
    # huggingface.co/internlm/internlm2-7b
    "internlm2": (7_737_708_544, {
        "architectures": ["InternLM2ForCausalLM"], "bias": False, "hidden_size": 4096,
        "intermediate_size": 14336, "num_key_value_heads": 8, "vocab_size": 92544,
        "rope_scaling": {"type": "dynamic", "factor": 2.0}, "attn_implementation": "eager",
    }),
    # Hu et al. 2024 (MiniCPM), table 2: 2,442,057,984 without the embedding
    "minicpm": (2_442_057_984 + 122753 * 2304, {
        "architectures": ["MiniCPMForCausalLM"], "hidden_size": 2304, "intermediate_size": 5760,
        "num_attention_heads": 36, "num_hidden_layers": 40, "num_key_value_heads": 36,
        "vocab_size": 122753, "scale_emb": 12, "dim_model_base": 256, "scale_depth": 1.4,
    }),
    # huggingface.co/THUDM/chatglm3-6b: 12,487,168,064 bytes, 64 of them frequencies of RoPE
    "chatglm": (6_243_584_000, {
        "architectures": ["ChatGLMModel"], "add_bias_linear": False, "add_qkv_bias": True,
        "ffn_hidden_size": 13696, "hidden_size": 4096, "kv_channels": 128, "num_layers": 28,
        "multi_query_attention": True, "multi_query_group_num": 2, "padded_vocab_size": 65024,
        "num_attention_heads": 32, "post_layer_norm": True, "rmsnorm": True, "seq_length": 8192,
        "bias_dropout_fusion": True, "tie_word_embeddings": False,
    }),
    # huggingface.co/baichuan-inc/Baichuan2-7B-Base: 15,011,946,496 bytes
    "baichuan": (7_505_973_248, {
        "architectures": ["BaichuanForCausalLM"], "hidden_size": 4096, "intermediate_size": 11008,
        "model_max_length": 4096, "num_hidden_layers": 32, "vocab_size": 125696,
    }),
    # huggingface.co/Qwen/Qwen-7B: 15,442,649,088 bytes
    "qwen": (7_721_324_544, {
        "architectures": ["QWenLMHeadModel"], "bf16": False, "intermediate_size": 22016,
        "kv_channels": 128, "no_bias": True, "seq_length": 8192, "use_dynamic_ntk": True,
        "use_flash_attn": "auto", "vocab_size": 151936, "rotary_pct": 1.0,
    }),
    # huggingface.co/stabilityai/stablelm-3b-4e1t: "2,795,443,200 parameters"
    "stablelm_epoch": (2_795_443_200, {
        "architectures": ["StableLMEpochForCausalLM"], "hidden_size": 2560, "num_heads": 32,
        "num_attention_heads": 32, "rope_pct": 0.25, "rotary_scaling_factor": 1.0, "norm_eps": 1e-5,
    }),
    # huggingface.co/microsoft/Phi-3-small-8k-instruct
    "phi3small": (7_392_272_384, {
        "architectures": ["Phi3SmallForCausalLM"], "blocksparse_block_size": 64,
        "ff_intermediate_size": 14336, "hidden_act": "gegelu", "gegelu_limit": 20.0,
        "attention_bias": True, "mup_use_scaling": True, "rope_embedding_base": 1000000,
    }),
    # huggingface.co/xverse/XVERSE-13B: as many as LlamaForCausalLM of these sizes
    "xverse": (13_715_031_040, {
        "architectures": ["XverseForCausalLM"], "hidden_size": 5120, "intermediate_size": 13824,
        "num_attention_heads": 40, "num_hidden_layers": 40, "vocab_size": 100278,
        "max_tokenizer_truncation": 6144, "tie_word_embeddings": False,
    }),
    # huggingface.co/internlm/internlm3-8b-instruct: AutoModelForCausalLM of its config has as many
    "internlm3": (8_804_241_408, {
        "architectures": ["InternLM3ForCausalLM"], "bias": False, "qkv_bias": False,
        "head_dim": 128, "hidden_size": 4096, "intermediate_size": 10240, "num_hidden_layers": 48,
        "num_key_value_heads": 2, "vocab_size": 128512,
        "rope_scaling": {"factor": 6.0, "rope_type": "dynamic"},
    }),
    # huggingface.co/microsoft/Phi-3-vision-128k-instruct: its language model is Phi-3-mini
    "phi3_v": (3_821_079_552, {
        "architectures": ["Phi3VForCausalLM"], "embd_layer": {"embedding_cls": "image"},
        "hidden_size": 3072, "intermediate_size": 8192, "num_key_value_heads": 32,
        "img_processor": {"name": "clip_vision_model", "image_dim_out": 1024},
        "rope_scaling": {"type": "su", "long_factor": [1.0], "short_factor": [1.0]},
        "original_max_position_embeddings": 4096, "sliding_window": 131072, "vocab_size": 32064,
    }),
    # the first file of huggingface.co/01-ai/Yi-6B: as many as LlamaForCausalLM of these sizes
    "Yi": (6_061_035_520, {
        "architectures": ["YiForCausalLM"], "hidden_size": 4096, "intermediate_size": 11008,
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 4,
        "vocab_size": 64000, "rope_theta": 5000000.0, "use_cache": True,
    }),
    # huggingface.co/mosaicml/mpt-7b, whose class has another name in transformers
    "mpt": (6_649_286_656, {
        "architectures": ["MPTForCausalLM"], "d_model": 4096, "n_heads": 32, "n_layers": 32,
        "attn_config": {"alibi": True, "attn_impl": "torch", "clip_qkv": None, "prefix_lm": False},
        "init_config": {"name": "kaiming_normal_"}, "tokenizer_name": "EleutherAI/gpt-neox-20b",
        "vocab_size": 50432, "no_bias": True,
    }),
    # huggingface.co/tiiuae/falcon-7b, its first file
    "RefinedWebModel": (6_921_720_704, {
        "architectures": ["RWForCausalLM"], "alibi": False, "bias": False, "hidden_size": 4544,
        "multi_query": True, "n_head": 71, "n_layer": 32, "parallel_attn": True,
        "apply_residual_connection_post_layernorm": False, "vocab_size": 65024,
    }),
    # huggingface.co/LGAI-EXAONE/EXAONE-3.5-7.8B-Instruct
    "exaone": (7_818_448_896, {
        "architectures": ["ExaoneForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
        "head_dim": 128, "num_key_value_heads": 8, "num_layers": 32, "vocab_size": 102400,
    }),
    # huggingface.co/MiniMaxAI/MiniMax-M2: 228.7B; 62 × 256 of them a bias that is a buffer
    "minimax_m2": (228_689_748_992 + 62 * 256, {
        "architectures": ["MiniMaxM2ForCausalLM"], "attn_type_list": [1] * 62, "rotary_dim": 64,
        "mlp_intermediate_size": 8192, "num_mtp_modules": 3, "use_routing_bias": True,
        "shared_intermediate_size": 0, "qk_norm_type": "per_layer",
    }),
    # huggingface.co/moonshotai/Kimi-Linear-48B-A3B-Base
    "kimi_linear": (49_122_681_728, {
        "architectures": ["KimiLinearForCausalLM"], "first_k_dense_replace": 1, "head_dim": 72,
        "linear_attn_config": {
            "full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "head_dim": 128, "num_heads": 32,
            "kda_layers": [i for i in range(1, 27) if i % 4], "short_conv_kernel_size": 4,
        },
        "mla_use_nope": True, "model_max_length": 1048576, "moe_renormalize": True,
        "num_experts": 256, "num_experts_per_token": 8, "num_shared_experts": 1,
        "q_lora_rank": None, "use_grouped_topk": True, "num_expert_group": 1,
    }),
    # huggingface.co/MiniMaxAI/MiniMax-Text-01-hf
    "minimax": (456_089_655_296, {
        "architectures": ["MiniMaxForCausalLM"], "block_size": 256, "head_dim": 128,
        "full_attn_alpha_factor": 3.5565588200778455, "full_attn_beta_factor": 1.0,
        "hidden_size": 6144, "intermediate_size": 9216, "num_hidden_layers": 80,
        "layer_types": [*["linear_attention"] * 7, "full_attention"] * 10,
        "num_attention_heads": 64, "num_local_experts": 32, "vocab_size": 200064,
    }),
    # huggingface.co/ibm-granite/granite-4.0-h-tiny: 6.94B
    "granitemoehybrid": (6_939_037_248, {
        "architectures": ["GraniteMoeHybridForCausalLM"], "hidden_size": 1536, "vocab_size": 100352,
        "intermediate_size": 512, "shared_intermediate_size": 1024, "num_hidden_layers": 40,
        "layer_types": [*["mamba"] * 5, *(["attention"] + ["mamba"] * 9) * 3, "attention",
                        *["mamba"] * 4],
        "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_heads": 48, "num_attention_heads": 12,
        "num_experts_per_tok": 6, "num_key_value_heads": 4, "num_local_experts": 64,
        "logits_to_keep": None, "position_embedding_type": "nope", "tie_word_embeddings": True,
    }),
    # huggingface.co/ibm-granite/granite-4.0-h-micro: without experts
    "granite-4.0-h-micro": (3_191_396_096, {
        "model_type": "granitemoehybrid", "architectures": ["GraniteMoeHybridForCausalLM"],
        "hidden_size": 2048, "vocab_size": 100352, "intermediate_size": 8192,
        "shared_intermediate_size": 8192, "num_hidden_layers": 40, "num_local_experts": 0,
        "layer_types": [*["mamba"] * 5, *(["attention"] + ["mamba"] * 9) * 3, "attention",
                        *["mamba"] * 4],
        "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_heads": 64, "num_attention_heads": 32,
        "num_experts_per_tok": 0, "num_key_value_heads": 8, "tie_word_embeddings": True,
    }),
    # huggingface.co/tencent/Hunyuan-A13B-Instruct: an entry for each of 32 layers
    "Hunyuan-A13B": (80_393_183_232, {
        "model_type": "hunyuan_v1_moe", "architectures": ["HunYuanMoEV1ForCausalLM"],
        "attention_head_dim": 128, "dense_list": [4096, 0], "hidden_size": 4096,
        "intermediate_size": 3072, "moe_intermediate_size": [3072] * 32, "moe_topk": [8] * 32,
        "num_experts": 64, "num_key_value_heads": 8, "num_shared_expert": [1] * 32,
        "tie_word_embeddings": True, "use_mla": False, "v_head_dim": None, "vocab_size": 128167,
    }),
    # huggingface.co/NX-AI/xLSTM-7b
    "xlstm": (6_865_424_896, {
        "architectures": ["xLSTMForCausalLM"], "embedding_dim": 4096, "head_dim": 512,
        "num_blocks": 32, "add_post_norm": False, "qk_dim_factor": 0.5, "gate_soft_cap": 15.0,
    }),
    # huggingface.co/microsoft/bitnet-b1.58-2B-4T-bf16
    "bitnet": (2_412_820_480, {
        "architectures": ["BitNetForCausalLM"], "tie_word_embeddings": True,
        "quantization_config": {"quant_method": "bitnet", "linear_class": "autobitlinear"},
    }),
}  # fmt: skip


@pytest.mark.parametrize("page", PAGES)
def test_published_counts(tmp_path, page):
    """By model_type, or by name for a second page of one."""
    expected, config = PAGES[page]
    (tmp_path / "config.json").write_text(json.dumps(PRIVATE | {"model_type": page} | config))
    found = model(str(tmp_path))
    assert found.predict("parameters").total == expected
    assert not any("cap" in note.text or "dropout" in note.text for note in found.base.notes)


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        (
            {"d_model": 768, "n_layer": 24, "ssm_cfg": {}, "pad_vocab_size_multiple": 8},
            "mamba-130m",
        ),
        (
            {"d_intermediate": 0, "attn_layer_idx": [], "attn_cfg": {}, "tie_embeddings": True,
             "ssm_cfg": {"layer": "Mamba2"}, "pad_vocab_size_multiple": 16},
            "mamba-2-2.7b",
        ),
    ],
)  # fmt: skip
def test_files_of_mamba_ssm_have_no_model_type(tmp_path, keys, name):
    """huggingface.co/state-spaces/mamba-130m and mamba2-2.7b."""
    whole = {"vocab_size": 50277, "rms_norm": True, "residual_in_fp32": True}
    (tmp_path / "config.json").write_text(json.dumps(whole | {"fused_add_norm": True} | keys))
    of_file, of_catalogue = model(str(tmp_path)), model(name)
    for quantity in ("parameters", "cache_bytes"):
        assert of_file.predict(quantity).total == of_catalogue.predict(quantity).total


def test_the_larger_baichuan_has_alibi(tmp_path):
    sizes = {"hidden_size": 5120, "num_attention_heads": 40, "num_hidden_layers": 40}
    config = {"model_type": "baichuan", "intermediate_size": 13696, "model_max_length": 4096}
    (tmp_path / "config.json").write_text(json.dumps(PRIVATE | config | sizes))
    found = model(str(tmp_path))
    # huggingface.co/baichuan-inc/Baichuan2-13B-Base: 27,793,336,320 bytes
    assert found.predict("parameters").total == 13_896_668_160
    assert found.architecture.position == "alibi"
