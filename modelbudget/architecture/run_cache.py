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

    cache_dtype: Literal[CACHE_DTYPES] = "dtype"  # pyright: ignore[reportInvalidTypeForm]
    cache_layout: Literal[LAYOUTS] = "contiguous"  # pyright: ignore[reportInvalidTypeForm]
    cache_block: Count = 16
    cached_state_dtype: Literal["dtype", "float32"] = "dtype"
    cache_unquantised: Size = 0
    utilisation: Annotated[int, Field(ge=1, le=100)] = 92
    batched_tokens: Count = 8192
    shared_prefix: Size = 0
    served_adapters: Size = 0
    drafted_tokens: Size = 0
    host_layers: Size = 0

    constraints: ClassVar[tuple[Check, ...]] = (*rules("cache"),)
