"""Rows of a grid: chunks of consecutive ones, by the indices of their values on each axis."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

ROWS = 2**17
"""Rows of a chunk: few enough for its columns to stay in a processor's cache."""


class Chunk(NamedTuple):
    """Consecutive rows: for each axis, the index of all rows, or one index for each row."""

    place: dict[str, int | np.ndarray]
    rows: int

    def where(self, passes: np.ndarray) -> "Chunk":
        return self._of(int(passes.sum()), lambda index: index[passes])

    def slice(self, start: int, rows: int) -> "Chunk":
        """Return at most `rows` rows from one on."""
        if start == 0 and rows >= self.rows:
            return self
        return self._of(min(rows, self.rows - start), lambda index: index[start : start + rows])

    def times(self, axis: str, size: int) -> "Chunk":
        """Return each row with each of the `size` indices of another axis, which varies fastest."""
        chunk = self._of(self.rows * size, lambda index: np.repeat(index, size))
        chunk.place[axis] = np.tile(np.arange(size), self.rows)
        return chunk

    def _of(self, rows: int, change: Callable[[np.ndarray], np.ndarray]) -> "Chunk":
        """Return other rows, of which an axis with one index for each row has others."""
        place = {n: v if isinstance(v, int) else change(v) for n, v in self.place.items()}
        return Chunk(place, rows)


Keeps = Callable[[Chunk], np.ndarray] | None
"""Which rows of a chunk are kept, by the axes that it has so far; None: all."""


def filled(chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """Yield the rows of chunks with the same constant axes in as few as have about ROWS rows."""
    waiting: list[Chunk] = []
    for chunk in chunks:
        if waiting and sum(part.rows for part in waiting) + chunk.rows > ROWS:
            yield _together(waiting)
            waiting = []
        waiting.append(chunk)
    if waiting:
        yield _together(waiting)


def _together(chunks: list[Chunk]) -> Chunk:
    place = {
        n: v if isinstance(v, int) else np.concatenate([chunk.place[n] for chunk in chunks])
        for n, v in chunks[0].place.items()
    }
    return Chunk(place, sum(chunk.rows for chunk in chunks))
