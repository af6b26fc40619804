"""`explain`: numbers that others printed, in lines as their tools print them.

Each log was written here, with the numbers and in the form of the public source that its name has.
"""

import io
import json
import os
import pickle
import random
import sys
import threading
from contextlib import suppress

import pytest
import torch
from helpers.explained_share import explained_share
from helpers.gguf_files import KEYS_OF_FILE, written

from modelbudget.api.command.app import main
from modelbudget.api.explain import explain
from modelbudget.api.explained import named_model
from modelbudget.common import files
from modelbudget.common.errors import InputError
from modelbudget.files.log_lines import read_log

ENGINE = ("INFO core.py Initializing a V1 LLM engine (v0.8) with config: model='{}', "
          "dtype=torch.bfloat16, max_seq_len={}, tensor_parallel_size={}\n")  # fmt: skip
PEFT = "trainable params: {} || all params: {} || trainable%: {}\n"
LLAMA = ("print_info: n_layer          = {}\nprint_info: n_embd_k_gqa     = {}\n"
         "print_info: n_embd_v_gqa     = {}\nllama_context: n_ctx         = {}\n")  # fmt: skip


def loaded(architecture: str, printed: dict, types: dict[str, int], last: str = "", **sizes) -> str:
    """Lines of a log of llama.cpp: metadata by its keys, types of tensors, what it then prints."""
    lines = [f"general.architecture str = {architecture}"]
    lines += [
        f"{architecture}.{key.replace('__', '.')} u32 = {value}" for key, value in sizes.items()
    ]
    loader = "llama_model_loader: -"
    lines = [f"{loader} kv {i:3}: {line}" for i, line in enumerate(lines)]
    lines += [f"{loader} type {name:>4}: {n} tensors" for name, n in types.items()]
    lines += [f"print_info: {name} = {value}" for name, value in printed.items()]
    return "\n".join([*lines, last, ""])


QWEN_3_MOE = {
    "block_count": 48, "context_length": 40960, "embedding_length": 2048,
    "feed_forward_length": 6144, "attention__head_count": 32, "attention__head_count_kv": 4,
    "expert_used_count": 8, "attention__key_length": 128, "expert_count": 128,
    "expert_feed_forward_length": 768,
}  # fmt: skip
QWEN_3_MOE_PRINTED = {
    "file type": "Q4_K - Medium", "file size": "17.28 GiB (4.86 BPW)", "n_vocab": 151936,
    "model params": "30.53 B",
}  # fmt: skip
EXPERTS_ON_HOST = """load_tensors: offloading 48 repeating layers to GPU
load_tensors: offloading output layer to GPU
load_tensors:   CPU_Mapped model buffer size = 17447.91 MiB
load_tensors:        CUDA0 model buffer size =   135.76 MiB
load_tensors:        CUDA1 model buffer size =   648.66 MiB
"""
"""ik_llama.cpp issue 514, which kept `exps` on the host by -ot."""

LOGS = {
    "ggml-org/ci, Pythia 2.8B in Q4_1, from the log alone": (
        loaded(
            "gptneox",
            {"file type": "Q4_1", "file size": "1.64 GiB (5.08 BPW)", "n_layer": 32,
             "n_embd_k_gqa": 2560, "n_embd_v_gqa": 2560, "model params": "2.78 B",
             "n_vocab": 50304},
            {"f32": 258, "q4_1": 129, "q6_K": 1},
            "load_tensors: offloading 32 repeating layers to GPU\n"
            "load_tensors: offloading output layer to GPU\n"
            "load_tensors:        CUDA0 model buffer size =  1604.83 MiB\n"
            "load_tensors:   CPU_Mapped model buffer size =    76.76 MiB\n"
            "llama_context: n_seq_max     = 1\nllama_context: n_ctx         = 2048\n"
            "llama_context: n_ubatch      = 512\nllama_context: flash_attn    = 0\n"
            "llama_context:  CUDA_Host  output buffer size =     0.19 MiB\n"
            "init:      CUDA0 KV buffer size =   640.00 MiB\n"
            "llama_context_kv_self: KV self size  =  640.00 MiB, "
            "K (f16):  320.00 MiB, V (f16):  320.00 MiB\n"
            "reserve:      CUDA0 compute buffer size =   162.00 MiB\n"
            "reserve:  CUDA_Host compute buffer size =     9.01 MiB\n",
            context_length=2048, embedding_length=2560, block_count=32, feed_forward_length=10240,
            rope__dimension_count=20, attention__head_count=32,
        ),
        None, {},
        "tensors in F32: exact; tensors in Q4_1: exact; tensors in Q6_K: exact; "
        "tensors of the file: exact; parameters: exact; CUDA0 model buffer size: exact; "
        "CPU_Mapped model buffer size: exact; CUDA_Host output buffer size: exact; "
        "cache, 2,048 cells, 32 layers: exact; CUDA0 compute buffer size: bounded; "
        "CUDA_Host compute buffer size: read",
    ),
    **{
        f"Qwen 3 30B-A3B, {what}": (
            loaded("qwen3moe", QWEN_3_MOE_PRINTED, types, last, **QWEN_3_MOE),
            None, settings, f"tensors in F32: exact; {verdicts}",
        )
        for what, types, last, settings, verdicts in (
            ("experts on the host", {"f32": 241, "q4_K": 289, "q6_K": 49}, EXPERTS_ON_HOST,
             {"host_tensors": "exps"},
             "tensors in Q4_K: exact; tensors in Q6_K: exact; tensors of the file: exact; "
             "parameters: exact; CPU_Mapped model buffer size: bounded; "
             "model buffers of 2 devices: exact"),
            ("by another recipe", {"f32": 241, "q4_K": 288, "q5_K": 1, "q6_K": 49}, "", {},
             "tensors in Q4_K: unexplained; tensors in Q5_K: unexplained; tensors in Q6_K: exact; "
             "tensors of the file: bounded; parameters: exact"),
        )
    },
    "DeepSeek R1 Distill Qwen 32B on four devices, a public note": (
        "print_info: file type   = Q4_K - Medium\n"
        "load_tensors: offloading 64 repeating layers to GPU\n"
        "load_tensors: offloading output layer to GPU\n"
        "load_tensors:   CPU_Mapped model buffer size =   417.66 MiB\n"
        "load_tensors:        CUDA0 model buffer size =  4844.72 MiB\n"
        "load_tensors:        CUDA1 model buffer size =  4366.53 MiB\n"
        "load_tensors:        CUDA2 model buffer size =  4366.53 MiB\n"
        "load_tensors:        CUDA3 model buffer size =  4930.57 MiB\n",
        "qwen-2.5-32b", {},
        "CPU_Mapped model buffer size: exact; model buffers of 4 devices: exact",
    ),
    "Llama 3.1 8B, tried without memory, then loaded; of another model nothing is read": (
        "llama_model_loader: loaded meta data with 2 key-value pairs and 2 tensors from a.gguf "
        "(version GGUF V3 (latest))\nprint_info: file type   = Q4_K - Medium\n"
        "load_tensors: offloading 32 repeating layers to GPU\n"
        "load_tensors: offloading output layer to GPU\n"
        "load_tensors:        CUDA0 model buffer size =     0.00 MiB\n"
        "load_tensors:        CUDA0 model buffer size =  4403.49 MiB\n"
        "load_tensors:   CPU_Mapped model buffer size =   281.81 MiB\n"
        "llama_model_loader: loaded meta data with 2 key-value pairs and 2 tensors from b.gguf "
        "(version GGUF V3 (latest))\n"
        "load_tensors:        CUDA0 model buffer size =   435.23 MiB\n",
        "llama-3.1-8b", {},
        "CUDA0 model buffer size: read; CUDA0 model buffer size: exact; "
        "CPU_Mapped model buffer size: exact",
    ),
    "gpt-oss 20B on ROCm, whose rows of 2,880 numbers are filled up, a public note": (
        "print_info: file type   = MXFP4 MoE\n"
        "load_tensors: offloading 24 repeating layers to GPU\n"
        "load_tensors: offloading output layer to GPU\n"
        "load_tensors:        ROCm0 model buffer size = 10949.38 MiB\n"
        "load_tensors:   CPU_Mapped model buffer size =   586.82 MiB\n",
        "gpt-oss-20b", {}, "ROCm0 model buffer size: exact; CPU_Mapped model buffer size: exact",
    ),
    "Mistral 7B with 20 of 33 layers on a device, a public issue: the host maps the whole file": (
        "print_info: file type   = Q4_K - Medium\n"
        "load_tensors: offloading 20 repeating layers to GPU\n"
        "load_tensors: CUDA0 model buffer size = 2495.31 MiB\n"
        "load_tensors: CPU_Mapped model buffer size = 4165.37 MiB\n",
        "mistral-7b", {}, "CUDA0 model buffer size: exact; CPU_Mapped model buffer size: exact",
    ),
    "vLLM issue 10517": (
        ENGINE.format("meta-llama/Llama-3.1-8B-Instruct", 29000, 1)
        + "Loading model weights took 14.9888 GB\nkv_cache_size=3.81GiB\n# GPU blocks: 1952, #",
        None, {"n_ctx": 131072}, "weights: exact; cache, 1,952 blocks: exact; blocks: exact",
    ),
    "vLLM pull request 12569": (
        ENGINE.format("x", 2048, 1) + "Model loading took 67.7229 GiB and 30 seconds\n"
        "# GPU blocks: 1381, # CPU\nMaximum concurrency for 2,048 tokens per request: 10.79x",
        "llama-3.1-70b", {"weights": "int8-channel", "n_ctx": 131072},
        "weights: bounded; blocks: read; concurrency: exact",
    ),
    **{
        f"LMCache issue 1739, printed by {n} processes: was there {n} times": (
            ENGINE.format("Qwen/Qwen3-14B", 32768, 1) + n * "Available KV cache memory: 6.51 GiB\n"
            + "GPU KV cache size: 42,656 tokens\n"
            "Maximum concurrency for 32,768 tokens per request: 1.30x\n",
            None, {}, "cache, 2,666 blocks: exact; tokens: exact; concurrency: exact",
        )
        for n in (1, 2)
    },
    "vLLM pull request 13596, which names no model": (
        "# GPU blocks: 127626, # CPU blocks: 0\nGPU KV cache size: 2,042,016 tokens\n"
        "Maximum concurrency for 2,048 tokens per request: 997.08x\n",
        None, {}, "cache blocks: asked; cache tokens: asked; concurrency: exact",
    ),
    "vLLM issue 21348, where the smallest of four ranks decides": (
        ENGINE.format("Qwen/Qwen3-235B-A22B-FP8", 32768, 4)
        + "Available KV cache memory: 8.11 GiB\nGPU KV cache size: 178,880 tokens\n",
        None, {},
        "cache, 11,180 blocks: unexplained, 98,909,552 bytes; "
        "tokens: unexplained, 98,566,144 bytes",
    ),
    **{
        f"gemma-3-27b in groups of layers, as vLLM 0.32 plans it, {tokens} tokens": (
            ENGINE.format("google/gemma-3-27b-it", 8192, 1)
            + f"Available KV cache memory: 9.3132 GiB\nGPU KV cache size: {tokens} tokens\n",
            None, {}, f"cache: read; tokens: {verdict}",
        )
        for tokens, verdict in (("17,408", "exact"), ("17,500", "unexplained"))
    },
    "vLLM issue 21348, SGLang": (
        "server_args=ServerArgs(model_path='Qwen/Qwen3-235B-A22B-FP8', tp_size=4)\n"
        "KV Cache is allocated. #tokens: 367404, K size: 8.23 GB, V size: 8.23 GB\n",
        None, {}, "tokens of the cache: exact; keys: exact; values: exact",
    ),
    "SGLang of GLM-4.7 Flash, whose cache has latents": (
        "server_args=ServerArgs(model_path='zai-org/GLM-4.7-Flash', tp_size=2)\n"
        "KV Cache is allocated. #tokens: 383872, KV size: 19.36 GB\n",
        None, {}, "tokens of the cache: read; latents: exact",
    ),
    "lmstudio-bug-tracker issue 1862": (
        LLAMA.format(64, 1024, 1024, 262144)
        + "llama_kv_cache: size = 16384.00 MiB (262144 cells,  16 layers,  4/1 seqs), "
        "K (f16): 8192.00 MiB, V (f16): 8192.00 MiB\n",
        None, {}, "cache, 262,144 cells, 16 layers: exact",
    ),
    "ollama issue 16480, of gpt-oss 120B: a cache of windows, each of two requests": (
        LLAMA.format(36, 512, 512, 262144)
        + "llama_kv_cache: size = 9216.00 MiB (131072 cells,  18 layers,  2/2 seqs), "
        "K (f16): 4608.00 MiB, V (f16): 4608.00 MiB\n"
        "llama_kv_cache: size =   90.00 MiB (  1280 cells,  18 layers,  2/2 seqs), "
        "K (f16):   45.00 MiB, V (f16):   45.00 MiB\n",
        None, {},
        "cache, 2 × 131,072 cells, 18 layers: exact; cache, 2 × 1,280 cells, 18 layers: exact",
    ),
    "llama.cpp of March 2025 prints no sequences": (
        LLAMA.format(32, 1024, 1024, 8192)
        + "llama_kv_cache_unified: size = 1024.00 MiB (  8192 cells,  32 layers), "
        "K (f16):  512.00 MiB, V (f16):  512.00 MiB\n",
        None, {}, "cache, 8,192 cells, 32 layers: exact",
    ),
    "ollama issue 6160": (
        LLAMA.format(56, 1024, 1024, 49152)
        + "KV self size  = 5712.00 MiB, K (q8_0): 2856.00 MiB, V (q8_0): 2856.00 MiB\n"
        "CUDA0 model buffer size = 17295.40 MiB\nCUDA0 compute buffer size =   192.00 MiB\n",
        None, {},
        "cache, 49,152 cells, 56 layers: exact; CUDA0 model buffer size: read; "
        "CUDA0 compute buffer size: read",
    ),
    "llama.cpp issue 14235": (
        "print_info: file size   = 17.28 GiB (4.86 BPW)\nprint_info: model params     = 30.53 B\n",
        None, {}, "tensors of the file: bounded; parameters: read",
    ),
    "llama-server, build 8586, of Qwen3.5 27B, whose states are in three of four layers": (
        LLAMA.format(64, 1024, 1024, 131072)
        + "print_info: file size   = 14.49 GiB (4.63 BPW)\nprint_info: model params = 26.90 B\n"
        "print_info: ssm_d_conv            = 4\nprint_info: ssm_d_inner           = 6144\n"
        "print_info: ssm_d_state           = 128\nprint_info: ssm_n_group           = 16\n"
        "load_tensors:        CUDA0 model buffer size =  6096.65 MiB\n"
        "llama_kv_cache: size = 8192.00 MiB (131072 cells,  16 layers,  1/1 seqs), "
        "K (f16): 4096.00 MiB, V (f16): 4096.00 MiB\n"
        "llama_memory_recurrent: size =  149.62 MiB (     1 cells,  64 layers,  1 seqs), "
        "R (f32):    5.62 MiB, S (f32):  144.00 MiB\n",
        None, {},
        "tensors of the file: bounded; parameters: read; CUDA0 model buffer size: read; cache, "
        "131,072 cells, 16 layers: exact; states, 1 sequences, 48 of 64 layers: exact",
    ),
    "llama-server of Qwen3.8 27B, with a snapshot for each of two drafted tokens": (
        LLAMA.format(64, 1024, 1024, 8192)
        + "print_info: ssm_d_conv = 4\nprint_info: ssm_d_inner = 6144\n"
        "print_info: ssm_d_state = 128\nprint_info: ssm_n_group = 16\n"
        "llama_kv_cache: size =  512.00 MiB (  8192 cells,  16 layers,  4/1 seqs), "
        "K (f16):  256.00 MiB, V (f16):  256.00 MiB\n"
        "llama_memory_recurrent: size = 1795.50 MiB (     4 cells,  64 layers,  4 seqs  2 rs_seq), "
        "R (f32):   67.50 MiB, S (f32): 1728.00 MiB\n",
        None, {},
        "cache, 8,192 cells, 16 layers: exact; states, 4 sequences, 48 of 64 layers: exact",
    ),
    **{
        f"PEFT's method comparison, {targets}": (
            f'"num_trainable_params": {trained},\n"num_total_params": {whole},\n',
            "llama-3.2-3b", {"adapter_rank": rank, "adapter_targets": targets},
            "trained: exact; all parameters: exact",
        )
        for rank, targets, trained, whole in (
            (10, "down gate up", 9461760, 3222211584),
            (32, "query value", 9175040, 3221924864),
        )
    },
    "a cache in a type that nobody has": (
        LLAMA.format(2, 64, 64, 256) + "KV self size  = 1 MiB, K (zz): 0.5 MiB, V (zz): 0.5 MiB",
        None, {}, "cache: asked",
    ),
    **{
        f"PEFT, {source}": (
            PEFT.format(trained, whole, share), model,
            {"adapter_rank": rank, "adapter_targets": targets},
            "trained: exact; all parameters: exact; trained share: exact",
        )
        for source, model, rank, targets, trained, whole, share in (
            ("README.md", "qwen-2.5-3b", 16, "query value", "3,686,400", "3,089,625,088", "0.1193"),
            ("quicktour.md", "llama-3.2-1b", 8, "query", "524,288", "1,236,338,688", "0.0424"),
            ("int8_training", "opt-6.7b", 16, "query value", "8388608", "6666862592", "0.1258"),
            ("llama-cookbook issue 814", "llama-3.2-3b", 8, "query key", "2,293,760",
             "3,215,043,584", "0.0713"),
        )
    },
    "Chinese-LLaMA-Alpaca issue 189, whose vocabulary is larger": (
        PEFT.format("4194304", "6889689088", "0.0609"), "llama-7b",
        {"adapter_rank": 8, "adapter_targets": "query value"},
        "trained: exact; all parameters: unexplained, 147,079,168 parameters; trained share: exact",
    ),
    **{
        f"vLLM of OLMo 2 13B on two devices, norms of all heads {norms}": (
            ENGINE.format("allenai/OLMo-2-1124-13B", 4096, 2) + f"Model loading took {printed} GiB",
            None, {"n_ctx": 4096},
            f"weights: {verdict}",
        )
        # Weights of a device, the norms' 40 × 2 × 5,120 divided or not, and a RoPE table of 1 MiB.
        for norms, printed, verdict in (
            ("divided", "12.7756", "exact"),
            ("whole", "12.7759", "exact"),
            ("twice", "12.7767", "unexplained, 662,506 bytes"),
        )
    },
    "an adapter of unknown rank": (
        PEFT.format("524,288", "1,236,338,688", "0.0424"), "llama-3.2-1b", {},
        "trained: asked; all parameters: exact; trained share: exact",
    ),
    **{
        f"TensorRT-LLM, {source}": (text, model, settings, f"cache, {tokens} tokens: {verdict}")
        for source, text, model, settings, tokens, verdict in (
            ("a guide of Dynamo with DeepSeek-R1-Distill-Llama-8B",
             "Allocated 26.91 GiB for max tokens in paged KV cache (220480).", "llama-3.1-8b", {},
             "220,480", "exact"),
            ("a report of Kimi K2.5, whose cache has latents in 8 bits",
             "Allocated 166.02 GiB for max tokens in paged KV cache (5073376).", "kimi-k2",
             {"cache_dtype": "fp8"}, "5,073,376", "exact"),
            ("issue 1400, whose model has the cache of Llama 2 7B",
             "Allocate 69524783104 bytes for k/v cache.\n"
             "Using 132608 tokens in paged KV cache.", "llama-2-7b", {"dtype": "float16"},
             "132,608", "exact"),
        )
    },
    "torch, out of memory": (
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB "
        "of which 1.00 GiB is free. Including non-PyTorch memory, this process has 78.10 GiB "
        "memory in use. Of the allocated memory 76.50 GiB is allocated by PyTorch, and 1.10 GiB is "
        "reserved by PyTorch but unallocated.",
        None, {},
        "tried: asked; capacity: read; process: unexplained, 536,870,912 bytes; allocated: read; "
        "cached: read",
    ),
    **{
        f"out of memory of a step of Llama 3 8B, {what}": (
            message, "llama-3-8b",
            {"batch": 4, "length": 4096, "implementation": "transformers", "recompute": "full"},
            verdicts,
        )
        for what, message, verdicts in (
            # 4 × 4,096 × 128,256 numbers of 4 bytes
            ("logits in float32", "Tried to allocate 7.83 GiB", "tried: exact"),
            ("before torch 2.1",
             "Tried to allocate 7.83 GiB (GPU 0; 79.11 GiB total capacity; "
             "65.03 GiB already allocated;", "tried: exact; capacity: read; allocated: exact"),
            ("a size that no tensor has", "Tried to allocate 7.91 GiB", "tried: unexplained"),
        )
    },
    "the table of caches of a post about Llama 3.1, whose last row is twice too high": (
        "| 405B | 0.984 GB | 15.38 GB | 123.05 GB |\n", "llama-3.1-405b", {"dtype": "float16"},
        "cache, 1k tokens: unexplained, 528,079,650 bytes; cache, 16k tokens: unexplained, "
        "8,256,613,253 bytes; cache, 128k tokens: unexplained, 66,063,643,443 bytes",
    ),
    "the row above it": (
        "| 70B | 0.313 GB | 4.88 GB | 39.06 GB |\n", "llama-3-70b", {"dtype": "float16"},
        "cache, 1k tokens: exact; cache, 16k tokens: exact; cache, 128k tokens: exact",
    ),
    "nvidia-smi of Qwen's speed benchmark": (
        "| N/A   30C    P0    70W / 500W |  12317MiB / 97871MiB |      0%      Default |\n",
        "qwen-3-4b", {"length": 32768, "dtype": "bfloat16"},
        "device in use: unexplained, 38,536,192 bytes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOGS)
def test_numbers_of_others_are_explained_or_asked_for(tmp_path, name):
    text, model, settings, expected = LOGS[name]
    path = tmp_path / "server.log"
    path.write_text(text)
    found = explain(path, model, settings)
    assert "; ".join(f"{one.name}: {one.in_words}" for one in found.lines) == expected
    asks = [one for one in found.lines if one.verdict == "asked"]
    assert not asks or found.asked
    known = [one for one in found.lines if one.verdict in ("exact", "bounded")]
    assert all(one.explained for one in known)
    assert asks or not any(one.n_bytes for one in known) or explained_share(found) > 0.7


def test_a_log_is_named_after_the_tool_of_its_numbers(tmp_path):
    """A dtype that another tool prints too names no tool; thousands may have commas."""
    path = tmp_path / "server.log"
    path.write_text(
        "server_args=ServerArgs(model_path='Qwen/Qwen3-8B', dtype=torch.bfloat16, tp_size=1)\n"
        "KV Cache is allocated. #tokens: 7,282, K size: 0.50 GB, V size: 0.50 GB\n"
    )
    found = explain(path)
    assert found.title.startswith("SGLang; ")
    assert {line.verdict for line in found.lines} == {"exact"}


@pytest.mark.parametrize("experts", ["", "'enable_expert_parallel': True"])
def test_replicas_of_a_log_share_experts_by_hand(tmp_path, experts):
    """Qwen 3 30B-A3B: 30,532,122,624 parameters, of which 48 · 128 experts have 3 · 2048 · 768."""
    on_device = 30_532_122_624 - 48 * 128 * 3 * 2048 * 768 * 3 // 4
    gib = (on_device + 40_960 * 128) * 2 / 2**30
    path = tmp_path / "server.log"
    path.write_text(
        f"non-default args: {{'model': 'Qwen/Qwen3-30B-A3B', {experts}}}\n"
        + ENGINE.format("Qwen/Qwen3-30B-A3B", 40960, 1).rstrip()
        + ", pipeline_parallel_size=1, data_parallel_size=4, decode_context_parallel_size=1\n"
        f"Model loading took {gib:.4f} GiB and 20 seconds\n"
    )
    of_log = explain(path)
    assert of_log.title.endswith("one of 4 devices")
    assert [line.verdict for line in of_log.lines] == ["exact"]


def test_a_format_of_the_engine_is_not_that_of_a_model_released_in_another(tmp_path):
    """vLLM prints quantization=fp8 of DeepSeek V3, whose file has blocks with scales."""
    path = tmp_path / "server.log"
    path.write_text(
        ENGINE.format("deepseek-ai/DeepSeek-V3", 16384, 8).rstrip() + ", quantization=fp8,\n"
        "Model loading took 79.1 GiB and 90 seconds\n"
    )
    (weights,) = explain(path).lines
    assert "fp8-block" in weights.explained


def test_a_number_that_is_a_multiple_of_the_formula_says_so(tmp_path):
    path = tmp_path / "post.md"
    path.write_text("| 405B | 0.984 GB | 15.38 GB | 123.05 GB |\n")
    found = explain(path, "llama-3.1-405b")
    assert [one.explained.partition(" tokens")[0] for one in found.lines] == [
        "2 × 504 MiB of 1,024", "2 × 7.69 GiB of 16,000", "2 × 61.52 GiB of 128,000"]  # fmt: skip


def test_a_repository_has_the_name_of_a_model_or_none():
    assert named_model("Qwen/Qwen3-4B-Instruct") == "qwen-3-4b"
    assert named_model("meta-llama/Llama-3.1-8B-Instruct") == "llama-3.1-8b"
    assert named_model("someone/my-finetune") is None
    copy = "unsloth/Llama-3.2-1B-Instruct-bnb-4bit"
    assert named_model(copy) == copy


@pytest.fixture
def command(monkeypatch, capsys):
    def run(*words: str):
        monkeypatch.setattr(sys, "argv", ["modelbudget", *words])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code or 0, *capsys.readouterr()

    return run


def test_the_command_asks_by_name_and_prints_data(tmp_path, command):
    path = tmp_path / "a.log"
    path.write_text(LOGS["an adapter of unknown rank"][0])
    code, out, err = command("explain", str(path), "--model", "llama-3.2-1b")
    assert code == 0
    assert "exact" in out
    assert "not in the file: --set adapter_rank=…" in err
    code, out, _ = command("explain", str(path), "--model", "llama-3.2-1b", "--json")
    assert json.loads(out)["version"] == 1
    _, out, _ = command("explain", str(path), "--markdown")
    assert out.startswith("**a.log: PEFT; no model**")


def test_a_pipe_is_read_and_written_and_stays_one(tmp_path):
    """`explain <(docker logs …)` found no such file; `lock -o` put a file in the pipe's place."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    text, *_ = LOGS["torch, out of memory"]
    writer = threading.Thread(target=files.write, args=(pipe, text))
    writer.start()
    explained = explain(pipe)
    writer.join()
    assert explained.title == "torch; no model"
    assert pipe.is_fifo()


def test_a_process_without_memory_is_answered_with_what_fits(tmp_path, command):
    """Only here: the command below an out-of-memory message is one that answers."""
    path = tmp_path / "a.log"
    path.write_text(LOGS["torch, out of memory"][0])
    _, _, err = command("explain", str(path), "--model", "gpt-2-124m")
    settings = ("--set", "batch=4", "--set", "length=1024")
    _, out, _ = command("explain", str(path), "--model", "gpt-2-124m", *settings, "--json")
    tried = json.loads(out)["lines"][0]["explained"]
    assert tried == "no tensor of the step, of modelbudget; the largest: 392.6 MiB"
    asked, fits = err.splitlines()
    assert asked.startswith("not in the file: --batch … and --length …: of the step")
    assert fits == "what fits: modelbudget gpt-2-124m --fit 79.11GiB --batch N --length N"
    code, out, _ = command(*fits.split()[3:7], "2", "--length", "8")
    assert (code, "84.9 GB" in out) == (0, True)


def snapshot() -> dict:
    blocks = [
        {"size": 1024, "requested_size": 1000, "state": "active_allocated", "address": 0},
        {"size": 3072, "requested_size": 0, "state": "inactive", "address": 1024},
    ]
    return {"segments": [{"total_size": 4096, "blocks": blocks}], "device_traces": [[]]}


def test_a_snapshot_is_read_without_running_it(tmp_path):
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(snapshot()))
    found = explain(path)
    assert [(one.name, one.verdict, one.n_bytes) for one in found.lines] == [
        ("reserved", "exact", 4096), ("allocated", "exact", 1024)]  # fmt: skip


def test_a_gguf_file_is_explained_by_component(tmp_path):
    path = written(tmp_path / "a.gguf", KEYS_OF_FILE, {"blk.0.attn_q.weight": "Q8_0"})
    found = explain(path)
    verdicts = [one.verdict for one in found.lines]
    assert set(verdicts) == {"exact"}
    assert found.lines[-1].n_bytes == path.stat().st_size
    assert explained_share(found) == 1


class Hostile:
    def __reduce__(self):
        return exec, ("raise SystemExit('run')",)


SHARED = [snapshot()["segments"][0]["blocks"][0]] * 5000
HOSTILE = {
    "a call": pickle.dumps(Hostile()),
    "a call in a snapshot": pickle.dumps(snapshot() | {"x": Hostile()}, protocol=2),
    "a class": pickle.dumps(io.BytesIO),
    "a list that many segments share": pickle.dumps(
        {"segments": [{"total_size": 1, "blocks": SHARED}] * 5000}
    ),
    "a memo of 16 GB": b"\x80\x02Nr\xff\xff\xff\x7f.",
    "another value": pickle.dumps([1, 2]),
    "sizes that are text": pickle.dumps({"segments": [{"total_size": "x", "blocks": []}]}),
    "nothing": b"",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_another_pickle_is_refused_in_one_line(tmp_path, name):
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(HOSTILE[name])
    with pytest.raises(InputError) as error:
        explain(path)
    assert len(error.value.mistakes) == 1
    assert "\n" not in error.value.mistakes[0]


def test_mutated_files_are_explained_or_refused(tmp_path):
    """1,000 mutations of each: no other error, and no end of the process."""
    draw = random.Random(0)
    logs = "".join(text for text, *_ in LOGS.values()).encode()
    read = {"snapshot.pickle": explain, "server.log": read_log}
    contents = {"snapshot.pickle": pickle.dumps(snapshot(), protocol=2), "server.log": logs[:900]}
    for file, content in contents.items():
        path = tmp_path / file
        for _ in range(1000):
            mutated = bytearray(content)
            for _ in range(draw.randint(1, 8)):
                place = draw.randrange(len(mutated))
                mutated[place : place + draw.randint(0, 3)] = draw.randbytes(draw.randint(0, 3))
            path.write_bytes(mutated)
            with suppress(InputError):
                read[file](path)


def test_mutated_logs_of_a_known_model_are_explained_or_refused(tmp_path):
    """Settings and numbers of a log reach formulas: sizes that they cannot have are one line."""
    draw = random.Random(1)
    text = (
        ENGINE.format("Qwen/Qwen3-0.6B", 4096, 2) + "Model loading took 1.1201 GiB\n"
        "Available KV cache memory: 6.51 GiB\nGPU KV cache size: 42,656 tokens\n"
        "Maximum concurrency for 32,768 tokens per request: 1.30x\n"
    )
    path = tmp_path / "server.log"
    places = [i for i, letter in enumerate(text) if letter.isdigit() or letter in ".,"]
    for _ in range(60):
        mutated = list(text)
        for place in draw.sample(places, 3):
            mutated[place] = draw.choice("0123456789.,-e")
        path.write_text("".join(mutated))
        with suppress(InputError):
            explain(path, "qwen-3-0.6b")


@pytest.mark.parametrize(
    "lines",
    [
        "print_info: file size = 1.00 GiB (. BPW)\nprint_info: model params = 1.00 B",
        "print_info: file size = 1.00 GiB (4.50 BPW)\nprint_info: model params = 0.00 B",
        "print_info: file size = 1.00 GiB (0.00 BPW)\nprint_info: model params = 1.00 B",
    ],
)
def test_a_file_without_parameters_or_bits_is_read(tmp_path, lines):
    (tmp_path / "server.log").write_text(lines)
    assert {line.verdict for line in explain(tmp_path / "server.log").lines} <= {"read", "asked"}


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("peft_type", "IA3", "LORA"),
        ("use_dora", "yes", "true or false"),
        ("bias", ["all"], "none, all, lora_only"),
        ("rank_pattern", {"q_proj": "8"}, "ranks by name"),
        ("trainable_token_indices", {"embed_tokens": 3}, "numbers of tokens"),
        ("r", "16", "a whole number from 1"),
        ("r", -1, "a whole number from 1"),
        ("target_modules", None, "names of layers"),
        ("target_modules", ["q_proj", 3], "names of layers"),
    ],
)
def test_a_configuration_that_is_none_of_lora_is_refused_with_its_key(
    tmp_path, key, value, allowed
):
    config = {"peft_type": "LORA", "r": 16, "target_modules": ["q_proj"]} | {key: value}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=rf"config.json: {key} = .*: allowed: {allowed}$"):
        explain(tmp_path)


def test_an_adapter_nested_without_end_is_refused_in_one_line(tmp_path):
    """It ended with the traceback of Python's reader, which no other file of JSON does."""
    (tmp_path / "adapter_config.json").write_text("[" * 10**6)
    with pytest.raises(InputError, match=r"config\.json: not readable as UTF-8 JSON: nested"):
        explain(tmp_path)


def test_a_long_log_is_read_in_bounded_time(tmp_path):
    path = tmp_path / "server.log"
    path.write_bytes(b"engine with config: " * 10**4 + b"\n" + b"max_memory_allocated " * 10**4)
    with pytest.raises(InputError, match="no number of a known line"):
        explain(path)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_an_adapter_that_peft_writes_and_prints(tmp_path, capsys):
    """PEFT saves and prints what it has made: the tensors are those of rank and targets.

    Formula and PEFT meet in each printed line; a file of an adapter has no other tensors.
    """
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2)  # fmt: skip
    torch.manual_seed(0)
    base = LlamaForCausalLM(config)
    base.save_pretrained(tmp_path / "base")
    lora = LoraConfig(r=3, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM")
    adapted = get_peft_model(base, lora)
    adapted.save_pretrained(tmp_path / "adapter")
    capsys.readouterr()
    adapted.print_trainable_parameters()
    (tmp_path / "train.log").write_text(capsys.readouterr().out)
    chosen = {"adapter_rank": 3, "adapter_targets": "query down"}
    printed = explain(tmp_path / "train.log", str(tmp_path / "base"), chosen)
    assert [one.verdict for one in printed.lines] == ["exact"] * 3
    found = explain(tmp_path / "adapter", str(tmp_path / "base"))
    assert [one.verdict for one in found.lines] == ["exact", "exact", "exact"]
    assert not found.asked
    assert explain(tmp_path / "adapter").asked
    whole = explain(tmp_path / "base")
    assert {one.verdict for one in whole.lines} == {"exact"}, whole.lines
    assert explained_share(whole) == 1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "keys",
    [
        {"use_dora": True, "rank_pattern": {"q_proj": 7}},
        {"use_rslora": True, "layers_to_transform": [1], "lora_bias": True},
        {"target_modules": r".*layers\.0\..*(q_proj|v_proj)"},
        {"target_modules": "all-linear", "exclude_modules": ["down_proj"]},
        {"target_modules": "all-linear", "exclude_modules": r".*layers\.0\..*"},
        {"target_modules": ["q_proj", "lm_head"]},
        {"target_modules": ["q_proj", "lm_head"], "trainable_token_indices": [1, 2, 5]},
        {"modules_to_save": ["embed_tokens", "lm_head"],
         "rank_pattern": {r"^model\.layers\.0\.self_attn\.q_proj": 7}},
        {"modules_to_save": ["norm"], "bias": "lora_only"},
        {"target_modules": ["q_proj", "embed_tokens"], "bias": "all"},
        {"target_modules": ["q_proj", "lm_head"], "modules_to_save": ["lm_head"]},
        {"target_modules": ["model.layers.0.self_attn.q_proj"], "layers_to_transform": 1},
        {"target_modules": ["v_proj"], "lora_bias": True, "r": 8},
    ],
    ids=str,
)  # fmt: skip
def test_keys_that_change_what_an_adapter_is_around(keys, tmp_path):
    """A file that PEFT saves has as many numbers; all but the last key of each left a rest.

    Only here: the bias of value, with as many numbers as the adapter's rank.
    """
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, attention_bias=True,
    )  # fmt: skip
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(tmp_path)
    lora = LoraConfig(**{"r": 3, "target_modules": ["q_proj", "v_proj"]} | keys)
    get_peft_model(LlamaForCausalLM(config), lora).save_pretrained(tmp_path / "adapter")
    found = explain(tmp_path / "adapter", str(tmp_path / "config.json"))
    assert [line.verdict for line in found.lines] == ["exact"] * 3, found.lines


@pytest.mark.filterwarnings("ignore")
def test_keys_about_names_need_a_class_whose_names_are_known(tmp_path):
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    base = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=32))
    lora = LoraConfig(r=3, target_modules=["c_attn"], use_dora=True)
    torch.manual_seed(0)
    get_peft_model(base, lora).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="use_dora = true: names of its layers are not known"):
        explain(tmp_path, "gpt-2-124m")


SMALL = {
    "vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2,
    "num_key_value_heads": 1, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 6, "linear_value_head_dim": 10, "pad_token_id": 0,
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("kind", ["OlmoHybrid", "Qwen3_5"])
@pytest.mark.parametrize("targets", ["all-linear", "q_proj,v_proj", "k_proj,down_proj"])
def test_adapters_around_layers_that_a_class_divides_as_we_do_not(kind, targets, tmp_path, capsys):
    """OLMo Hybrid has a matrix each for queries, keys and values of a recurrence, we have one."""
    import transformers
    from peft import LoraConfig, get_peft_model

    made = getattr(transformers, f"{kind}{'Text' * (kind == 'Qwen3_5')}Config")(
        layer_types=["linear_attention", "full_attention"], num_hidden_layers=2, **SMALL
    )
    made.architectures = [f"{kind}ForCausalLM"]
    made.save_pretrained(tmp_path)
    with torch.device("meta"):
        base = getattr(transformers, f"{kind}ForCausalLM")(made)
    modules = targets if targets == "all-linear" else targets.split(",")
    adapted = get_peft_model(base, LoraConfig(r=3, target_modules=modules, task_type="CAUSAL_LM"))
    capsys.readouterr()
    adapted.print_trainable_parameters()
    (tmp_path / "train.log").write_text(capsys.readouterr().out)
    chosen = {"adapter_rank": 3, "adapter_targets": targets}
    printed = explain(tmp_path / "train.log", str(tmp_path / "config.json"), chosen)
    assert [line.verdict for line in printed.lines] == ["exact"] * 3, printed.lines
