"""Text from files and users, safe to print: for a terminal and for Markdown."""

import json
import re
from collections.abc import Container, Iterable, Sequence

_MARKDOWN = re.compile(r"([\\`*\[\]<>#|~&@$]|(?<!\w)_|_(?!\w))")
"""Characters that format, link, mention or end a cell in GitHub's Markdown; not within a word."""

_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Characters that a terminal executes or that change the direction of text; no tab, no line end."""


def has_control(text: str) -> bool:
    """Return whether a text of one or several lines has a control character."""
    return _CONTROL.search(text) is not None


def printable(text: str) -> str:
    r"""Escape control characters, line ends and invisible characters: `\x1b`, `\n`, `\u202e`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def markdown(text: str) -> str:
    """Return text for a cell of GitHub's Markdown, where it shows as it is."""
    return _MARKDOWN.sub(r"\\\1", printable(text))


def markdown_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], texts: Container[str]
) -> str:
    """Return a table of GitHub's Markdown; columns that are not among `texts` are numbers."""
    head, *body = (f"| {' | '.join(map(markdown, row))} |" for row in (columns, *rows))
    rule = "".join("| --- " if name in texts else "| --: " for name in columns) + "|"
    return "\n".join([head, rule, *body])


def printable_json(text: str) -> str:
    r"""Escape what is not printable in JSON, where it stands in texts: `\u009b`, not the character.

    The ends of lines between values stay.
    """
    hidden = (c for c in {*text} - {"\n"} if not c.isprintable())
    return text.translate({ord(c): json.dumps(c)[1:-1] for c in hidden})
