"""Mistakes of one sweep file, without duplicates across points."""

from pathlib import Path

from modelbudget.common.errors import InputError

MAX_SHOWN = 20
MAX_MISTAKES = 100
"""Mistakes after which the search for more ends: each takes milliseconds."""


class Mistakes:
    """Collects the mistakes of one sweep file, without duplicates across points."""

    def __init__(self, path: Path):
        self.path = path
        self.points: dict[str, tuple[str, int]] = {}

    def add(self, line: str, point: str = "", times: int = 1) -> None:
        """Add a mistake found at `times` points, of which `point` is the first."""
        first, before = self.points.get(line, (point, 0))
        self.points[line] = first, before + times
        if len(self.points) == MAX_MISTAKES:
            self.raise_if_any()

    def raise_if_any(self) -> None:
        if self.points:
            raise self.error()

    def error(self) -> InputError:
        """Return the error with all mistakes; those beyond `MAX_SHOWN` are counted."""
        lines = [f"{line}{_at(*points)}" for line, points in self.points.items()]
        if len(lines) > MAX_SHOWN:
            least = "at least " if len(lines) == MAX_MISTAKES else ""
            lines[MAX_SHOWN:] = [f"and {least}{len(lines) - MAX_SHOWN:,} more mistakes"]
        return InputError([f"{self.path}: {line}" for line in lines])


def _at(first: str, times: int) -> str:
    points = "point" if times == 2 else "points"
    more = f" and {times - 1:,} more {points}" if times > 1 else ""
    return f" (at {first}{more})" if first else ""
