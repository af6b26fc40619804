"""HTML tables of the page, and the environment of its templates."""

import re
from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path

import jinja2
import polars as pl
from markupsafe import Markup

from modelbudget.report.charts import format as texts
from modelbudget.report.terms_explained import terms

TEMPLATES = Path(__file__).parent / "templates"
SECTIONS = Path(__file__).parent / "sections"

FILTERS = (
    texts.count, texts.signed, texts.percent, texts.signed_percent, texts.short, texts.si_bytes,
    terms,
)  # fmt: skip
"""Functions of one argument that templates use by their names."""
_UNIT = re.compile(r"(?<=\d) (?=%|[kMGT]?B\b|[MGTPE]?FLOP\b)")
"""The space between a number and its unit."""


@cache
def environment() -> jinja2.Environment:
    """Return the environment of the templates, which escape text."""
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader([TEMPLATES, SECTIONS]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    templates.filters |= {of.__name__: of for of in (*FILTERS, unbroken)}
    return templates


def unbroken(html: str) -> Markup:
    """Return HTML in which no line breaks between a number and its unit."""
    return Markup(_UNIT.sub("\u00a0", html))


def table(
    rows: pl.DataFrame | Sequence[dict],
    caption: str,
    numbers: Collection[str] | None = None,
    red: Sequence[bool] | pl.Series = (),
    whole: Sequence[bool] | pl.Series = (),
) -> Markup:
    """Return an HTML table with the keys of `rows` as columns; missing cells are dashes.

    Text is escaped, markup is not. The columns `numbers` (None: all but the first) are
    right-aligned with thousands separators. `red` and `whole` mark rows that disagree and totals.
    """
    rows = rows.to_dicts() if isinstance(rows, pl.DataFrame) else rows
    names = list(dict.fromkeys(name for row in rows for name in row))
    marks = {name: where for name, where in (("red", red), ("whole", whole)) if len(where)}
    return Markup(
        environment()
        .get_template("table.html.j2")
        .render(
            caption=caption,
            names=names,
            numbers=names[1:] if numbers is None else numbers,
            rows=[
                (
                    [(name, _cell(row.get(name))) for name in names],
                    [mark for mark, where in marks.items() if where[i]],
                )
                for i, row in enumerate(rows)
            ],
        )
    )


def _cell(value) -> str:
    if value is None or value != value:
        return "–"
    if isinstance(value, float | int) and not isinstance(value, bool):
        return f"{value:,.6f}" if isinstance(value, float) else f"{value:,}"
    return value if isinstance(value, Markup) else str(value)
