"""The header of a GGUF file: metadata, and name, shape and type of each tensor. No value is read.

The format (ggml/docs/gguf.md in ggml-org/ggml): magic, version, two counts; pairs of key and value;
for each tensor its name, sizes (the row first), type and offset; then the tensors, each at a
multiple of the alignment. Numbers are little endian.
"""

import os
import struct
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from modelbudget.common.errors import InputError
from modelbudget.common.validation_messages import show
from modelbudget.files.gguf_formats import gguf_formats
from modelbudget.huggingface.checkpoint_files import Tensor

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_HEADER = 2**27
"""Bytes of the longest header that is read: vocabularies take up to some tens of millions."""
MAX_PAIRS, MAX_TENSORS, MAX_ITEMS = 2**16, 2**18, 2**22
"""Pairs of metadata, tensors, and items of an array, of the longest header that is read."""
MAX_DIMENSIONS = 4
MAX_KEPT = 4096
"""Items of the longest array that is kept; longer ones are None."""
SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
"""Number of a type of values → its letter in `struct`."""
STRING, ARRAY = 8, 9
ALIGNMENT = "general.alignment"


class GgufHeader(NamedTuple):
    """What a file has before its tensors (…, rows, row), which begin at `data_start`."""

    path: Path
    metadata: dict[str, Any]
    tensors: list[Tensor]
    data_start: int
    alignment: int


def read_header(path: Path) -> GgufHeader:
    """Read a header. Raises InputError if the file is not what its name says, or is cut."""
    try:
        with path.open("rb") as file:
            return _Reader(path, file).header()
    except OSError as error:
        raise InputError([f"{path}: cannot be read: {error.strerror}"]) from None


class _Reader:
    """Reads a header from its beginning; nothing beyond the file or MAX_HEADER."""

    def __init__(self, path: Path, file: BinaryIO):
        self.path, self.file = path, file
        self.n_bytes = os.fstat(file.fileno()).st_size
        self.left = min(self.n_bytes, MAX_HEADER)

    def header(self) -> GgufHeader:
        if self.left < len(MAGIC) or self._bytes(len(MAGIC)) != MAGIC:
            raise self._wrong(f"does not begin with {MAGIC.decode()}: no GGUF file")
        version = self._number("I")
        if version not in VERSIONS:
            raise self._wrong(f"version {version}: allowed: {', '.join(map(str, VERSIONS))}")
        n_tensor, n_pair = self._count("tensors", MAX_TENSORS), self._count("pairs", MAX_PAIRS)
        metadata: dict[str, Any] = {}
        for _ in range(n_pair):
            key = self._text()
            if key in metadata:
                raise self._wrong(f"{show(key)}: is there twice")
            metadata[key] = self._value(self._number("I"))
        alignment = metadata.get(ALIGNMENT, 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise self._wrong(f"{ALIGNMENT} = {show(alignment)}: must be a power of two")
        placed, names = [], set()
        for _ in range(n_tensor):
            tensor, offset = self._tensor()
            placed.append((tensor, offset))
            if tensor.name in names:
                raise self._wrong(f"tensor {show(tensor.name)}: is there twice")
            names.add(tensor.name)
        start = -(-self.file.tell() // alignment) * alignment
        self._check_places(placed, start, alignment)
        tensors = [tensor for tensor, _ in placed]
        return GgufHeader(self.path, metadata, tensors, start, alignment)

    def _check_places(self, placed: list[tuple[Tensor, int]], start: int, alignment: int) -> None:
        """Raise InputError unless tensors lie one after another, and all in the file."""
        end = whole = 0
        for tensor, offset in placed:
            if offset != end:
                place = f"begins at {offset:,}; must begin at {end:,}"
                raise self._wrong(f"tensor {show(tensor.name)}: {place}")
            whole = end + tensor.n_bytes
            end = -(-whole // alignment) * alignment
        if self.n_bytes < start + whole:
            ends = f"its tensors end at {start + whole:,}: it is cut"
            raise self._wrong(f"{self.n_bytes:,} bytes; {ends}")

    def _tensor(self) -> tuple[Tensor, int]:
        """Return a tensor and its place after the header."""
        name = self._text()
        n_dimension = self._number("I")
        if n_dimension > MAX_DIMENSIONS:
            raise self._wrong(f"tensor {show(name)}: {n_dimension} dimensions; at most 4")
        shape = tuple(reversed([self._number("Q") for _ in range(n_dimension)]))
        number, offset = self._number("I"), self._number("Q")
        type_name = gguf_formats().type_names.get(number)
        if type_name is None:
            raise self._wrong(f"tensor {show(name)}: type {number} is not known here")
        block = gguf_formats().types[type_name]
        if not shape or min(shape) < 1 or max(shape) >= 2**48 or shape[-1] % block.numbers:
            what = f"shape {list(shape)}: rows of {type_name} are multiples of {block.numbers}"
            raise self._wrong(f"tensor {show(name)}: {what}")
        return Tensor(name, type_name, shape, block.n_bytes(shape)), offset

    def _value(self, number: int, depth: int = 0) -> Any:
        if number in SCALARS:
            return self._number(SCALARS[number])
        if number == STRING:
            return self._text()
        if number != ARRAY or depth:
            raise self._wrong(f"a value of type {number}, which is not known here")
        item, n = self._number("I"), self._count("items of an array", MAX_ITEMS)
        if item in SCALARS and n > MAX_KEPT:
            self._bytes(n * struct.calcsize(SCALARS[item]))
            return None
        if item == STRING and n > MAX_KEPT:
            for _ in range(n):
                self._bytes(self._number("Q"))
            return None
        return [self._value(item, depth + 1) for _ in range(n)]

    def _count(self, what: str, most: int) -> int:
        n = self._number("Q")
        if n > most:
            raise self._wrong(f"{n:,} {what}; at most {most:,} are read")
        return n

    def _text(self) -> str:
        return self._bytes(self._number("Q")).decode(errors="replace")

    def _number(self, code: str) -> Any:
        (value,) = struct.unpack("<" + code, self._bytes(struct.calcsize("<" + code)))
        return value

    def _bytes(self, n: int) -> bytes:
        if n > self.left:
            of = "the file" if self.n_bytes <= MAX_HEADER else f"{MAX_HEADER:,} bytes"
            raise self._wrong(f"its header does not end within {of}")
        self.left -= n
        return self.file.read(n)

    def _wrong(self, what: str) -> InputError:
        return InputError([f"{self.path}: {what}"])


def header_bytes(tensors: dict[str, tuple[int, ...]]) -> int:
    """Return the bytes of a header without its metadata: counts, and name, sizes, type, offset."""
    of_tensors = (8 + len(name) + 4 + 8 * len(shape) + 4 + 8 for name, shape in tensors.items())
    return 24 + sum(of_tensors)
