"""Safetensors files next to a config.json: names, shapes and dtypes, without reading any value.

The format (https://huggingface.co/docs/safetensors): 8 bytes with the length of a header, little
endian, the header as JSON, and the values, one tensor after another without gaps.
"""

import glob
import math
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

from modelbudget.common.bounded_json import parse_json
from modelbudget.common.errors import InputError
from modelbudget.common.files import read_text
from modelbudget.common.validation_messages import show

HEADER, INDEX = ".safetensors", ".safetensors.index.json"
NAMES = ("model", "pytorch_model")
"""Names of the files that a model's own weights have; others hold adapters or copies."""
MAX_HEADER = 2**24
"""Bytes of the longest header that is read: 150,000 tensors; the format allows 100 MB."""
MAX_JSON = 2**25
"""Bytes of the longest index, and of all headers of a checkpoint: 250,000 tensors."""
MAX_DIMENSIONS = 64
"""Dimensions of a tensor in torch."""
MAX_SIZE = 2**63 - 1
BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64,
}  # fmt: skip
"""dtype → bits of an element; `Dtype` in safetensors/src/tensor.rs of huggingface/safetensors."""
_SHARD = re.compile(r"(.*)-(\d{1,6})-of-(\d{1,6})\.safetensors")


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
    index gives for all of them. `lost` says which shards are not there where no index was read.
    """

    tensors: list[Tensor] | None
    total_bytes: int
    lost: str | None = None


def find(name: str) -> Path | None:
    """Return the index or the file with weights that a path means: itself, or in a folder.

    None if the path is neither, or if the folder has none.
    """
    path = Path(name)
    if name.endswith((HEADER, INDEX)):
        return path
    places = [path / f"{stem}{ending}" for stem in NAMES for ending in (INDEX, HEADER)]
    return next((place for place in places if os.path.isfile(place)), None)


def read(path: Path) -> Weights:
    """Read an index with its shards, or one file with the other shards of its checkpoint.

    Raises InputError if a file is not what its name says.
    """
    if path.name.endswith(INDEX):
        return _of_index(path)
    shard = _SHARD.fullmatch(path.name)
    same = f"{glob.escape(shard[1])}-*-of-{shard[3]}{HEADER}" if shard else ""
    files = sorted(path.parent.glob(same)) if same else [path]
    tensors = _of_files(files)
    lost = _lost(shard, files) if shard else None
    return Weights(tensors, sum(tensor.n_bytes for tensor in tensors), lost)


def _lost(shard: re.Match[str], files: list[Path]) -> str | None:
    """Say which shards of a checkpoint are not among its files; None if all are."""
    stem, number, last = shard.groups()
    numbers = {int(match[2]) for file in files if (match := _SHARD.fullmatch(file.name))}
    if not (lost := [i for i in range(1, int(last) + 1) if i not in numbers]):
        return None
    name = f"{stem}-{lost[0]:0{len(number)}}-of-{last}{HEADER}"
    return f"{len(lost):,} of {int(last):,} shards are not there, the first {show(name)}"


def _of_files(files: list[Path]) -> list[Tensor]:
    """Return the tensors of all shards. Raises InputError if two have a tensor of the same name."""
    place: dict[str, Path] = {}
    tensors: list[Tensor] = []
    n_bytes = 0
    for file in files:
        n_bytes += _header_length(file)
        if n_bytes > MAX_JSON:
            raise InputError([f"{file}: headers of more than {MAX_JSON:,} bytes in all shards"])
        for tensor in header(file):
            if tensor.name in place:
                other_file = place[tensor.name].name
                raise InputError([f"{file}: {show(tensor.name)}: is in {other_file} too"])
            place[tensor.name] = file
            tensors.append(tensor)
    return tensors


def _of_index(path: Path) -> Weights:
    try:
        content = parse_json(read_text(path, MAX_JSON))
        shards = {str(tensor): str(file) for tensor, file in content["weight_map"].items()}
        n_bytes = int(content["metadata"]["total_size"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise InputError([f"{path}: no index with weight_map and total_size ({reason})"]) from None
    if not 0 <= n_bytes <= MAX_SIZE:
        raise InputError([f"{path}: metadata.total_size = {show(n_bytes)}: must be a size"])
    names = sorted(set(shards.values()))
    if outside := [name for name in names if not name or Path(name).name != name or "\0" in name]:
        raise InputError([f"{path}: weight_map: {show(outside[0])}: must be in the same folder"])
    files = [path.with_name(name) for name in names]
    if not all(map(os.path.isfile, files)):
        return Weights(None, n_bytes)
    tensors = _of_files(files)
    if lost := shards.keys() - {tensor.name for tensor in tensors}:
        name = min(lost)
        raise InputError([f"{path}: weight_map: {show(name)}: is not in {show(shards[name])}"])
    return Weights(tensors, n_bytes)


def _header_length(path: Path) -> int:
    """Return the length of a header. Raises InputError if it is no safetensors file."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
    except OSError as error:
        raise InputError([f"{path}: {error.strerror}"]) from None
    if not 2 <= length <= MAX_HEADER:
        about = f"its header has {length:,} bytes; allowed: from 2 to {MAX_HEADER:,}"
        raise InputError([f"{path}: no safetensors file: {about}"])
    return length


def header(path: Path) -> list[Tensor]:
    """Return the tensors of one file. Raises InputError that names the file and what is wrong.

    The values of the tensors must fill the rest of the file, without gaps.
    """
    length = _header_length(path)
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(8)
            content = parse_json(file.read(length).decode("utf-8"))
        placed = [_tensor(name, value) for name, value in content.items() if name != "__metadata__"]
        _check_places(placed, size - 8 - length)
    except OSError as error:
        raise InputError([f"{path}: {error.strerror}"]) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError([f"{path}: no safetensors file: {error}"]) from None
    return [tensor for tensor, _ in placed]


def _tensor(name: str, value: Any) -> tuple[Tensor, int]:
    """Return a tensor and where it starts. Raises ValueError unless shape and bytes agree."""
    start, end = value["data_offsets"]
    shape = tuple(value["shape"])
    if not all(type(size) is int and 0 <= size <= MAX_SIZE for size in (*shape, start, end)):
        raise ValueError(f"{show(name)}: shape and data_offsets must be whole numbers from 0")
    if len(shape) > MAX_DIMENSIONS:
        raise ValueError(f"{show(name)}: {len(shape)} dimensions; allowed: {MAX_DIMENSIONS}")
    dtype = value["dtype"]
    if dtype not in BITS:
        raise ValueError(f"{show(name)}: dtype = {show(dtype)}; allowed: {', '.join(BITS)}")
    tensor = Tensor(name, dtype, shape, end - start)
    if 8 * tensor.n_bytes != tensor.elements * BITS[dtype]:
        about = f"{show(list(shape))} of {dtype}, with {tensor.n_bytes:,} bytes in data_offsets"
        raise ValueError(f"{show(name)}: {about}")
    return tensor, start


def _check_places(placed: list[tuple[Tensor, int]], n_bytes: int) -> None:
    """Raise ValueError unless tensors lie one after another and fill `n_bytes`."""
    end = 0
    for tensor, start in sorted(placed, key=lambda place: (place[1], place[0].n_bytes)):
        if start != end:
            raise ValueError(
                f"{show(tensor.name)}: starts at {start:,}, the one before ends at {end:,}"
            )
        end += tensor.n_bytes
    if end != n_bytes:
        raise ValueError(f"tensors of {end:,} bytes, and {n_bytes:,} bytes after the header")
