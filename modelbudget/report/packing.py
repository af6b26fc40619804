"""Data of the page, compressed as text of a script."""

import json
import zlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

_SAFE = {code: code + 256 for code in map(ord, "\0\r<")}
"""Characters that HTML would read as others, and what stands for them in the page."""

SHORTEST = 60
"""Characters of JSON of the shortest part that is written once."""


def packed(data, default: Callable | None = None) -> str:
    """Return the data as compressed JSON. Equal data give equal text.

    `default` returns what stands for data that JSON does not have.
    """
    return packed_bytes(_json(shared(json.loads(_json(data, default)))).encode())


def _json(data, default: Callable | None = None) -> str:
    return json.dumps(
        data, ensure_ascii=False, separators=(",", ":"), sort_keys=True, default=default
    )


def shared(data) -> tuple[list, Any]:
    """Return objects and lists that are in the data more than once, and the data with references.

    A reference `{"=": i}` stands for the i-th of these parts, which have references to those before
    them. zlib alone finds what repeats within 32 KB: specs of charts take 30 % more without this.
    """
    occurrences, places, parts = Counter[str](), dict[str, int](), []

    def count(node) -> None:
        text = _json(node) if isinstance(node, dict | list) else ""
        if len(text) >= SHORTEST:
            occurrences[text] += 1
            if occurrences[text] == 1:
                for inner in node.values() if isinstance(node, dict) else node:
                    count(inner)

    def written(node):
        if not isinstance(node, dict | list):
            return node
        is_list = isinstance(node, list)
        whole = list(map(written, node)) if is_list else {k: written(v) for k, v in node.items()}
        text = _json(node)
        if occurrences[text] < 2:
            return whole
        if text not in places:
            places[text] = len(parts)
            parts.append(whole)
        return {"=": places[text]}

    count(data)
    return parts, written(data)


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
