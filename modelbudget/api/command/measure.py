"""`modelbudget measure MODEL`: instantiate, trace, and hold against the formula."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from modelbudget.api.command import options, output
from modelbudget.api.command.budget_table import quantities
from modelbudget.api.command.output import DIFFERS
from modelbudget.api.command.text_table import Table
from modelbudget.api.model import model_with
from modelbudget.api.predictions import QUANTITIES
from modelbudget.common.number_format import count, percent
from modelbudget.common.workers import for_readers

if TYPE_CHECKING:
    import polars as pl

    from modelbudget.api.measuring import Comparison

BY_COMPONENT = ("parameters", "flops_forward", "activation_bytes")
"""Quantities of a module's components that a table shows; --csv and --json have all."""
Device = Literal["meta", "auto", "cpu", "cuda"]


@options.expanded
def run(
    name: options.Model,
    *,
    of_run: options.RunOptions,
    train: Annotated[bool, "Trace a training step."] = False,
    inference: Annotated[bool, "Trace inference."] = False,
    device: Annotated[Device, "meta has no storage."] = "meta",
    printed: options.Output,
) -> None:
    """Instantiate a model, count and trace it.

    Exit code 1 if two of the witnesses differ, or if something could not be measured.
    """
    from modelbudget.api.measuring import compare_model  # imports Polars, as a prediction does not

    settings = of_run.settings()
    wanted = ["parameters", "parameter_bytes"]
    if train or inference:
        wanted = quantities(train, inference)
    comparison = compare_model(model_with(name, settings, {}), settings, wanted, device)
    parts = [] if comparison.has_formula else [_components(comparison)]
    tables = [*parts, _totals(comparison), *_differences(comparison)]
    printed.show({"comparison": comparison.rows()}, comparison.rows(), tables)
    output.print_notes(_summary(comparison))
    if comparison.agrees is False:
        raise typer.Exit(DIFFERS)


def _components(comparison: Comparison) -> Table:
    """Return what was measured of each component of a module, the one with most first."""
    rows = comparison.table.drop_nulls("measured")
    quantities = [q for q in BY_COMPONENT if q in set(rows["quantity"])]
    measured: list[dict[str, int]] = [
        dict(rows.filter(quantity=quantity).select("component", "measured").iter_rows())
        for quantity in quantities
    ]
    names = dict.fromkeys(name for of in measured for name in of)
    parameters = measured[0] if measured else {}
    whole = sum(parameters.values()) or 1
    most_first = sorted(names, key=lambda name: -parameters.get(name, 0))
    shares = tuple(parameters.get(name, 0) / whole for name in most_first)
    cells = [
        (name, *(count(of[name]) if name in of else "" for of in measured), percent(share))
        for name, share in zip(most_first, shares, strict=True)
    ]
    columns = ("component", *quantities, "share")
    return Table(f"{comparison}: {_method(comparison)}", columns, cells, shares, ("share",))


def _totals(comparison: Comparison) -> Table:
    """Return one row for each quantity, and for each phase of a peak."""
    sides = ("predicted", "measured", "difference") if comparison.has_formula else ("measured",)
    rows = []
    for quantity in (q for q in QUANTITIES if q in set(comparison.table["quantity"])):
        of = comparison.table.filter(quantity=quantity)
        phases = of["component"].to_list() if quantity.startswith("peak_") else [None]
        for phase in phases:
            part = of.filter(component=phase) if phase else of
            name = f"{quantity}, {phase}" if phase else quantity
            rows.append((name, *(_sum(part[side]) for side in sides), _class_value(part)))
    title = f"{comparison}: formula, and modelbudget's module {_method(comparison)}"
    if not comparison.has_formula:
        title = f"{comparison}: {_method(comparison)}; it has no formula"
    of_class = ("transformers' class",) if any(row[-1] for row in rows) else ()
    columns = ("quantity", *sides, *of_class)
    return Table(title, columns, [row[: len(columns)] for row in rows])


def _class_value(rows: pl.DataFrame) -> str:
    """Return the value of the class for one quantity or phase; an empty text without one."""
    totals = [*rows["class_total"].drop_nulls(), *rows["reference"].drop_nulls()]
    return count(totals[0]) if totals else ""


def _method(comparison: Comparison) -> str:
    methods = comparison.table["method"].drop_nulls().unique(maintain_order=True)
    return f"measured on {', '.join(methods) or 'nothing'}"


def _sum(values: pl.Series) -> str:
    return "none" if values.is_null().any() else count(int(values.sum()))


def _differences(comparison: Comparison) -> list[Table]:
    rows = [
        (
            f"{row['component']}, {row['quantity']}",
            *(str(row[name]) for name in ("predicted", "measured", "difference")),
        )
        for row in comparison.differences.iter_rows(named=True)
    ]
    columns = ("component", "predicted", "measured", "difference")
    return [Table("Differences", columns, rows)] if rows else []


def _summary(comparison: Comparison) -> list[str]:
    """Return what agrees, what failed, and how the class in transformers differs."""
    has_formula = comparison.has_formula
    lines = [comparison.line_of_verdict() if has_formula else "no formula to compare with"]
    for what, column in (("measured", "failure"), ("shown", "not_compared")):
        for why, names in comparison.by_reason(column).items():
            lines.append(f"not {what}: {', '.join(names)}: {for_readers(why)}")
    values = comparison.class_values.sort("quantity", maintain_order=True).rows(named=True)
    if len(values) > 1:
        equal = sum(row["agrees"] for row in values)
        lines.append(f"{equal} of {len(values)} values are those of transformers' class")
    lines += [
        _of_class(row)
        for row in values
        if row["quantity"] == "parameters" or row["known_difference"] or not row["agrees"]
    ]
    if comparison.of_class is not None:
        refused = comparison.of_class.drop_nulls("refusal").select("class", "refusal")
        lines += [f"transformers' {name} was not counted: {why}" for name, why in refused.rows()]
    return lines


def _of_class(row: dict) -> str:
    """Return a value of the class, and how it differs from that of the formula or of our module."""
    ours = row["measured"] if row["predicted"] is None else row["predicted"]
    difference = row["reference"] - ours
    verdict = f"known difference {row['known_difference']}" if row["known_difference"] else "equal"
    if not row["agrees"]:
        verdict = f"{difference:+,}: DIFFERS"
    of = " ".join(filter(None, (row["quantity"], row["component"])))
    return f"transformers' {row['class']} has {count(row['reference'])} {of}, {verdict}"
