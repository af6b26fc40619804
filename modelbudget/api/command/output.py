"""Tables as text: for a terminal, a pipe, Markdown, CSV or JSON."""

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from modelbudget.api.command.option_words import with_options
from modelbudget.api.command.text_table import Table, lines
from modelbudget.api.frames import JSON_VERSION
from modelbudget.common.printable import markdown, markdown_table, printable, printable_json

DIFFERS = 1
"""Exit code where two witnesses differ, or a budget is not kept."""
BOLD, DIM, BLUE, PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[34m", "\x1b[0m"


def print_tables(tables: Sequence[Table], markdown: bool = False) -> None:
    """Print tables: in the width of a terminal, with colours and bars; else a line for each row."""
    tables = [_printable(table) for table in tables]
    if markdown:
        print("\n\n".join(map(_markdown, tables)))
        return
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print("\n\n".join(_text(table, width) for table in tables))


def _printable(table: Table) -> Table:
    """Escape what a terminal would read as a command: names come from files."""
    rows = [tuple(map(printable, row)) for row in table.rows]
    return table._replace(title=printable(table.title), rows=rows)


def _text(table: Table, width: int | None) -> str:
    title = table.title if width is None else textwrap.fill(table.title, width)
    in_colour = width is not None and "NO_COLOR" not in os.environ

    def styled(text: str, style: str) -> str:
        return f"{style}{text}{PLAIN}" if in_colour and style and text else text

    shown = [
        styled(line.text, DIM if line.is_head else "") + styled(line.bar, BLUE)
        for line in lines(table, width)
        if table.rows
    ]
    return "\n".join([styled(title, BOLD), *shown])


def _markdown(table: Table) -> str:
    """Return a table of GitHub's Markdown below its title."""
    first, *_ = table.columns
    of_rows = (
        [markdown_table(table.columns, table.rows, {first, *table.texts})] if table.rows else []
    )
    return "\n\n".join([f"**{markdown(table.title)}**", *of_rows])


def print_csv(rows: list[dict[str, Any]]) -> None:
    """Print one line for each row, which all have the keys of the first.

    Texts are exact in a pipe or a file, and escaped on a terminal, which would execute them.
    """
    import polars as pl

    from modelbudget.common.spreadsheet import csv

    if sys.stdout.isatty():
        rows = [
            {name: printable(x) if isinstance(x, str) else x for name, x in row.items()}
            for row in rows
        ]
    print(csv(pl.DataFrame(rows)), end="")


def print_notes(lines: Iterable[str]) -> None:
    """Print lines for people on stderr: names and reasons come from files.

    On a terminal they break between words, and not within an address.
    """
    for text in map(with_options, map(printable, lines)):
        if sys.stderr.isatty():
            width = shutil.get_terminal_size().columns
            text = textwrap.fill(text, width, subsequent_indent="  ", break_long_words=False,
                                 break_on_hyphens=False)  # fmt: skip
        print(text, file=sys.stderr)


def print_json(content: dict[str, Any]) -> None:
    """Print JSON with exact integers and the version of its schema.

    What is not printable is escaped, which means the same.
    """
    value = {"version": JSON_VERSION} | content
    print(printable_json(json.dumps(value, indent=2, ensure_ascii=False)))
