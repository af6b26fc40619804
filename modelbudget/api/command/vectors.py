"""`modelbudget vectors [QUANTITY…]`: exact sizes, each with its witness, for tests of others."""

from typing import Annotated

import typer

from modelbudget.api.command import options
from modelbudget.api.command.text_table import Table
from modelbudget.api.vectors import vectors as all_vectors
from modelbudget.common.number_format import count


@options.expanded
def run(
    quantities: Annotated[
        list[str] | None, typer.Argument(metavar="QUANTITY…", help="parameters, cache_bytes, …")
    ] = None,
    *,
    printed: options.Output,
) -> None:
    """List exact sizes of configurations, each with its witness.

    `pytest --vectors MODULE:FUNCTION` holds a function against them.
    """
    vectors = all_vectors(*(quantities or ()))
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
    table = Table(title, columns, cells, texts=("unit", "witness"))
    content = {"vectors": [vector._asdict() for vector in vectors]}
    printed.show(content, [row(vector) for vector in vectors], [table])


def row(vector) -> dict:
    """Return a vector without its configuration, as one line."""
    seen = {"witness": "; ".join(f"{of['how']}: {of['source']}" for of in vector.witness)}
    run = " ".join(f"{name}={value}" for name, value in vector.run.items())
    return {k: v for k, v in vector._asdict().items() if k != "config"} | {"run": run} | seen
