"""The error that users see."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from modelbudget.common.printable import printable

MAX_LINE = 400


class InputError(Exception):
    """Invalid input: every mistake found, one line each.

    Control characters in keys and names are escaped; lines longer than `MAX_LINE` are cut.
    """

    def __init__(self, mistakes: list[str]):
        self.mistakes = [_shortened(line) for line in mistakes]
        super().__init__("\n".join(self.mistakes))

    @classmethod
    def at(cls, place: object, error: ValueError) -> "InputError":
        """Return the mistakes of an error, one a line, each after the place where it is."""
        return cls([f"{place}: {line}" for line in str(error).splitlines()])

    def __reduce__(self):
        """Let another process copy the lines: by default it would take the letters of the text."""
        return type(self), (self.mistakes,)


@contextmanager
def noted(mistakes: list[str]) -> Iterator[None]:
    """Add the mistakes of an InputError of the block, and go on."""
    try:
        yield
    except InputError as error:
        mistakes += error.mistakes


def _shortened(line: str) -> str:
    """Escape control characters, then cut: an escape takes up to ten characters."""
    line = printable(line[: MAX_LINE + 1])
    return line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]}…"


def needed(use: str, extra: str, *packages: str) -> None:
    """Raise InputError with what to install if a package of an extra is not there."""
    for package in packages:
        if find_spec(package) is None:
            install = f"pip install 'modelbudget[{extra}]'"
            raise InputError([f"{package}: not installed; needed for {use}: {install}"])
