"""Safetensors files next to a config.json: names, shapes and dtypes, without reading any value.

The format (https://huggingface.co/docs/safetensors): 8 bytes with the length of a header, little
endian, the header as JSON, and the values.
"""

import json
import math
import re
from pathlib import Path
from typing import Any, NamedTuple

from modelbudget.common.errors import InputError
from modelbudget.common.files import read_text
from modelbudget.common.mistakes import show

HEADER, INDEX = ".safetensors", ".safetensors.index.json"
NAMES = ("model", "pytorch_model")
"""Names of the files that a model's own weights have; others hold adapters or copies."""
MAX_HEADER = 100_000_000
"""Bytes of the longest header that the format allows."""
_SHARD = re.compile(r"(.*)-\d+-of-\d+\.safetensors")


class Tensor(NamedTuple):
    """One tensor of a checkpoint; `dtype` as the format writes it: F32, BF16, F8_E4M3, …"""

    name: str
    dtype: str
    shape: tuple[int, ...]
    n_bytes: int

    @property
    def elements(self) -> int:
        """The number of its values."""
        return math.prod(self.shape)


class Weights(NamedTuple):
    """What the files of a checkpoint state.

    `tensors` is None if a shard that the index names is not there; `total_bytes` is then what the
    index gives for all of them.
    """

    path: Path
    tensors: list[Tensor] | None
    total_bytes: int


def find(name: str) -> Path | None:
    """Return the index or the file with weights that a path means: itself, or in a folder.

    None if the path is neither, or if the folder has none.
    """
    path = Path(name)
    if name.endswith((HEADER, INDEX)):
        return path
    places = [path / f"{stem}{ending}" for stem in NAMES for ending in (INDEX, HEADER)]
    return next((place for place in places if place.is_file()), None)


def read(path: Path) -> Weights:
    """Read an index with its shards, or one file with the other shards of its checkpoint.

    Raises InputError if a file is not what its name says.
    """
    if path.name.endswith(INDEX):
        return _of_index(path)
    shard = _SHARD.fullmatch(path.name)
    files = sorted(path.parent.glob(f"{shard[1]}-*-of-*{HEADER}")) if shard else [path]
    tensors = [tensor for file in files for tensor in header(file)]
    return Weights(path, tensors, sum(tensor.n_bytes for tensor in tensors))


def _of_index(path: Path) -> Weights:
    try:
        content = json.loads(read_text(path))
        names = {str(name) for name in content["weight_map"].values()}
        n_bytes = int(content["metadata"]["total_size"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise InputError([f"{path}: no index with weight_map and total_size ({reason})"]) from None
    if outside := sorted(name for name in names if Path(name).name != name):
        raise InputError([f"{path}: weight_map: {show(outside[0])}: must be in the same folder"])
    files = [path.with_name(name) for name in sorted(names)]
    if not all(file.is_file() for file in files):
        return Weights(path, None, n_bytes)
    tensors = [tensor for file in files for tensor in header(file)]
    return Weights(path, tensors, n_bytes)


def header(path: Path) -> list[Tensor]:
    """Return the tensors of one file. Raises InputError that names the file and what is wrong."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= MAX_HEADER:
                raise ValueError(f"its header has {length:,} bytes; allowed: up to {MAX_HEADER:,}")
            content = json.loads(file.read(length))
        return [_tensor(name, value) for name, value in content.items() if name != "__metadata__"]
    except OSError as error:
        raise InputError([f"{path}: {error.strerror}"]) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError([f"{path}: no safetensors file: {error}"]) from None


def _tensor(name: str, value: Any) -> Tensor:
    start, end = value["data_offsets"]
    shape = tuple(value["shape"])
    if not all(type(size) is int and size >= 0 for size in (*shape, start, end)) or end < start:
        raise ValueError(f"{show(name)}: shape and data_offsets must be whole numbers from 0")
    return Tensor(name, str(value["dtype"]), shape, end - start)
