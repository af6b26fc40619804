"""`modelbudget measure MODEL`: instantiate, trace, and hold against the formula."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from modelbudget.api.command import options, output
from modelbudget.api.command.columns import Table
from modelbudget.api.command.output import DIFFERS
from modelbudget.api.command.show import quantities
from modelbudget.api.model import QUANTITIES, model
from modelbudget.report.charts.format import count

if TYPE_CHECKING:
    import polars as pl

    from modelbudget.api.measuring import Comparison


def run(
    name: options.Model,
    batch: options.Batch = None,
    length: options.Length = None,
    dtype: options.Dtype = None,
    train: Annotated[bool, typer.Option("--train", help="Trace a training step.")] = False,
    inference: Annotated[bool, typer.Option("--inference", help="Trace inference.")] = False,
    device: Annotated[str, typer.Option(help="meta (no storage), auto, cpu or cuda.")] = "meta",
    implementation: options.Implementation = None,
    given: options.Given = None,
    as_json: options.AsJson = False,
    as_csv: options.AsCsv = False,
    as_markdown: options.AsMarkdown = False,
) -> None:
    """Instantiate a model, count and trace it. Exit code 1 if formula and measurement differ."""
    from modelbudget.api.measuring import compare_model  # imports Polars, as a prediction does not

    settings = options.settings(given, batch, length, dtype, implementation)
    wanted = ["parameters", "parameter_bytes"]
    if train or inference:
        wanted = quantities(train, inference)
    found = compare_model(model(name), settings, wanted, device)
    if as_json:
        output.print_json(found.table.to_dicts())
    elif as_csv:
        output.print_csv(found.table.to_dicts())
    else:
        output.print_tables([_totals(found), *_differences(found)], as_markdown)
    for line in _summary(found):
        typer.echo(line, err=True)
    if not found.agrees:
        raise typer.Exit(DIFFERS)


def _totals(found: Comparison) -> Table:
    """Return one row for each quantity, and for each phase of a peak."""
    rows = []
    for quantity in (q for q in QUANTITIES if q in set(found.table["quantity"])):
        of = found.table.filter(quantity=quantity)
        phases = of["component"].to_list() if quantity.startswith("peak_") else [None]
        for phase in phases:
            part = of.filter(component=phase) if phase else of
            name = f"{quantity}, {phase}" if phase else quantity
            rows.append((name, *(_sum(part[side]) for side in ("predicted", "measured")),
                         _sum(part["difference"])))  # fmt: skip
    methods = ", ".join(found.table["method"].drop_nulls().unique(maintain_order=True))
    title = f"{found.model}: formula, and modelbudget's module measured on {methods or 'nothing'}"
    if not found.has_formula:
        title = f"{found.model}: measured on {methods or 'nothing'}; it has no formula"
    return Table(title, ("quantity", "predicted", "measured", "difference"), rows)


def _sum(values: pl.Series) -> str:
    return "none" if values.is_null().any() else count(int(values.sum()))


def _differences(found: Comparison) -> list[Table]:
    rows = [
        (
            f"{row['component']}, {row['quantity']}",
            *(str(row[name]) for name in ("predicted", "measured", "difference")),
        )
        for row in found.differences.iter_rows(named=True)
    ]
    columns = ("component", "predicted", "measured", "difference")
    return [Table("Differences", columns, rows)] if rows else []


def _summary(found: Comparison) -> list[str]:
    """Return what agrees, what failed, and the count of the class in transformers."""
    verdict = found.verdict()
    lines = [f"{verdict['agreed']} of {verdict['compared']} comparisons agree"]
    if not found.has_formula:
        lines = ["no formula to compare with"]
    lines += [f"not measured: {reason}" for reason in found.unmeasured]
    if (one := found.of_class) and one.parameters is not None:
        differs = f", {one.parameters - found.predicted:+,}" if found.class_differs else ", equal"
        about = differs if found.has_formula else ""
        lines.append(f"transformers' {one.kind} has {count(one.parameters)} parameters{about}")
    elif one:
        lines.append(f"transformers' {one.kind} was not counted: {one.refusal}")
    return lines
