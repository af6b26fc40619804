"""Copies of earlier rows in the page's graph of formulas."""

import random

from helpers.readings import with_repeats

from modelbudget.architecture.evaluators.repeats import without_repeats


def test_a_sequence_comes_back_and_repeats_are_left_out():
    """Blocks in random order, which no formula has: copies of copies, and overlaps."""
    draw = random.Random(31)
    blocks = [[draw.randrange(4) for _ in range(draw.randrange(1, 40))] for _ in range(12)]
    for n_block in (0, 1, 2, 50, 400):
        sequence = [one for _ in range(n_block) for one in draw.choice(blocks)]
        new, copies = without_repeats(sequence)
        assert with_repeats([sequence[i] for i in new], copies) == sequence
        assert len(new) + sum(length for *_, length in copies) == len(sequence)
    assert len(new) < len(sequence) / 50
