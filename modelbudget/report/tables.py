"""HTML tables of the page, and the environment of its templates."""

import re
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import polars as pl
from markdown_it import MarkdownIt
from markupsafe import Markup, escape

from modelbudget.common import number_format as texts
from modelbudget.common.files import load_yaml
from modelbudget.common.paths import CONFIGS
from modelbudget.report.chart_specs import variable_of_group
from modelbudget.report.page_data import PAGE

TEMPLATES = Path(__file__).parent / "templates"
SECTIONS = Path(__file__).parent / "sections"

_UNIT = re.compile(r"(?<=\d) (?=%|[kMGT]?B\b|[MGTPE]?FLOP\b)")
"""The space between a number and its unit."""

GLOSSARY: dict[str, str] = load_yaml(CONFIGS / "glossary.yaml")

_LONGEST_FIRST = sorted(GLOSSARY, key=len, reverse=True)
"""“token embedding” before a term that it contains."""
_TERMS = re.compile(
    r"<(a|code|pre|h2|h3)\b.*?</\1>|<[^>]*>|"
    rf"(?<![\w-])(?P<term>{'|'.join(map(re.escape, _LONGEST_FIRST))})(?![\w-])",
    re.DOTALL,
)
"""A term, or what has none: a link, code, a heading, and any tag."""


def anchor(term: str) -> str:
    """Return the id of a term in the glossary."""
    return f"term-{term.lower().replace(' ', '-')}"


def terms(text: str | Markup) -> Markup:
    """Link the first use of each term to the glossary; `text` is escaped."""
    seen: set[str] = set()

    def linked(match: re.Match) -> str:
        term = match["term"]
        if term is None or term in seen:
            return match[0]
        seen.add(term)
        return Markup('<a class="term" href="#{}">{}</a>').format(anchor(term), term)

    return Markup(_TERMS.sub(linked, str(escape(text))))


# No HTML and no images: the page must not load anything from other machines.
_MARKDOWN = MarkdownIt("commonmark", {"html": False, "typographer": True})
_MARKDOWN.enable("smartquotes").disable("image")


def markdown(text: str) -> Markup:
    """Return a text of a sweep file as HTML."""
    return Markup(_MARKDOWN.render(text))


FILTERS = (
    texts.capitalized, texts.count, texts.signed, texts.percent, texts.signed_percent, texts.short,
    texts.si_bytes, texts.each, texts.shapes, texts.scientific, terms, variable_of_group, markdown,
)  # fmt: skip
"""Functions that templates use by their names."""


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
    macros = templates.get_template("macros.html.j2").module
    templates.globals.update(vars(macros) | {"PAGE": PAGE})
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
    cells = [[(name, _cell(row.get(name))) for name in names] for row in rows]
    marked = [[mark for mark, where in marks.items() if where[i]] for i in range(len(rows))]
    numbers = names[1:] if numbers is None else numbers
    macros: Mapping[str, Any] = environment().globals
    return macros["table_of_rows"](caption, names, numbers, list(zip(cells, marked, strict=True)))


def _cell(value) -> str:
    if value is None or value != value:
        return "–"
    if isinstance(value, float | int) and not isinstance(value, bool):
        return f"{value:,.6f}" if isinstance(value, float) else f"{value:,}"
    return value if isinstance(value, Markup) else str(value)
