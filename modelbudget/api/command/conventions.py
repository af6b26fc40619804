"""`modelbudget conventions MODEL`: parameters and FLOPs per token as others count them."""

from modelbudget.api.command import options, output
from modelbudget.api.command.text_table import Table
from modelbudget.api.conventions import Counts
from modelbudget.api.model import model_with
from modelbudget.predict.counts_by_convention import CONVENTIONS, FLOPS, PARAMETERS
from modelbudget.report.charts.format import count, percent


def run(
    name: options.Model,
    length: options.Length = None,
    given: options.Given = None,
    as_json: options.AsJson = False,
    as_csv: options.AsCsv = False,
    as_markdown: options.AsMarkdown = False,
) -> None:
    """Count a model's parameters and FLOPs per training token as papers and training code do."""
    settings = options.settings(given, length=length)
    found = model_with(name, settings, {}).conventions(settings)
    if as_json:
        output.print_json({"conventions": found.rows()})
    elif as_csv:
        output.print_csv(found.rows())
    else:
        output.print_tables([_table(found, unit) for unit in (PARAMETERS, FLOPS)], as_markdown)
        for one, why in found.missing.items():
            output.print_note(f"{one}: {why}")


def _table(found: Counts, unit: str) -> Table:
    rows = [
        (one.name, count(found[one.name]), _percent(found.share(one)), one.rule)
        for one in CONVENTIONS
        if one.unit == unit and one.name in found.values
    ]
    if unit == PARAMETERS:
        title = f"{found.model}: parameters by convention; predicted by formula"
        return Table(title, ("convention", "parameters", "of all", "rule"), rows, texts=("rule",))
    if found.executed is not None:
        rows.append(("executed", count(round(found.executed)), "100 %", "every matrix product"))
    title = f"FLOPs of training per token, length {count(found.length)}"
    return Table(title, ("convention", "FLOPs", "of executed", "rule"), rows, texts=("rule",))


def _percent(share: float | None) -> str:
    return "" if share is None else percent(share)
