"""`modelbudget MODEL --file gguf --format Q4_K_M`: what llama.cpp writes of a model."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from modelbudget.api.checkpoint_tensors import Checkpoint
from modelbudget.api.command import output
from modelbudget.api.command.text_table import Table
from modelbudget.report.charts.format import count

if TYPE_CHECKING:
    from modelbudget.api.command.options import Output
    from modelbudget.api.gguf import GgufFile
    from modelbudget.api.model import Model


def of_differences(checkpoint: Checkpoint) -> list[Table]:
    """Return the parts that differ, each with its tensors below, and the tensors; none if equal."""
    rows: list[tuple[str, ...]] = []
    for part in checkpoint.differences:
        numbers = (count(part.predicted), count(part.stored), f"{part.difference:+,}")
        rows.append((f"{part.name}, {part.quantity}", *numbers))
        rows += [(f"  {line}", "", "", "") for line in part.tensors]
    columns = ("part, and its tensors", "predicted", "stored", "difference")
    title = f"{checkpoint.path.name} differs from the formula"
    tables = [Table(title, columns, rows)] if rows else []
    return [*tables, *_of_names(checkpoint)]


def _of_names(checkpoint: Checkpoint) -> list[Table]:
    """Return the tensors whose name or shape is not that of the class."""
    if not checkpoint.loading or not checkpoint.loading.mismatches:
        return []
    rows = [
        (mismatch.name, *("none" if shape is None else str(list(shape)) for shape in mismatch[1:]))
        for mismatch in checkpoint.loading.mismatches
    ]
    title = f"{checkpoint.path.name} differs from {checkpoint.loading.class_name}"
    return [Table(title, ("tensor", "of the class", "stored"), rows)]


def summary(checkpoint: Checkpoint) -> str:
    """Return how many parts agree, and what was left out."""
    if checkpoint.refusal:
        return f"{checkpoint.path}: not compared: {checkpoint.refusal}"
    dtypes = ", ".join(f"{count(n)} in {name}" for name, n in checkpoint.dtypes.items())
    tensors = f"tensors: {dtypes}" if dtypes else "its tensors are not here, only the index"
    if checkpoint.n_bytes is not None:
        bits = 8 * checkpoint.n_bytes / max(sum(part.stored for part in checkpoint.parts), 1)
        tensors += f"; {count(checkpoint.n_bytes)} bytes, {bits:.2f} bits a parameter"
    n = len(checkpoint.parts)
    agree = f"{n - len(checkpoint.differences)} of {n} parts agree"
    left_out = f"; {checkpoint.left_out} buffers or copies left out" if checkpoint.left_out else ""
    return f"{checkpoint.path}: {agree} with the formula ({tensors}{left_out}){_names(checkpoint)}"


def _names(checkpoint: Checkpoint) -> str:
    """Return how many names and shapes differ from the class, or why they were not compared."""
    if checkpoint.loading is None:
        return "; names and shapes: not compared with a class"
    if checkpoint.loading.refusal:
        return f"; names and shapes: not compared: {checkpoint.loading.refusal}"
    n = len(checkpoint.loading.mismatches)
    differ = f"{n} differ from" if n else "those of"
    return f"; names and shapes: {differ} {checkpoint.loading.class_name}"


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
    printed.show(content, rows, [of_tensors(file, imatrix)])
    if printed.is_tables:
        output.print_note(
            f"The file has {count(file.tensor_bytes + file.header_bytes)} bytes and its metadata, "
            f"mostly the tokenizer: {count(file.tensor_bytes)} of tensors, "
            f"{count(file.header_bytes)} of their descriptions; {file.bits:.2f} bits a parameter."
        )
        output.print_note("Rules of llama.cpp as in llama-cpp-python 0.3.36 (configs/gguf.yaml).")


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
