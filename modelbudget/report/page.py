"""The page: all sections in order, in one HTML file."""

import base64
import hashlib
import re
from collections.abc import Callable, Collection, Iterator
from functools import cache
from operator import itemgetter
from pathlib import Path

from modelbudget.catalogue.named_models import Catalogue
from modelbudget.report import chart_specs, tables
from modelbudget.report.packing import packed
from modelbudget.report.page_results import Results
from modelbudget.report.section import APPENDIX, FIRST, Page
from modelbudget.report.sections import sections
from modelbudget.report.vega_script import vega

STYLES = ("style.css", "acts.css", "steps.css")
SCRIPTS = ("unpack.js", "acts.js", "vega.js", "highlight.js", "charts.js", "sections.js")
LATER = ("formulas.js", "config_file.js", "finder.js")
"""Scripts of the whole page: those that run at once, and those that are compressed, before the
scripts of sections."""
_FOR_READERS = re.compile(r"^ *(//.*\n)?", re.MULTILINE)
"""Indentation, and lines that are comments."""
NO_TITLE = "Parameters, memory and compute of sequence models"


def render(
    results: Results,
    catalogue: Catalogue,
    calculator: dict | None = None,
    vega: Callable[[], str] = vega,
) -> str:
    """Return the page as HTML; equal results give equal bytes.

    `calculator` is the context of its section; without it, it is the page of named sweeps. `vega`
    returns the script that draws charts.
    """
    page = Page.of(results, catalogue, calculator)
    chosen = {
        name: record
        for name, record in sections().items()
        if results.parts.keys() >= {*record.needs} and (page.is_of_all or not record.of_all)
    }
    shown: list[dict] = [
        {"template": f"{name}.html.j2"} | section
        for name, record in chosen.items()
        for section in record.shown(page)
    ]
    story = sorted((one for one in shown if one["place"] < APPENDIX), key=itemgetter("place"))
    appendix = [one for one in shown if one["place"] >= APPENDIX]
    acts = [one for one in story if "finding" in one]
    titles = [act["page_title"] for act in acts if "page_title" in act]
    sweep_titles = [one["short"] for one in story if one["place"] == FIRST]
    titles += sweep_titles if len(sweep_titles) <= 1 else [f"{len(sweep_titles)} sweeps"]
    title = titles[0] if titles else NO_TITLE
    later = "\n".join([*_texts("js", LATER, chosen), *page.scripts])
    page.packed["acts"] = packed(page.acts)
    drawing = vega()
    page.packed.update(vega=_packed_script(drawing), later=_packed_script(later))
    # Below a chart that is saved from the page.
    source, provenance = "modelbudget", results.parts.get("provenance.json")
    source += f", commit {provenance['commit']}" if provenance else ""
    palette = {variable: colour for colour, variable in chart_specs.VARIABLES.items()}
    saved = {"palette": palette, "source": source}  # of charts that leave the page
    style = chart_specs.palette_css() + "".join(_texts("css", STYLES, sections()))
    scripts = [*_texts("js", SCRIPTS, ())]
    hashes = " ".join(map(_hash, (drawing, later, *scripts)))
    template = tables.environment().get_template("page.html.j2")
    return template.render(
        title=title,
        description=" ".join(f"{act['title']}." for act in acts) or NO_TITLE,
        story=story,
        appendix=appendix,
        verdict=next(one for one in story if one["id"] == "verdict"),
        models=[base.label for base in catalogue.bases.values() if base.model],
        packed=page.packed | {"charts": packed(page.charts.data() | saved)},
        style=style,
        scripts=scripts,
        policy=f"default-src 'none'; script-src {hashes}; style-src {_hash(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'",
    )


_packed_script = cache(packed)  # the same for all pages of a process


def _texts(ending: str, shared: tuple[str, ...], chosen: Collection[str]) -> Iterator[str]:
    """Yield what all sections share, and then what the chosen ones have, for a browser alone."""
    paths = (tables.SECTIONS / f"{name}.{ending}" for name in chosen)
    for path in (*(tables.TEMPLATES / name for name in shared), *filter(Path.exists, paths)):
        yield _FOR_READERS.sub("", path.read_text(encoding="utf-8"))


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
