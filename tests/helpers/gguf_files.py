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
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("Small Llama")
    writer.add_embedding_length(keys["hidden_size"])
    writer.add_block_count(keys["num_hidden_layers"])
    writer.add_feed_forward_length(keys["intermediate_size"])
    writer.add_head_count(keys["num_attention_heads"])
    if "num_key_value_heads" in keys:
        writer.add_head_count_kv(keys["num_key_value_heads"])
    if "head_dim" in keys:
        writer.add_key_length(keys["head_dim"])
    if n_expert := keys.get("num_local_experts") or keys.get("num_experts"):
        writer.add_expert_count(n_expert)
        writer.add_expert_used_count(keys["num_experts_per_tok"])
    if "moe_intermediate_size" in keys:
        writer.add_expert_feed_forward_length(keys["moe_intermediate_size"])
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
