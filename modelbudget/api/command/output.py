"""Tables as text: for a terminal, a pipe, Markdown, CSV or JSON."""

import json
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

DIFFERS = 1
"""Exit code where two witnesses differ, or a budget is not kept."""
WIDTH_OF_BAR = 24
WIDTH_IN_PIPE = 160


class Table(NamedTuple):
    """Text in columns: the first column is a name, the others are right-aligned numbers.

    `shares`, one for each row or none, are bars on a terminal.
    """

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    shares: tuple[float, ...] = ()


def print_tables(tables: Sequence[Table], markdown: bool = False) -> None:
    """Print tables; with colours and bars on a terminal."""
    if markdown:
        print("\n\n".join(map(_markdown, tables)))
        return
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    terminal = sys.stdout.isatty()
    console = Console(width=None if terminal else WIDTH_IN_PIPE, highlight=False)
    for i, table in enumerate(tables):
        console.print(Text(("\n" if i else "") + table.title, "bold"))
        drawn = RichTable(box=None, header_style="dim", pad_edge=False)
        for n, name in enumerate(table.columns):
            drawn.add_column(name, justify="right" if n else "left", no_wrap=not n)
        bars = terminal and bool(table.shares)
        if bars:
            drawn.add_column("")
        for n, row in enumerate(table.rows):
            cells: list[Text] = [Text(cell) for cell in row]
            if bars and n < len(table.shares):
                cells.append(Text("█" * round(WIDTH_OF_BAR * table.shares[n]), "blue"))
            drawn.add_row(*cells)
        console.print(drawn)


def _markdown(table: Table) -> str:
    """Return a table of GitHub's Markdown."""
    lines = [f"**{table.title}**", "", _line(table.columns)]
    lines.append("| --- |" + " --: |" * (len(table.columns) - 1))
    return "\n".join([*lines, *map(_line, table.rows)])


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def print_csv(rows: list[dict[str, Any]]) -> None:
    """Print one line for each row, which all have the keys of the first."""
    import polars as pl

    from modelbudget.common.spreadsheet import csv

    print(csv(pl.DataFrame(rows)), end="")


def print_json(value: Any) -> None:
    """Print JSON with exact integers."""
    print(json.dumps(value, indent=2, ensure_ascii=False))
