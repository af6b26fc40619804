"""`modelbudget conventions MODEL`: parameters and FLOPs per token as others count them."""

from modelbudget.api.command import options, output
from modelbudget.api.command.text_table import Table
from modelbudget.api.conventions import Counts
from modelbudget.api.model import model_with
from modelbudget.predict.counts_by_convention import FLOPS, PARAMETERS
from modelbudget.report.charts.format import count, percent


def run(
    name: options.Model,
    length: options.Length = None,
    fields: options.Fields = None,
    as_json: options.AsJson = False,
    as_csv: options.AsCsv = False,
    as_markdown: options.AsMarkdown = False,
) -> None:
    """Count parameters and FLOPs of a training token as papers do."""
    settings = options.settings(fields, length=length)
    counts = model_with(name, settings, {}).conventions(settings)
    if as_json:
        output.print_json({"conventions": counts.rows()})
    elif as_csv:
        output.print_csv(counts.rows())
    else:
        output.print_tables([_table(counts, unit) for unit in (PARAMETERS, FLOPS)], as_markdown)
        for convention, why in counts.missing.items():
            output.print_note(f"{convention}: {why}")


def _table(counts: Counts, unit: str) -> Table:
    rows = [
        (row["convention"], count(round(row["value"])), _percent(row["share"]), row["rule"])
        for row in counts.rows()
        if row["unit"] == unit
    ]
    if unit == PARAMETERS:
        title = f"{counts.model}: parameters by convention; predicted by formula"
        return Table(title, ("convention", "parameters", "of all", "rule"), rows, texts=("rule",))
    uses = "N: parameters that a token uses"  # not all experts
    title = f"FLOPs of training per token, length {count(counts.length)}; {uses}"
    return Table(title, ("convention", "FLOPs", "of executed", "rule"), rows, texts=("rule",))


def _percent(share: float | None) -> str:
    return "" if share is None else percent(share)
