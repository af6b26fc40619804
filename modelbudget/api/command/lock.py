"""`modelbudget lock MODEL…`: write their budgets, which `modelbudget check` compares with."""

from pathlib import Path
from typing import Annotated

import typer

from modelbudget.api.budget_lock import LOCK, lock
from modelbudget.api.command import options


def run(
    names: options.Models,
    batch: options.Batch = None,
    length: options.Length = None,
    dtype: options.Dtype = None,
    implementation: options.Implementation = None,
    weights: options.Weights = None,
    adapter: options.Adapter = None,
    rank: options.Rank = None,
    optimizer: options.Optimizer = None,
    fields: options.Fields = None,
    path: Annotated[Path, typer.Option("--output", "-o", help="File to write.")] = LOCK,
) -> None:
    """Write counts, bytes and FLOPs of models to budget.lock."""
    lock(
        names,
        options.settings(
            fields, batch, length, dtype, implementation, weights, adapter, rank, optimizer
        ),
        path,
    )
    typer.echo(f"{path}: written")
