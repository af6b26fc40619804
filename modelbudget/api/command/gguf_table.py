"""`modelbudget MODEL --file gguf --format Q4_K_M`: what llama.cpp writes of a model."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from modelbudget.api.command.text_table import Table
from modelbudget.common.number_format import count
from modelbudget.files.gguf_formats import gguf_formats

if TYPE_CHECKING:
    from modelbudget.api.command.options import Output
    from modelbudget.api.gguf import GgufFile
    from modelbudget.api.model import Model


_LAYER = re.compile(r"blk\.\d+\.")


def show(model: Model, format_name: str, imatrix: bool, printed: Output) -> None:
    """Print the tensors of a file by name and type, and its bytes. Raises InputError."""
    from modelbudget.api.gguf import gguf_file

    file = gguf_file(model, format_name, imatrix)
    content = {
        "model": file.model,
        "format": file.format,
        "imatrix": imatrix,
        "tensor_bytes": file.tensor_bytes,
        "header_bytes_without_metadata": file.header_bytes,
        "bits_per_parameter": round(file.bits, 4),
        "tensors": file.rows(),
    }
    rows = [row | {"shape": "x".join(map(str, row["shape"]))} for row in file.rows()]
    notes = [
        f"The file has {count(file.tensor_bytes + file.header_bytes)} bytes and its metadata, "
        f"mostly the tokenizer: {count(file.tensor_bytes)} of tensors, "
        f"{count(file.header_bytes)} of their descriptions; {file.bits:.2f} bits a parameter.",
        "Rules of llama.cpp as in llama-cpp-python 0.3.36 (configs/gguf.yaml).",
    ]
    if file.format in gguf_formats().with_imatrix and not imatrix:
        notes.append(
            f"{file.format}: llama.cpp writes it with an importance matrix alone: --imatrix."
        )
    printed.show(content, rows, [of_tensors(file, imatrix)], notes)


def of_tensors(file: GgufFile, imatrix: bool) -> Table:
    """Return a row for each name and type, layers together."""
    rows: dict[tuple[str, str], list[int]] = {}
    for tensor in file.tensors:
        name = _LAYER.sub("blk.*.", tensor.name)
        of_name = rows.setdefault((name, tensor.dtype), [0, 0])
        of_name[0] += 1
        of_name[1] += tensor.n_bytes
    whole = sum(n_bytes for _, n_bytes in rows.values())
    cells = [
        (name, type_name, count(n), count(n_bytes))
        for (name, type_name), (n, n_bytes) in rows.items()
    ]
    cells.append(("all", "", count(len(file.tensors)), count(whole)))
    shares = tuple(n_bytes / whole for _, n_bytes in rows.values())
    with_matrix = " with an importance matrix" if imatrix else ""
    by = f"quantised by llama.cpp ({file.architecture})"
    title = f"{file.model} as {file.format}{with_matrix}, {by}"
    columns = ("tensor", "type", "tensors", "bytes")
    return Table(title, columns, cells, shares, texts=("type",))
