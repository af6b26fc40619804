"""What all results can do: become frames, and show themselves in a notebook."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from modelbudget.common.errors import needed

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

JSON_VERSION = 1
"""Version of the format that `--json` prints (`scripts/dev/answer_schemas.py`)."""
MOST_ROWS = 40
"""Rows that a notebook shows; frames have all."""


class Frames(ABC):
    """A result with `rows`, each a mapping with the same columns."""

    @abstractmethod
    def rows(self) -> list[dict[str, Any]]:
        """Return the result as rows."""

    def to_polars(self) -> pl.DataFrame:
        """Return `rows` as a Polars frame."""
        import polars as pl

        return pl.DataFrame(self.rows(), infer_schema_length=None)

    def to_pandas(self) -> pd.DataFrame:
        """Return `rows` as a pandas frame. Raises InputError if pandas is not installed."""
        needed("frames of pandas", "report", "pandas")
        import pandas as pd

        return pd.DataFrame(self.rows())

    def _repr_html_(self) -> str:
        """Show the rows in a notebook, below the line that `repr` shows."""
        return html_table(repr(self).strip("<>"), self.rows())


def html_table(
    caption: str, rows: Sequence[Mapping[str, Any]], shares: Sequence[float] = ()
) -> str:
    """Return a table of HTML, with all texts escaped, and with a bar for each of `shares`."""
    shown = rows[:MOST_ROWS]
    head = "".join(f"<th>{escape(name)}</th>" for name in (shown[0] if shown else ()))
    body = "".join(
        f"<tr>{''.join(map(_cell, row.values()))}{_bar(shares[i]) if shares else ''}</tr>"
        for i, row in enumerate(shown)
    )
    more = len(rows) - len(shown)
    rest = f"<tr><td colspan='9'>and {more:,} more</td></tr>" if more else ""
    return (
        f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}{rest}</tbody></table>"
    )


def _cell(value: Any) -> str:
    if type(value) is int:
        return f"<td style='text-align:right'>{value:,}</td>"
    return f"<td style='text-align:left'>{'' if value is None else escape(str(value))}</td>"


def _bar(share: float) -> str:
    style = f"height:1em;background:#4c78a8;width:{100 * share:.2f}%"
    return f"<td style='min-width:12em'><div style='{style}'></div></td>"
