"""Data of the page, compressed as text of a script."""

import json
import zlib
from collections.abc import Callable

import numpy as np

_SAFE = {code: code + 256 for code in map(ord, "\0\r<")}
"""Characters that HTML would read as others, and what stands for them in the page."""


def packed(data, default: Callable | None = None) -> str:
    """Return the data as compressed JSON. Equal data give equal text.

    `default` returns what stands for data that JSON does not have.
    """
    text = json.dumps(
        data, ensure_ascii=False, separators=(",", ":"), sort_keys=True, default=default
    )
    return packed_bytes(text.encode())


def packed_bytes(content: bytes) -> str:
    """Return compressed bytes as text, seven bits a character.

    Base85 would take 7 % more. The characters of a script are not parsed: `<` alone could end it.
    Blocks are shorter than zlib's default (memLevel 8), so that their codes fit what they hold: all
    data of the page take 1 % less.
    """
    stream = zlib.compressobj(9, memLevel=6)
    bits = np.unpackbits(np.frombuffer(stream.compress(content) + stream.flush(), np.uint8))
    bits = np.pad(bits, (0, -bits.size % 7)).reshape(-1, 7)
    return (np.packbits(bits, axis=1) >> 1).tobytes().decode("ascii").translate(_SAFE)
