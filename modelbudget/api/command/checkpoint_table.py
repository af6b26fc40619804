"""A checkpoint held against the formula, as a table and as the line that sums it up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelbudget.api.command.text_table import Table
from modelbudget.common.number_format import count

if TYPE_CHECKING:
    from modelbudget.api.checkpoint_tensors import Checkpoint


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
