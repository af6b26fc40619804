"""Text from files and users, safe to print: for a terminal and for Markdown."""

import re

_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>()#!|~&@$])")
"""Characters that format, link, mention or end a cell in GitHub's Markdown."""


def printable(text: str) -> str:
    r"""Escape control characters, line ends and invisible characters: `\x1b`, `\n`, `\u202e`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def markdown(text: str) -> str:
    """Return text for a cell of GitHub's Markdown, where it shows as it is."""
    return _MARKDOWN.sub(r"\\\1", printable(text))
