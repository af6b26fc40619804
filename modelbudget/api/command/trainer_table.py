"""The table of `modelbudget MODEL --trainer dpo`."""

from modelbudget.api.command import output
from modelbudget.api.command.text_table import Table
from modelbudget.api.lines_of_run import line_of_settings
from modelbudget.api.trainers import LOSS, Trained
from modelbudget.report.charts.format import count, si_bytes


def show(found: Trained, as_json: bool, as_csv: bool, as_markdown: bool) -> None:
    """Print the parts, as a table or as data."""
    if as_json:
        output.print_json(found.as_dict())
    elif as_csv:
        output.print_csv(found.rows())
    else:
        output.print_tables([of_trainer(found)], as_markdown)
        output.print_note(LOSS)


def of_trainer(found: Trained) -> Table:
    """Return what is always there, the moments of a step, and the peak."""
    rows = [(one.name, si_bytes(one.n_bytes), one.note) for one in found.parts if not one.is_moment]
    always = sum(one.n_bytes for one in found.parts if not one.is_moment)
    rows.append(("= always there", si_bytes(always), ""))
    moments = [one for one in found.parts if one.is_moment]
    largest = max(one.n_bytes for one in moments)
    for one in moments:
        mark = ", the largest moment" if one.n_bytes == largest else ""
        rows.append((f"+ {one.name}", si_bytes(one.n_bytes), f"{one.note}{mark}"))
    rows.append(("= peak", si_bytes(found.needed), f"{count(found.needed)} bytes"))
    if found.accelerator is not None:
        of = f"of {si_bytes(found.accelerator.bytes)}, {found.accelerator.name}"
        rows.append((f"{found.grade}", si_bytes(found.needed), of))
    if found.largest_batch is not None:
        rows.append(("largest batch", count(found.largest_batch), "without margins"))
    unit = "pairs of texts" if found.trainer == "dpo" else "answers"
    title = f"{found.model}, {found.trainer.upper()} of {count(found.run.batch)} {unit}; "
    return Table(title + line_of_settings(found.run), ("", "bytes", "what"), rows, texts=("what",))
