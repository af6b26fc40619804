"""Tasks in worker processes, whose outcomes are read later."""

import os
import pickle
import time

import pytest

from modelbudget.common.errors import InputError
from modelbudget.common.workers import read_ahead, spread


def test_workers_get_their_next_items_before_outcomes_are_read(tmp_path):
    def work(name: str) -> str:
        if name == "ends":
            os._exit(3)
        (tmp_path / name).touch()
        return name

    outcomes = read_ahead(spread(work, ["first", "ends", "last"], 1, timeout_s=60))
    deadline = time.monotonic() + 60
    while not (tmp_path / "last").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert {path.name for path in tmp_path.iterdir()} == {"first", "last"}
    (_, first), (_, failure), (_, last) = sorted(outcomes, key=lambda outcome: outcome[0])
    assert (first, last) == ("first", "last")
    assert failure.reason == "its process ended with exit status 3"


def test_an_error_between_outcomes_is_raised_where_they_are_read():
    """It ended them early, as if there were no more."""

    def outcomes():
        yield "first"
        raise OSError("no process can be started")

    read = read_ahead(outcomes())
    assert next(read) == "first"
    with pytest.raises(OSError, match="no process can be started"):
        next(read)


def test_an_error_of_another_process_has_the_same_lines():
    """Charts of the page are drawn in others. Its text had a line for each letter."""
    error = InputError(["answered_by = 'x': no chart", "c: unknown"])
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.mistakes) == (str(error), error.mistakes)
