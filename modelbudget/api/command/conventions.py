"""`modelbudget conventions MODEL`: parameters and FLOPs per token as others count them."""

from modelbudget.api.command import options
from modelbudget.api.command.text_table import Table
from modelbudget.api.conventions import Counts
from modelbudget.api.model import model_with
from modelbudget.architecture.counting_conventions import FLOPS, PARAMETERS
from modelbudget.common.number_format import count, percent


@options.expanded
def run(
    name: options.Model,
    *,
    length: options.Length = None,
    set: options.Fields = None,
    printed: options.Output,
) -> None:
    """Count parameters and FLOPs of a training token as papers do."""
    settings = options.RunOptions(length=length, set=set).settings()
    counts = model_with(name, settings, {}).conventions(settings)
    tables = [_table(counts, unit) for unit in (PARAMETERS, FLOPS)]
    notes = [f"{convention}: {why}" for convention, why in counts.missing.items()]
    printed.show({"conventions": counts.rows()}, counts.rows(), tables, notes)


def _table(counts: Counts, unit: str) -> Table:
    rows = [
        (row["convention"], count(round(row["value"])), share, row["rule"])
        for row in counts.rows()
        for share in ["" if row["share"] is None else percent(row["share"])]
        if row["unit"] == unit
    ]
    if unit == PARAMETERS:
        title = f"{counts.model}: parameters by convention; predicted by formula"
        return Table(title, ("convention", "parameters", "of all", "rule"), rows, texts=("rule",))
    uses = "N: parameters that a token uses"  # not all experts
    title = f"FLOPs of training per token, length {count(counts.length)}; {uses}"
    return Table(title, ("convention", "FLOPs", "of executed", "rule"), rows, texts=("rule",))
