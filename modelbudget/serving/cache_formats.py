"""Bytes of keys and values in a cache's format, from `configs/cache_formats.yaml`."""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from pydantic import Field

from modelbudget.architecture.operations import ceil_div
from modelbudget.architecture.run_values import bytes_of
from modelbudget.common.expressions import Expression
from modelbudget.common.paths import CONFIGS
from modelbudget.common.strict import Strict, read_strict

PATH = CONFIGS / "cache_formats.yaml"
UNKNOWN = "cache_layout = cells: llama.cpp's recurrent states are not known of {}"
NOT_THERE = "cache_layout = cells: llama.cpp (00395eb) has no model with {}"


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
    """The file: formats by name, and the numbers of llama.cpp's recurrent states."""

    formats: dict[str, CacheFormat]
    llama_states: dict[str, list[str]]
    not_in_llama: list[str]


@cache
def _file() -> CacheFormatsFile:
    return read_strict(PATH, CacheFormatsFile, CacheFormat)


def cache_formats() -> dict[str, CacheFormat]:
    """Read the formats. Raises InputError."""
    return _file().formats


def state_numbers(name: str, sizes: Mapping[str, Any]) -> tuple[int, int]:
    """Return the numbers of llama.cpp's two states of a layer and a sequence, in float32.

    `name`: of a family, or of a mixer. Raises ValueError if it has none there.
    """
    if name not in _file().llama_states:
        raise ValueError(UNKNOWN.format(name))
    of_convolution, of_recurrence = map(Expression, _file().llama_states[name])
    return of_convolution(sizes), of_recurrence(sizes)


def check_in_llama(names: Iterable[str]) -> None:
    """Raise ValueError if a family or a mixer is of no model of llama.cpp."""
    for name in sorted({*names} & {*_file().not_in_llama}):
        raise ValueError(NOT_THERE.format(name))


def vector_bytes(name: str, dtype: str, width: int, is_rotary: bool = False) -> int:
    """Return the bytes of one head of a token, in a format or the dtype. Raises ValueError."""
    if name == "dtype":
        return bytes_of(dtype) * width
    cache_format = cache_formats()[name]
    if is_rotary and cache_format.rotary_bits is not None:
        return ceil_div(width * cache_format.rotary_bits, 8)
    try:
        return cache_format.n_bytes(width)
    except ValueError as error:
        raise ValueError(f"cache_dtype = {name}: {error}") from None
