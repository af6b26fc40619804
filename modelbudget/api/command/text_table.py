"""Columns of text in the width of a terminal, on which no number is ever cut.

A table that is too wide loses its bars, then the columns that it says it can do without. Then texts
break between words, names last, and after a point too. Last, the columns are printed in groups.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import NamedTuple

GAP, INDENT = "  ", "  "
"""Between two columns; before the further lines of a name."""
LONGEST_BAR, SHORTEST_BAR = 24, 8
SHORTEST_TEXT = 8
_WORDS = re.compile(r"(?<=\S )")
_PARTS_OF_NAMES = re.compile(r"(?<=\S )|(?<=\.)(?=[a-z_])")


class Table(NamedTuple):
    """Text in columns: the first column is a name, the others are numbers, but for `texts`.

    `shares`, one for each row or none, are bars on a terminal. `first_to_go`: columns that a narrow
    terminal does without, in this order; `before_names`: without which it does before names break.
    """

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    shares: tuple[float, ...] = ()
    first_to_go: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    before_names: tuple[str, ...] = ()


class Line(NamedTuple):
    """One line of a table, of its head or of a row, and the bar that follows."""

    text: str
    bar: str = ""
    is_head: bool = False


def lines(table: Table, width: int | None) -> list[Line]:
    """Return the lines of a table in a width; None: each row is one line, and there are no bars."""
    columns = [_Column.of(table, i) for i in range(len(table.columns))]
    if width is None:
        return _lines(table, columns, 0)
    for name in (*table.first_to_go, *table.before_names):
        breaks = name in table.before_names
        narrow = [
            c._replace(width=c.least) if breaks and c.is_text and not c.is_first else c
            for c in columns
        ]
        if _width(narrow) > width:
            columns = [column for column in columns if column.cells[0] != name]
    rows: list[Line] = []
    for group in _groups(columns, width):
        rows += _lines(table, _narrowed(group, width), width)
    return rows


class _Column(NamedTuple):
    """The cells of a column, its name first, and its width. A number is never broken."""

    cells: tuple[str, ...]
    is_first: bool
    is_text: bool
    width: int

    @classmethod
    def of(cls, table: Table, i: int) -> "_Column":
        name = table.columns[i]
        cells = (name, *(row[i] if i < len(row) else "" for row in table.rows))
        return cls(cells, not i, not i or name in table.texts, max(map(_length, cells)))

    @property
    def least(self) -> int:
        """The width of the longest part that does not break."""
        indent = len(INDENT) if self.is_text else 0
        return max(
            _length(part.rstrip()) + (indent if i else 0)
            for number in range(len(self.cells))
            for i, part in enumerate(self._parts(number))
        )

    def lines(self, number: int) -> list[str]:
        """Return the lines of a cell, each as wide as the column."""
        broken = [""]
        for part in self._cut(self._parts(number)):
            if broken[-1] and _length((broken[-1] + part).rstrip()) > self.width:
                broken.append(INDENT if self.is_text else "")
            broken[-1] += part
        return [self._filled(line.rstrip()) for line in broken]

    def _cut(self, parts: list[str]) -> Iterator[str]:
        """Cut what is longer than a line of a text: after a · or / if it has one."""
        most = self.width - len(INDENT)
        for part in parts:
            if not self.is_text or _length(part.rstrip()) <= most:
                yield part
                continue
            piece, taken = "", 0
            for character in part:
                taken += _length(character)
                if taken > most and not character.isspace():
                    end = 1 + max(map(piece.rfind, "·/")) or len(piece)
                    yield piece[:end]
                    piece, taken = piece[end:], _length(piece[end:] + character)
                piece += character
            yield piece

    def _parts(self, number: int) -> list[str]:
        """Return what may stand on a line each: of numbers, words of the name (0) alone."""
        if number and not self.is_text:
            return [self.cells[number]]
        return (_PARTS_OF_NAMES if self.is_first else _WORDS).split(self.cells[number])

    def _filled(self, line: str) -> str:
        space = " " * (self.width - _length(line))
        return line + space if self.is_text else space + line


def _lines(table: Table, columns: Sequence[_Column], width: int) -> list[Line]:
    """Return the lines of some columns, with bars if there is room for them in `width`."""
    longest_bar = min(LONGEST_BAR, width - _width(columns) - len(GAP))
    rows = []
    for number in range(len(table.rows) + 1):
        cells = [column.lines(number) for column in columns]
        share = table.shares[number - 1] if 0 < number <= len(table.shares) else 0
        for i in range(max(map(len, cells))):
            parts = (
                of[i] if i < len(of) else " " * column.width
                for of, column in zip(cells, columns, strict=True)
            )
            bar = "█" * round(longest_bar * share) if longest_bar >= SHORTEST_BAR and not i else ""
            text = GAP.join(parts)
            rows.append(Line(text + GAP if bar else text.rstrip(), bar, not number))
    return rows


def _width(columns: Sequence[_Column]) -> int:
    return sum(column.width for column in columns) + len(GAP) * (len(columns) - 1)


def _groups(columns: Sequence[_Column], width: int) -> list[list[_Column]]:
    """Divide columns into groups that can be as narrow as `width`, each with that of the names."""
    names, *more = columns
    groups = [[names]]
    for column in more:
        narrowest = [narrow._replace(width=narrow.least) for narrow in (*groups[-1], column)]
        if len(groups[-1]) > 1 and _width(narrowest) > width:
            groups.append([names])
        groups[-1].append(column)
    return groups


def _narrowed(columns: Sequence[_Column], width: int) -> list[_Column]:
    """Make columns narrower by what is too much, first that which breaks most easily, names last.

    Where that is not enough, texts are cut between letters.
    """
    narrowed = list(columns)
    of_names = [column.is_first for column in narrowed]
    easily = sorted(
        range(len(narrowed)), key=lambda i: (of_names[i], narrowed[i].least - narrowed[i].width)
    )
    cut = [i for i in easily if narrowed[i].is_text]
    for i, least in [*((i, narrowed[i].least) for i in easily), *((i, SHORTEST_TEXT) for i in cut)]:
        excess = max(0, _width(narrowed) - width)
        narrower = max(least, narrowed[i].width - excess)
        narrowed[i] = narrowed[i]._replace(width=min(narrowed[i].width, narrower))
    return narrowed


def _length(text: str) -> int:
    """Return the columns of a terminal that a text takes: two for each wide character."""
    if text.isascii():
        return len(text)
    return len(text) + sum(unicodedata.east_asian_width(c) in "WF" for c in text)
