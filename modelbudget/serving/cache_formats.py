"""Bytes of keys and values in a cache's format, from `configs/cache_formats.yaml`."""

from collections.abc import Mapping, Set
from typing import Any

from pydantic import Field

from modelbudget.architecture.arithmetic import ceil_div
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import bytes_of
from modelbudget.common.expressions import Expression
from modelbudget.common.paths import CONFIGS
from modelbudget.common.strict import Strict, shipped

FLOAT32 = 4
UNKNOWN = "cache_layout = {}: {}'s recurrent states are not known of {}"
NOT_THERE = "cache_layout = {}: {} has no model with {}"
ENGINES = {"cells": "llama.cpp (00395eb)", "paged": "vLLM (0002bff)"}
"""Engines by the layout of their caches, and the versions whose models were read."""


class CacheFormat(Strict):
    """Blocks of `numbers` (0: the whole head), each with `bits` a number and a scale."""

    bits: int = Field(ge=1)
    numbers: int = Field(default=0, ge=0)
    scale_bytes: int = Field(default=0, ge=0)
    rotary_bits: int | None = Field(default=None, ge=1)
    source: str = Field(min_length=1)

    def n_bytes(self, width: int) -> int:
        """Return the bytes of one head of a token. Raises ValueError if blocks do not divide it."""
        numbers = self.numbers or width
        if width % numbers:
            raise ValueError(f"blocks of {numbers} do not divide a head of {width} channels")
        return width // numbers * (ceil_div(numbers * self.bits, 8) + self.scale_bytes)


class CacheFormatsFile(Strict):
    """The file: formats by name, and the numbers of engines' recurrent states."""

    formats: dict[str, CacheFormat]
    names: dict[str, str]
    states: dict[str, list[str]]
    not_in_llama: list[str]
    not_in_vllm: list[str]
    float32_in_vllm: list[str]
    not_drafted_in_vllm: list[str]


cache_formats = shipped(CONFIGS / "cache_formats.yaml", CacheFormatsFile, CacheFormat)


def state_numbers(name: str, sizes: Mapping[str, Any]) -> tuple[int, int]:
    """Return the numbers of an engine's two states of a layer and a sequence.

    `name`: of a family, or of a mixer of the file.
    """
    of_convolution, of_recurrence = map(Expression, cache_formats().states[name])
    return of_convolution(sizes), of_recurrence(sizes)


def state_bytes(family: str, mixers: Set[str], sizes: Mapping[str, Any], run: RunConfig) -> int:
    """Return the bytes of an engine's states of a layer and a sequence. Raises ValueError."""
    file, of_engine = cache_formats(), (run.cache_layout, ENGINES[run.cache_layout])
    in_llama = run.cache_layout == "cells"
    not_there = file.not_in_llama if in_llama else file.not_in_vllm
    for name in sorted({family, *mixers} & {*not_there}):
        raise ValueError(NOT_THERE.format(*of_engine, name))
    name = family if family in file.states else ", ".join(sorted(mixers))
    if name not in file.states:
        raise ValueError(UNKNOWN.format(*of_engine, name))
    if not in_llama and name not in file.not_drafted_in_vllm:
        of_convolutions = {n: size for n, size in sizes.items() if n.endswith("_convolution")}
        kept = {n: size + run.drafted_tokens for n, size in of_convolutions.items()}
        sizes = {**sizes, **kept}  # convolutions keep drafted tokens, too
    of_convolution, of_recurrence = state_numbers(name, sizes)
    size = FLOAT32 if in_llama else bytes_of(run.dtype)
    is_float32 = name in file.float32_in_vllm or run.cached_state_dtype == "float32"
    return size * of_convolution + (FLOAT32 if is_float32 else size) * of_recurrence


def vector_bytes(name: str, dtype: str, width: int, is_rotary: bool = False) -> int:
    """Return the bytes of one head of a token, in a format or the dtype. Raises ValueError."""
    if name == "dtype":
        return bytes_of(dtype) * width
    if name == "unknown":
        raise ValueError(f"cache_dtype = {name}: its bytes are not known; allowed: a known format")
    cache_format = cache_formats().formats[name]
    if is_rotary and cache_format.rotary_bits is not None:
        return ceil_div(width * cache_format.rotary_bits, 8)
    try:
        return cache_format.n_bytes(width)
    except ValueError as error:
        raise ValueError(f"cache_dtype = {name}: {error}") from None
