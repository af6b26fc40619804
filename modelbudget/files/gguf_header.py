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

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_HEADER = 2**27
"""Bytes of the longest header that is read: vocabularies take up to some tens of millions."""
MAX_PAIRS, MAX_TENSORS, MAX_ITEMS = 2**16, 2**18, 2**22
"""Pairs of metadata, tensors, and items of an array, of the longest header that is read."""
MAX_DIMENSIONS = 4
MAX_KEPT = 4096
"""Items of the longest array that is kept; of a longer one the number is."""
SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
"""Number of a type of values → its letter in `struct`."""
STRING, ARRAY = 8, 9
ALIGNMENT = "general.alignment"


class GgufTensor(NamedTuple):
    """A tensor of a file: shape (…, rows, row), type, bytes, and its place after the header."""

    name: str
    shape: tuple[int, ...]
    type: str
    n_bytes: int
    offset: int


class Items(NamedTuple):
    """The number of items of an array that is too long to be kept."""

    n: int


class GgufHeader(NamedTuple):
    """What a file says before its tensors, which begin at `data_start`; `n_bytes`: of the file."""

    path: Path
    version: int
    metadata: dict[str, Any]
    tensors: list[GgufTensor]
    data_start: int
    alignment: int
    n_bytes: int


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
        tensors, names = [], set()
        for _ in range(n_tensor):
            tensors.append(self._tensor(alignment))
            if tensors[-1].name in names:
                raise self._wrong(f"tensor {show(tensors[-1].name)}: is there twice")
            names.add(tensors[-1].name)
        start = -(-self.file.tell() // alignment) * alignment
        header = GgufHeader(self.path, version, metadata, tensors, start, alignment, self.n_bytes)
        self._check_places(header)
        return header

    def _check_places(self, header: GgufHeader) -> None:
        """Raise InputError unless tensors lie one after another, and all in the file."""
        end = 0
        for tensor in header.tensors:
            if tensor.offset != end:
                place = f"begins at {tensor.offset:,}; must begin at {end:,}"
                raise self._wrong(f"tensor {show(tensor.name)}: {place}")
            end = -(-(end + tensor.n_bytes) // header.alignment) * header.alignment
        last = header.tensors[-1:]
        whole = header.data_start + sum(tensor.offset + tensor.n_bytes for tensor in last)
        if self.n_bytes < whole:
            raise self._wrong(f"{self.n_bytes:,} bytes; its tensors end at {whole:,}: it is cut")

    def _tensor(self, alignment: int) -> GgufTensor:
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
        return GgufTensor(name, shape, type_name, block.n_bytes(shape), offset)

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
            return Items(n)
        if item == STRING and n > MAX_KEPT:
            for _ in range(n):
                self._bytes(self._number("Q"))
            return Items(n)
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
