"""The search for the largest batch, of which each trace takes a second."""

from functools import cache

import numpy as np
import pytest

from modelbudget.api.traced_batch import MOST_TRACES, largest_batch
from modelbudget.api.trainers import MOST_AHEAD


@cache
def bytes_of_all(n_bytes) -> np.ndarray:
    """Return the bytes of every batch that fits in any of the rooms."""
    return np.array([n_bytes(batch) for batch in range(1, 200_000)])


@pytest.mark.parametrize("room", [9, 10, 59, 60, 1_234, 5_000, 5_001, 999_999])
@pytest.mark.parametrize("first", [1, 7, 64])
@pytest.mark.parametrize(
    "n_bytes",
    [
        lambda batch: 3 + 7 * batch,
        lambda batch: max(9, 10 * batch - 70),  # constant at first
        lambda batch: max(40 + 2 * batch, 9 * batch - 100, 20 * batch - 4_000),
        lambda batch: 5 * batch + 100 * (batch // 64),  # steps
    ],
)
def test_the_largest_batch_is_the_one_that_trying_all_finds(n_bytes, first, room):
    traced = []

    def trace(batch: int) -> dict[str, int]:
        traced.append(batch)
        return {"step": n_bytes(batch)}

    found = largest_batch({first: {"step": n_bytes(first)}}, trace, room)
    fitting = np.count_nonzero(bytes_of_all(n_bytes) <= room)
    assert found is not None
    assert (found.value, found.beyond) == (fitting, fitting + 1)
    assert len(traced) == len(set(traced)) <= MOST_TRACES


def test_a_search_ends_where_a_trace_fails_or_nothing_grows():
    assert largest_batch({1: {"step": 5}}, lambda batch: None, 100) is None
    assert largest_batch({1: {"step": 5}}, lambda batch: {"step": 5}, 100) is None


def test_phases_on_lines_need_few_traces_and_none_for_less_room():
    traced = []

    def trace(batch: int) -> dict[str, int]:
        traced.append(batch)
        return {"optimizer": 9_000 + batch, "backward": 3_000 + 700 * batch}

    peaks = {1: trace(1)}
    assert largest_batch(peaks, trace, 20_000) == (24, 25, None)
    assert traced == [1, 2, 24, 25]
    assert largest_batch(peaks, trace, 15_000) == (17, 18, None)
    assert largest_batch(peaks, trace, 9_000) == (0, 1, None)
    assert traced == [1, 2, 24, 25]
    assert largest_batch(peaks, lambda batch: None, 25_000) is None


def test_a_step_between_traces_is_seen():
    traced = []

    def trace(batch: int) -> dict[str, int]:
        traced.append(batch)
        return {"backward": 10 * batch + 500 * (batch > 40)}

    peaks = {1: trace(1)}
    assert largest_batch(peaks, trace, 1_500) == (100, 101, None)
    assert largest_batch(peaks, trace, 600) == (40, 41, None)
    assert {40, 41} <= {*traced}


def test_no_batch_far_beyond_the_largest_is_traced():
    """GRPO of Llama 3 8B took two minutes: up to 5 texts fit, and of 190,000 a program was run."""
    traced = []

    def trace(batch: int) -> dict[str, int]:
        traced.append(batch)
        of_loss = 20 * 10**9 + 12 * 10**9 * batch
        return {"step": max(80 * 10**9 + 24_576 * batch, of_loss)}

    solution = largest_batch({1: trace(1)}, trace, 84 * 10**9, MOST_AHEAD)
    assert solution is not None
    assert solution.value == 5
    assert max(traced) <= 4 * 5
