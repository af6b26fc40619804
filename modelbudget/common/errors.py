"""The one error a user should ever see, and the names that it offers instead of an unknown one."""

import heapq
from collections.abc import Collection, Iterable
from itertools import takewhile

MAX_LINE = 400
MAX_LISTED = 200
"""Characters of a list that is given whole; of a longer one, the nearest names."""
MOST_NEAREST = 5
CUTOFF = 0.7
PER_LETTER, MOST_LETTERS = 0.15, 4
"""How much nearer a name is for each of its first letters that is the same, and how many count:
`gpt-2-small` is a GPT-2 and no `t5-small`. As Winkler (1990) has it, with a larger share.
"""


class InputError(Exception):
    """Input that cannot be used. Holds every mistake found, one line each.

    Control characters, which keys and names of a file may hold, are written as escapes; a very
    long line is cut.
    """

    def __init__(self, mistakes: list[str]):
        self.mistakes = [_printable(line) for line in mistakes]
        super().__init__("\n".join(self.mistakes))


def _printable(line: str) -> str:
    """Written out first, since an escape takes up to ten characters."""
    line = line[: MAX_LINE + 1]
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
    return line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]}…"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """'; did you mean n_vocab?' when a known name is near, else nothing."""
    near = nearest(name, known, 1)
    return f"; did you mean {near[0]}?" if near else ""


def offered(name: str, known: Collection[str], rest: str) -> str:
    """'; did you mean n_vocab? (allowed: …)': every known name where they are few, else the nearest
    and where the `rest` stands.
    """
    listed = ", ".join(known)
    near = nearest(name, known, MOST_NEAREST)
    if len(listed) > MAX_LISTED:
        more = f"all {len(known):,} stand in {rest}"
        listed = f"{', '.join(near)}; {more}" if near else more
    return f"{f'; did you mean {near[0]}?' if near else ''} (allowed: {listed})"


def nearest(name: str, known: Iterable[str], n: int) -> list[str]:
    """At most `n` known names that mean or nearly are `name`, the nearest first."""
    # Imported late: only mistakes pay for it.
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
