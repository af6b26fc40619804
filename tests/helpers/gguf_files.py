"""GGUF files of a small llama, written by llama.cpp's package."""

from functools import cache

import gguf
import numpy as np

KEYS_OF_FILE = {
    "hidden_size": 64, "num_hidden_layers": 3, "intermediate_size": 96, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 300, "tie_word_embeddings": False,
}  # fmt: skip


@cache
def shapes_of_file(tied: bool) -> dict:
    shapes = {
        "token_embd.weight": (300, 64),
        "output_norm.weight": (64,),
        "rope_freqs.weight": (8,),
    }
    for i in range(3):
        shapes |= {
            f"blk.{i}.attn_norm.weight": (64,), f"blk.{i}.ffn_norm.weight": (64,),
            f"blk.{i}.attn_q.weight": (64, 64), f"blk.{i}.attn_k.weight": (32, 64),
            f"blk.{i}.attn_v.weight": (32, 64), f"blk.{i}.attn_output.weight": (64, 64),
            f"blk.{i}.ffn_gate.weight": (96, 64), f"blk.{i}.ffn_up.weight": (96, 64),
            f"blk.{i}.ffn_down.weight": (64, 96),
        }  # fmt: skip
    return shapes | ({} if tied else {"output.weight": (300, 64)})


def written(path, keys: dict, types: dict[str, str], changed: dict[str, tuple] | None = None):
    """Write a file of a llama of small sizes with the package; `changed`: shapes of tensors."""
    shapes = shapes_of_file(keys["tie_word_embeddings"]) | (changed or {})
    return written_as("llama", path, keys, shapes, types)


def written_as(architecture: str, path, keys: dict, shapes: dict, types: dict[str, str]):
    """Write tensors of zeros with the metadata that llama.cpp's converter writes of a config."""
    has_latents = "kv_lora_rank" in keys and not any("attn_kv_b" in name for name in shapes)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("Small Llama")
    writer.add_embedding_length(keys["hidden_size"])
    n_further = keys.get("num_nextn_predict_layers", 0)
    writer.add_block_count(keys["num_hidden_layers"] + n_further)
    if n_further:
        writer.add_nextn_predict_layers(n_further)
    writer.add_feed_forward_length(keys["intermediate_size"])
    writer.add_head_count(keys["num_attention_heads"])
    if "num_key_value_heads" in keys:
        n_kv_head = 1 if has_latents else keys["num_key_value_heads"]
        writer.add_head_count_kv(n_kv_head)
    if "head_dim" in keys:
        writer.add_key_length(keys["head_dim"])
    if n_expert := keys.get("num_local_experts") or keys.get("num_experts"):
        writer.add_expert_count(n_expert)
        writer.add_expert_used_count(keys["num_experts_per_tok"])
    if "moe_intermediate_size" in keys:
        writer.add_expert_feed_forward_length(keys["moe_intermediate_size"])
    if "linear_num_key_heads" in keys:  # conversion/qwen.py
        writer.add_ssm_conv_kernel(keys.get("linear_conv_kernel_dim", 4))
        writer.add_ssm_state_size(keys["linear_key_head_dim"])
        writer.add_ssm_group_count(keys["linear_num_key_heads"])
        writer.add_ssm_time_step_rank(keys["linear_num_value_heads"])
        inner = keys["linear_value_head_dim"] * keys["linear_num_value_heads"]
        writer.add_ssm_inner_size(inner)
        writer.add_full_attention_interval(4)
    if "shared_expert_intermediate_size" in keys:
        writer.add_expert_shared_feed_forward_length(keys["shared_expert_intermediate_size"])
    if "n_shared_experts" in keys:
        writer.add_expert_count(keys["n_routed_experts"])
        writer.add_expert_shared_count(keys["n_shared_experts"])
        writer.add_expert_used_count(keys["num_experts_per_tok"])
        writer.add_leading_dense_block_count(keys["first_k_dense_replace"])
    if "kv_lora_rank" in keys:
        if keys["q_lora_rank"] is not None:
            writer.add_q_lora_rank(keys["q_lora_rank"])
        writer.add_kv_lora_rank(keys["kv_lora_rank"])
        writer.add_rope_dimension_count(keys["qk_rope_head_dim"])
    if has_latents:  # conversion/deepseek.py: one head that reads the latent
        writer.add_key_length(keys["kv_lora_rank"] + keys["qk_rope_head_dim"])
        writer.add_value_length(keys["kv_lora_rank"])
        writer.add_key_length_mla(keys["qk_nope_head_dim"] + keys["qk_rope_head_dim"])
        writer.add_value_length_mla(keys["v_head_dim"])
    elif "kv_lora_rank" in keys:  # convert_hf_to_gguf.py before pull request 12801
        writer.add_key_length(keys["qk_nope_head_dim"] + keys["qk_rope_head_dim"])
        writer.add_value_length(keys["v_head_dim"])
    writer.add_context_length(512)
    writer.add_token_list([f"token {i}" for i in range(6000)])
    for name, shape in shapes.items():
        if shape is None:
            continue
        of = gguf.GGMLQuantizationType[types.get(name, "F32")]
        numbers, n = gguf.GGML_QUANT_SIZES[of]
        if of == gguf.GGMLQuantizationType.F32:
            writer.add_tensor(name, np.zeros(shape, np.float32))
        else:
            rows = np.zeros((*shape[:-1], shape[-1] // numbers * n), np.uint8)
            writer.add_tensor(name, rows, raw_dtype=of)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
