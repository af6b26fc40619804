"""HTML tables of the page, with pandas' Styler and our template: CSS classes, no inline styles."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup
from pandas.io.formats.style import Styler

from modelbudget.report.glossary import terms

TEMPLATES = Path(__file__).parent / "templates"
SECTIONS = Path(__file__).parent / "sections"

_UNIT = re.compile(r"(?<=\d) (?=%|[kMGT]?B\b|[MGTPE]?FLOP\b)")
"""The space between a number and its unit."""

_Table: Any = Styler.from_custom_template(str(TEMPLATES), html_table="table.html.j2")


@cache
def environment() -> jinja2.Environment:
    """Return the environment of the templates, which escape text."""
    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader([TEMPLATES, SECTIONS]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    found.filters["terms"] = terms
    found.filters["unbroken"] = unbroken
    return found


def unbroken(html: str) -> Markup:
    """Return HTML in which no line breaks between a number and its unit."""
    return Markup(_UNIT.sub("\u00a0", html))


def table(
    rows: list[dict],
    caption: str,
    numbers: tuple[str, ...] = (),
    html: tuple[str, ...] = (),
    red: list[bool] | None = None,
    whole: list[bool] | None = None,
) -> Markup:
    """Return an HTML table with the keys of `rows` as columns; missing cells are dashes.

    Text is escaped, except in the columns `html`, which have markup. The columns `numbers` are
    right-aligned with thousands separators. `red` and `whole` mark rows that disagree and totals.
    """
    frame = pd.DataFrame(rows, dtype=object)
    classes = pd.DataFrame("", index=frame.index, columns=frame.columns)
    classes[[name for name in numbers if name in frame]] = "number"
    if red is not None:
        classes[red] += " red"
    if whole is not None:
        classes[whole] += " whole"
    styler = (
        _Table(frame, uuid="", cell_ids=False, caption=caption)
        .hide(axis="index")
        .format(escape="html", thousands=",", na_rep="–")
        .format(lambda text: text, subset=list(html), na_rep="–")
        .set_td_classes(classes)
    )
    return Markup(styler.to_html(exclude_styles=True))
