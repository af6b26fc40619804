"""The error that users see."""

MAX_LINE = 400


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
