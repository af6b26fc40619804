"""Terms of the page with their definitions, shown where a text first uses them."""

import re

from markupsafe import Markup, escape

from modelbudget.common.files import load_yaml
from modelbudget.common.paths import CONFIGS

GLOSSARY: dict[str, str] = load_yaml(CONFIGS / "glossary.yaml")

_LONGEST_FIRST = sorted(GLOSSARY, key=len, reverse=True)
"""“token embedding” before a term that it contains."""
_TERMS = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, _LONGEST_FIRST))})(?![\w-])")
_TAGS = re.compile(r"(<[^>]*>)")
_CLOSED_TO_TERMS = ("a", "code", "pre", "h2", "h3")


def anchor(term: str) -> str:
    """Return the id of a term in the glossary."""
    return f"term-{term.lower().replace(' ', '-')}"


def terms(text: str | Markup) -> Markup:
    """Link the first use of each term to the glossary; `text` is escaped."""
    seen: set[str] = set()

    def linked(match: re.Match) -> str:
        term = match[1]
        if term in seen:
            return term
        seen.add(term)
        return Markup('<a class="term" href="#{}">{}</a>').format(anchor(term), term)

    pieces, inside = [], []
    for piece in _TAGS.split(str(escape(text))):
        tag = re.match(r"<(/?)(\w+)", piece)
        if tag and tag[2] in _CLOSED_TO_TERMS:
            inside = inside[:-1] if tag[1] else [*inside, tag[2]]
        pieces.append(piece if tag or inside else _TERMS.sub(linked, piece))
    return Markup("".join(pieces))
