"""The error that users see, and suggestions for misspelled names."""

import heapq
from collections.abc import Collection, Iterable
from itertools import takewhile

MAX_LINE = 400
MAX_LISTED = 200
"""Characters of the longest list of names that a message gives in full."""
MOST_NEAREST = 5
CUTOFF = 0.7
PER_LETTER, MOST_LETTERS = 0.15, 4
"""Bonus for each equal leading letter, and how many letters count: `gpt-2-small` is closer to
`gpt-2` than to `t5-small`. Winkler (1990), with a larger bonus.
"""


class InputError(Exception):
    """Invalid input: every mistake found, one line each.

    Control characters in keys and names are escaped; lines longer than `MAX_LINE` are cut.
    """

    def __init__(self, mistakes: list[str]):
        self.mistakes = [_printable(line) for line in mistakes]
        super().__init__("\n".join(self.mistakes))


def _printable(line: str) -> str:
    """Escape control characters, then cut: an escape takes up to ten characters."""
    line = line[: MAX_LINE + 1]
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
    return line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]}…"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return '; did you mean n_vocab?' if a known name is similar, else an empty string."""
    near = nearest(name, known, 1)
    return f"; did you mean {near[0]}?" if near else ""


def offered(name: str, known: Collection[str], rest: str) -> str:
    """Return '; did you mean n_vocab? (allowed: …)'.

    Lists every known name if they are few; otherwise the most similar ones, and that the others are
    in `rest`.
    """
    listed = ", ".join(known)
    near = nearest(name, known, MOST_NEAREST)
    if len(listed) > MAX_LISTED:
        more = f"all {len(known):,} are in {rest}"
        listed = f"{', '.join(near)}; {more}" if near else more
    return f"{f'; did you mean {near[0]}?' if near else ''} (allowed: {listed})"


def nearest(name: str, known: Iterable[str], n: int) -> list[str]:
    """Return at most `n` known names that are synonyms of `name` or similar to it, best first."""
    # Imported here because only messages of errors need it.
    from difflib import SequenceMatcher

    from modelbudget.common.other_names import meanings, plain

    wanted = plain(name)
    meant = meanings(wanted)
    matcher = SequenceMatcher(autojunk=False)
    matcher.set_seq2(wanted)

    def nearness(other: str) -> float:
        written = plain(other)
        if written == wanted:
            return 3
        if meant & meanings(written):
            return 2
        same = zip(written[:MOST_LETTERS], wanted, strict=False)
        share = PER_LETTER * sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], same))
        needed = (CUTOFF - share) / (1 - share)
        matcher.set_seq1(written)
        if matcher.real_quick_ratio() < needed or matcher.quick_ratio() < needed:
            return 0
        return share + (1 - share) * matcher.ratio()

    found = ((nearness(other), -place, other) for place, other in enumerate(known))
    near = heapq.nlargest(n, (one for one in found if one[0] >= CUTOFF))
    return [other for *_, other in near]
