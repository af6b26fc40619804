"""A checkpoint held against the formula, as a table and as the line that sums it up."""

from modelbudget.api.checkpoint_tensors import Checkpoint
from modelbudget.api.command.text_table import Table
from modelbudget.report.charts.format import count


def of_differences(found: Checkpoint) -> list[Table]:
    """Return the parts that differ, each with its tensors below, and the tensors; none if equal."""
    rows: list[tuple[str, ...]] = []
    for part in found.differences:
        numbers = (count(part.predicted), count(part.stored), f"{part.difference:+,}")
        rows.append((f"{part.name}, {part.quantity}", *numbers))
        rows += [(f"  {line}", "", "", "") for line in part.tensors]
    columns = ("part, and its tensors", "predicted", "stored", "difference")
    title = f"{found.path.name} differs from the formula"
    tables = [Table(title, columns, rows)] if rows else []
    return [*tables, *_of_names(found)]


def _of_names(found: Checkpoint) -> list[Table]:
    """Return the tensors whose name or shape is not that of the class."""
    if not found.loading or not found.loading.mismatches:
        return []
    rows = [
        (one.name, *("none" if shape is None else str(list(shape)) for shape in one[1:]))
        for one in found.loading.mismatches
    ]
    title = f"{found.path.name} differs from {found.loading.kind}"
    return [Table(title, ("tensor", "of the class", "stored"), rows)]


def summary(found: Checkpoint) -> str:
    """Return how many parts agree, and what was left out."""
    if found.refusal:
        return f"{found.path}: not compared: {found.refusal}"
    dtypes = ", ".join(f"{count(n)} in {name}" for name, n in found.dtypes.items())
    tensors = f"tensors: {dtypes}" if dtypes else "its tensors are not here, only the index"
    if found.n_bytes is not None:
        bits = 8 * found.n_bytes / max(sum(part.stored for part in found.parts), 1)
        tensors += f"; {count(found.n_bytes)} bytes, {bits:.2f} bits a parameter"
    agree = f"{len(found.parts) - len(found.differences)} of {len(found.parts)} parts agree"
    left_out = f"; {found.left_out} buffers or copies left out" if found.left_out else ""
    return f"{found.path}: {agree} with the formula ({tensors}{left_out}){_names(found)}"


def _names(found: Checkpoint) -> str:
    """Return how many names and shapes differ from the class, or why they were not compared."""
    if found.loading is None:
        return "; names and shapes: not compared with a class"
    if found.loading.refusal:
        return f"; names and shapes: not compared: {found.loading.refusal}"
    n = len(found.loading.mismatches)
    differ = f"{n} differ from" if n else "those of"
    return f"; names and shapes: {differ} {found.loading.kind}"
