"""`modelbudget check`: whether a model still has the budget that was locked."""

from pathlib import Path
from typing import Annotated

import typer

from modelbudget.api.budget_lock import LOCK, check, table
from modelbudget.api.command.output import DIFFERS
from modelbudget.common.number_format import counted


def run(
    path: Annotated[Path, typer.Argument(metavar="FILE")] = LOCK,
    module: Annotated[
        str | None, typer.Option(metavar="FILE[:FUNCTION]", help="Code that the budget may run.")
    ] = None,
    totals: Annotated[bool, typer.Option("--totals", help="Compare only whole models.")] = False,
) -> None:
    """Compare with budget.lock.

    Exit code 1 and a table of Markdown if something changed.
    """
    changes = check(path, module, totals)
    if changes:
        typer.echo(table(changes))
        typer.echo(f"{path}: {counted(len(changes), 'value')} changed", err=True)
        raise typer.Exit(DIFFERS)
    typer.echo(f"{path}: unchanged")
