"""GGUF files: what llama.cpp would write of a model, and what a file has against the formula."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from modelbudget.api.checkpoint_tensors import Checkpoint, Part, describe
from modelbudget.api.chosen_model import ChosenModel
from modelbudget.api.frames import Frames
from modelbudget.api.predictions import predictions
from modelbudget.common.errors import InputError
from modelbudget.files.gguf_formats import gguf_formats, types_of
from modelbudget.files.gguf_header import header_bytes, read_header
from modelbudget.files.gguf_model import stored_components
from modelbudget.files.gguf_tensors import (
    architecture_of_class,
    component_of,
    joined,
    quantised,
    shapes_of,
)
from modelbudget.huggingface.checkpoint_files import Tensor

ALIGNMENT = 32


@dataclass(frozen=True)
class GgufFile(Frames):
    """A file that llama.cpp's quantiser writes: type and bytes of each tensor.

    `header_bytes`: counts and descriptions of tensors. The metadata between them, mostly the
    tokenizer, is not known.
    """

    model: str
    format: str
    architecture: str
    components: tuple[str, ...]
    tensors: tuple[Tensor, ...]
    header_bytes: int

    @property
    def tensor_bytes(self) -> int:
        """The bytes of all tensors, each filled up to the alignment."""
        return sum(-(-tensor.n_bytes // ALIGNMENT) * ALIGNMENT for tensor in self.tensors)

    @property
    def bits(self) -> float:
        """The bits of a parameter."""
        n_bytes = sum(tensor.n_bytes for tensor in self.tensors)
        return 8 * n_bytes / sum(tensor.elements for tensor in self.tensors)

    def rows(self) -> list[dict]:
        """Return one row for each tensor."""
        return [
            {
                "model": self.model,
                "format": self.format,
                "tensor": tensor.name,
                "shape": list(tensor.shape),
                "component": component_of(tensor.name, self.architecture, self.components),
                "type": tensor.dtype,
                "bytes": tensor.n_bytes,
            }
            for tensor in self.tensors
        ]


def gguf_file(model: ChosenModel, name: str, imatrix: bool = False) -> GgufFile:
    """Return the file of a model in a format such as Q4_K_M, by llama.cpp's rules.

    `imatrix`: quantised with an importance matrix, which changes some types. Raises InputError for
    a format that is not known, or a model whose tensors have no names of llama.cpp here.
    """
    known = gguf_formats().format_named(name)
    architecture = architecture_of_class(model.base.transformers)
    allowed = gguf_formats().architectures[architecture].formats
    if allowed and known not in allowed:
        line = f"`gguf={known}`: not known of {architecture}; allowed: {', '.join(allowed)}"
        raise InputError([line])
    a = model.architecture
    shapes = shapes_of(a, architecture)
    types = types_of(known, shapes, quantised(a, architecture, imatrix))
    tensors = tuple(
        Tensor(tensor, types[tensor], shape, gguf_formats().types[types[tensor]].n_bytes(shape))
        for tensor, shape in shapes.items()
    )
    predicted = predictions(model, ["parameters"])["parameters"]
    components = tuple(part.name for part in predicted.components if part.value)
    return GgufFile(model.label, known, architecture, components, tensors, header_bytes(shapes))


def compare_gguf(model: ChosenModel, path: Path) -> Checkpoint:
    """Hold the tensors of a file against the formula, by component. Raises InputError."""
    header = read_header(path)
    architecture = header.metadata["general.architecture"]
    predicted = predictions(model, ["parameters"])["parameters"]
    numbers = {part.name: part.value for part in predicted.components if part.value}
    stored = stored_components(header, numbers)
    expected = joined(numbers, architecture)
    parts = [
        Part(name, "parameters", expected[name], stored.numbers[name],
             describe(stored.tensors.get(name, ())))
        for name in dict.fromkeys((*expected, *stored.tensors))
    ]  # fmt: skip
    parts += [
        Part(part.name, "parameters", 0, part.elements, describe([part])) for part in stored.unknown
    ]
    types = dict(Counter(part.dtype for part in header.tensors))
    n_bytes = sum(part.n_bytes for part in header.tensors)
    return Checkpoint(model.label, path, tuple(parts), types, len(stored.tables), n_bytes=n_bytes)
