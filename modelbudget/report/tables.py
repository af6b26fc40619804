"""HTML tables of the page, and the environment of its templates."""

import re
from functools import cache
from pathlib import Path

import jinja2
from markupsafe import Markup

from modelbudget.report.terms_explained import terms

TEMPLATES = Path(__file__).parent / "templates"
SECTIONS = Path(__file__).parent / "sections"

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
    templates.filters["terms"] = terms
    templates.filters["unbroken"] = unbroken
    return templates


def unbroken(html: str) -> Markup:
    """Return HTML in which no line breaks between a number and its unit."""
    return Markup(_UNIT.sub("\u00a0", html))


def table(
    rows: list[dict],
    caption: str,
    numbers: tuple[str, ...] = (),
    red: list[bool] | None = None,
    whole: list[bool] | None = None,
) -> Markup:
    """Return an HTML table with the keys of `rows` as columns; missing cells are dashes.

    Text is escaped, markup is not. The columns `numbers` are right-aligned with thousands
    separators. `red` and `whole` mark rows that disagree and totals.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    marks = {"red": red, "whole": whole}
    marked = [
        [mark for mark, where in marks.items() if where and where[i]] for i in range(len(rows))
    ]
    cells = [[(name, _cell(row.get(name))) for name in names] for row in rows]
    template = environment().get_template("table.html.j2")
    return Markup(
        template.render(
            caption=caption,
            names=names,
            numbers=numbers,
            rows=list(zip(cells, marked, strict=True)),
        )
    )


def _cell(value) -> str:
    if value is None or value != value:
        return "–"
    if isinstance(value, float | int) and not isinstance(value, bool):
        return f"{value:,.6f}" if isinstance(value, float) else f"{value:,}"
    return value if isinstance(value, Markup) else str(value)
