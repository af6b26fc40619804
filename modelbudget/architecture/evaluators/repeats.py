"""Long sequences with what occurred before replaced by copies.

A zlib stream looks back 32 kB, a fraction of the page's graph of formulas.
"""

from collections.abc import Hashable, Sequence

SHORTEST = 3
"""Length of the shortest copy."""
TRIED = 64
"""Earlier places with the same beginning that are tried, the last ones."""


def without_repeats(sequence: Sequence[Hashable]) -> tuple[list[int], list[tuple[int, int, int]]]:
    """Return the places of what is new, and copies.

    A copy is the number of new places since the copy before, the distance to the earlier place,
    and the length. A copy may overlap its own beginning.
    """
    starts = list(zip(*(sequence[k:] for k in range(SHORTEST)), strict=False))
    places: dict[tuple, list[int]] = {}
    new, copies = [], []
    at = since = 0
    while at < len(sequence):
        distance = length = 0
        for place in places.get(starts[at], ())[-TRIED:] if at < len(starts) else ():
            end = at + SHORTEST
            while end < len(sequence) and sequence[end] == sequence[end - at + place]:
                end += 1
            if end - at >= length:
                distance, length = at - place, end - at
        if length:
            copies.append((since, distance, length))
            since = 0
        else:
            new.append(at)
            since += 1
        after = at + max(length, 1)
        for place in range(at, min(after, len(starts))):
            places.setdefault(starts[place], []).append(place)
        at = after
    return new, copies
