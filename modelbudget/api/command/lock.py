"""`modelbudget lock MODEL…`: write their budgets, which `modelbudget check` compares with."""

from pathlib import Path
from typing import Annotated

import typer

from modelbudget.api.budget_lock import LOCK, lock
from modelbudget.api.command import options


@options.expanded
def run(
    names: options.Models,
    *,
    of_run: options.RunOptions,
    path: Annotated[Path, typer.Option("--output", "-o", help="File to write.")] = LOCK,
) -> None:
    """Write counts, bytes and FLOPs of models to budget.lock."""
    lock(names, of_run.settings(), path)
    typer.echo(f"{path}: written")
