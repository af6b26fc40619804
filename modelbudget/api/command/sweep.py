"""`modelbudget sweep FILE`: a report in a folder, without a checkout."""

from pathlib import Path
from typing import Annotated

import typer


def run(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A sweep: README, Add a sweep.")],
    folder: Annotated[Path | None, typer.Option(help="Where the report is written.")] = None,
    cores: Annotated[int, typer.Option(help="Jobs at a time.", min=1)] = 2,
    module: Annotated[
        str | None, typer.Option(metavar="FILE:FUNCTION", help="Code that the sweep may run.")
    ] = None,
) -> None:
    """Run one sweep: predict, measure, compare, and write a report.

    Exit code 1 if a comparison disagrees.
    """
    from modelbudget.api.results import sweep
    from modelbudget.workflow.exit_code import VERDICT, exit_code

    results = sweep(file, folder, cores, module)
    if code := exit_code(results.folder / VERDICT.name):
        raise typer.Exit(code)
