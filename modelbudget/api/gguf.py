"""GGUF files: what llama.cpp would write of a model, and what a file has against the formula."""

from collections import Counter
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from modelbudget.api.checkpoint_tensors import Checkpoint, parts_of
from modelbudget.api.chosen_model import ChosenModel
from modelbudget.api.frames import Frames
from modelbudget.common.errors import InputError
from modelbudget.files.gguf_formats import gguf_formats, types_of
from modelbudget.files.gguf_header import header_bytes, read_header
from modelbudget.files.gguf_tensors import (
    architecture_of_class,
    layer_of,
    quantised,
    tensors_of,
)
from modelbudget.huggingface.checkpoint_files import Tensor

ALIGNMENT = 32


@dataclass(frozen=True)
class GgufFile(Frames):
    """A file that llama.cpp's quantiser writes: component, type and bytes of each tensor.

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

    def __repr__(self) -> str:
        return f"<{self.model} as {self.format}: {self.tensor_bytes:,} bytes of tensors>"

    def rows(self) -> list[dict]:
        """Return one row for each tensor."""
        return [
            {
                "model": self.model,
                "format": self.format,
                "tensor": tensor.name,
                "shape": list(tensor.shape),
                "component": component,
                "type": tensor.dtype,
                "bytes": tensor.n_bytes,
            }
            for component, tensor in zip(self.components, self.tensors, strict=True)
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
    named = tensors_of(a, architecture)
    shapes = {name: tensor.shape for name, tensor in named.items()}
    types = types_of(known, shapes, quantised(a, architecture, imatrix))
    tensors = tuple(
        Tensor(tensor, types[tensor], shape, gguf_formats().types[types[tensor]].n_bytes(shape))
        for tensor, shape in shapes.items()
    )
    components = tuple(tensor.component for tensor in named.values())
    return GgufFile(model.label, known, architecture, components, tensors, header_bytes(shapes))


def compare_gguf(model: ChosenModel, path: Path) -> Checkpoint:
    """Hold the tensors of a file against those of the model, by component. Raises InputError."""
    header = read_header(path)
    a: Any = model.architecture
    names = {tensor.name for tensor in header.tensors}
    named = tensors_of(a, header.metadata["general.architecture"], names)
    predicted: Counter[str] = Counter()
    for component, shape in named.values():
        predicted[component] += prod(shape)
    stored: dict[str, list[Tensor]] = {}
    left_out = 0
    for tensor in header.tensors:
        is_table = tensor.name.removesuffix(".weight").rpartition(".")[2] in gguf_formats().tables
        if is_table or (layer_of(tensor.name) or 0) >= a.n_layer:  # of further layers
            left_out += 1
            continue
        name = named[tensor.name].component if tensor.name in named else tensor.name
        stored.setdefault(name, []).append(tensor)
    types = dict(Counter(tensor.dtype for tensor in header.tensors))
    n_bytes = sum(tensor.n_bytes for tensor in header.tensors)
    return Checkpoint(
        model.label, path, parts_of(predicted, stored), types, left_out, n_bytes=n_bytes
    )
