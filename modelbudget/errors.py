"""The one error a user should ever see."""

MAX_LINE = 10_000


class InputError(Exception):
    """Input that cannot be used. Holds every mistake found, one line each.

    Control characters, which keys and names of a file may hold, are written as escapes; of a very
    long line its beginning is told.
    """

    def __init__(self, mistakes: list[str]):
        self.mistakes = [_printable(line) for line in mistakes]
        super().__init__("\n".join(self.mistakes))


def _printable(line: str) -> str:
    line = line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]}…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def did_you_mean(name: str, known) -> str:
    """'; did you mean n_vocab?' when a known name is close, else nothing."""
    from difflib import get_close_matches  # imported late: only mistakes pay for it

    close = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""
