"""`modelbudget vectors [QUANTITY…]`: exact sizes, each with its witness, for tests of others."""

from typing import Annotated

import typer

from modelbudget.api.command import options, output
from modelbudget.api.command.text_table import Table
from modelbudget.api.vectors import vectors as all_vectors
from modelbudget.report.charts.format import count


def run(
    quantities: Annotated[
        list[str] | None, typer.Argument(metavar="QUANTITY…", help="parameters, cache_bytes, …")
    ] = None,
    as_json: options.AsJson = False,
    as_csv: options.AsCsv = False,
    as_markdown: options.AsMarkdown = False,
) -> None:
    """List exact sizes of configurations, each with its witness.

    `pytest --vectors MODULE:FUNCTION` holds a function against them.
    """
    vectors = all_vectors(*(quantities or ()))
    if as_json:
        output.print_json({"vectors": [vector._asdict() for vector in vectors]})
    elif as_csv:
        output.print_csv([row(vector) for vector in vectors])
    else:
        cells = [
            (
                vector.name,
                count(vector.value),
                vector.unit,
                ", ".join(of["how"] for of in vector.witness),
            )
            for vector in vectors
        ]
        columns = ("vector", "value", "unit", "witness")
        title = f"{count(len(vectors))} vectors; --json has configurations, runs and sources"
        output.print_tables([Table(title, columns, cells, texts=("unit", "witness"))], as_markdown)


def row(vector) -> dict:
    """Return a vector without its configuration, as one line."""
    seen = {"witness": "; ".join(f"{of['how']}: {of['source']}" for of in vector.witness)}
    run = " ".join(f"{name}={value}" for name, value in vector.run.items())
    return {k: v for k, v in vector._asdict().items() if k != "config"} | {"run": run} | seen
