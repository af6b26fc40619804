"""The table of `modelbudget MODEL --trainer dpo`."""

from collections.abc import Sequence

from modelbudget.api.command.options import Output
from modelbudget.api.command.tables_of_fit import of_changes
from modelbudget.api.command.text_table import Table
from modelbudget.api.trainers import Trained
from modelbudget.common.number_format import count, counted, si_bytes


def show(trained: Trained, of_device: Sequence[str], printed: Output) -> None:
    """Print the parts, as a table or as data; `of_device`: lines about the device's settings."""
    of_less = [of_changes(trained)] if trained.changes else []
    tables = [of_trainer(trained), *of_less]
    notes = trained.note, *trained.notes, *of_device
    printed.show(trained.as_dict(), trained.rows(), tables, notes)


def of_trainer(trained: Trained) -> Table:
    """Return what is always there, the moments of a step, and the peak."""
    moments = [part for part in trained.parts if part.is_moment]
    always = [part for part in trained.parts if not part.is_moment]
    rows = [(part.name, si_bytes(part.n_bytes), part.note) for part in always]
    largest = max(part.n_bytes for part in moments)
    rows.append(("= always there", si_bytes(trained.needed - largest), ""))
    for part in moments:
        mark = ", the largest moment" if part.n_bytes == largest else ""
        rows.append((f"+ {part.name}", si_bytes(part.n_bytes), f"{part.note}{mark}"))
    rows.append(("= peak", si_bytes(trained.needed), f"{count(trained.needed)} bytes"))
    if trained.accelerator is not None:
        of = f"of {si_bytes(trained.accelerator.bytes)}, {trained.accelerator.name}"
        rows.append((f"{trained.grade}", si_bytes(trained.needed), of))
    if trained.largest_batch is not None:
        rows.append(("largest batch", count(trained.largest_batch), "without margins"))
    is_dpo = trained.trainer == "dpo"
    items = counted(trained.run.batch, "pair" if is_dpo else "answer") + " of texts" * is_dpo
    title = f"{trained.model}, {trained.trainer.upper()} of {items}; "
    return Table(title + trained.settings, ("", "bytes", "what"), rows, texts=("what",))
