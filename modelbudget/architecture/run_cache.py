"""The cache of a run, and the engine that serves requests with it."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from modelbudget.architecture.constraint import Check
from modelbudget.architecture.record import Count, Record, Size
from modelbudget.architecture.run_rules import rules

CACHE_DTYPES = (
    "dtype", "float32", "float16", "bfloat16", "fp8", "int8", "fp8-latent", "q8_0", "q5_1", "q5_0",
    "q4_1", "q4_0", "iq4_nl", "int8-group", "int4-group", "int2-group",
)  # fmt: skip
"""Formats of caches (`configs/cache_formats.yaml`)."""
LAYOUTS = ("contiguous", "dynamic", "dynamic-prompt", "static", "paged", "cells")
"""Ways to allocate a cache (`serving/cache_layouts.py`)."""


class ServedCache(Record):
    """Format and layout of the cache, and how an engine divides a device's memory."""

    cache_dtype: Literal[CACHE_DTYPES] = Field(  # pyright: ignore[reportInvalidTypeForm]
        "dtype",
        description="format of keys and values in the cache: the run's dtype, or one of "
        "configs/cache_formats.yaml (fp8; int8 with a scale for each token and head; blocks of "
        "llama.cpp; groups of transformers' QuantizedCache); recurrent states keep theirs",
    )
    cache_layout: Literal[LAYOUTS] = Field(  # pyright: ignore[reportInvalidTypeForm]
        "contiguous",
        description="who allocates the cache: our modules, as many tokens as there are; "
        "transformers' DynamicCache, after a new token or right after the prompt "
        "(dynamic-prompt), or its StaticCache; vLLM's pages of cache_block tokens, which groups of "
        "layers share (paged; Kwon et al. 2023, §4); llama.cpp's cells, in multiples of 256",
    )
    cache_block: Count = Field(
        16, description="cache_layout: paged: tokens of a block, the least that an engine allocates"
    )
    cached_state_dtype: Literal["dtype", "float32"] = Field(
        "dtype",
        description="cache_layout: paged: the states of recurrences in the dtype or in float32 "
        "(mamba_ssm_cache_dtype of vLLM); those of its Kimi Linear are in float32 anyway",
    )
    cache_unquantised: Size = Field(
        0,
        description="cache_dtype: last tokens that are kept in the dtype (the residual part of "
        "transformers' QuantizedCache)",
    )
    utilisation: Annotated[int, Field(ge=1, le=100)] = Field(
        92,
        description="serving: percent of a device's memory that the engine takes for weights, "
        "cache and forward passes (gpu_memory_utilization of vLLM)",
    )
    batched_tokens: Count = Field(
        8192,
        description="serving: tokens of the largest forward pass (max_num_batched_tokens of vLLM, "
        "n_ubatch of llama.cpp)",
    )
    shared_prefix: Size = Field(
        0, description="serving: first tokens that all requests share, whose blocks exist once"
    )
    served_adapters: Size = Field(
        0,
        description="serving: LoRA adapters on the device, each of adapter_rank for "
        "adapter_targets, in the dtype (max_loras of vLLM)",
    )
    host_layers: Size = Field(
        0,
        description="serving: layers whose weights and cache are in the host's memory (those that "
        "llama.cpp's --n-gpu-layers leaves there)",
    )

    constraints: ClassVar[tuple[Check, ...]] = (*rules("cache"),)
