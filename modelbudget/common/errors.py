"""The error that users see."""

from modelbudget.common.printable import printable

MAX_LINE = 400


class InputError(Exception):
    """Invalid input: every mistake found, one line each.

    Control characters in keys and names are escaped; lines longer than `MAX_LINE` are cut.
    """

    def __init__(self, mistakes: list[str]):
        self.mistakes = [_shortened(line) for line in mistakes]
        super().__init__("\n".join(self.mistakes))


def _shortened(line: str) -> str:
    """Escape control characters, then cut: an escape takes up to ten characters."""
    line = printable(line[: MAX_LINE + 1])
    return line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]}…"
