"""`modelbudget compare A B`: components and totals of several models, side by side."""

from modelbudget.api.command import options, output
from modelbudget.api.command.columns import Table
from modelbudget.api.command.show import as_dict, of_totals, quantities
from modelbudget.api.model import Predictions, model
from modelbudget.common.errors import InputError
from modelbudget.report.charts.format import count


def run(
    names: options.Models,
    batch: options.Batch = None,
    length: options.Length = None,
    dtype: options.Dtype = None,
    implementation: options.Implementation = None,
    given: options.Given = None,
    as_json: options.AsJson = False,
    as_csv: options.AsCsv = False,
    as_markdown: options.AsMarkdown = False,
) -> None:
    """Compare the predictions of two models or more."""
    if len(names) < 2:
        raise InputError([f"compare {' '.join(names)}: one model; allowed: two or more"])
    settings = options.settings(given, batch, length, dtype, implementation)
    found = [model(name).predictions(quantities(True, True), settings) for name in names]
    if as_json:
        output.print_json([as_dict(one) for one in found])
    elif as_csv:
        output.print_csv([row for one in found for row in one.rows()])
    else:
        output.print_tables([_of_components(found), of_totals(found)], as_markdown)


def _of_components(found: list[Predictions]) -> Table:
    """Return the parameters of each model by component."""
    known = [
        {part.name: part.value for part in one["parameters"].components}
        if "parameters" in one.breakdowns
        else {}
        for one in found
    ]
    rows = [
        (name, *(count(one[name]) if name in one else "" for one in known))
        for name in dict.fromkeys(name for one in known for name in one)
    ]
    return Table(
        "Parameters, predicted by formula", ("component", *(o.model.label for o in found)), rows
    )
