"""Formulas of runs that note what is read: once for all runs with the same of it."""

from types import SimpleNamespace

from modelbudget.architecture.memoised_run import MemoisedRun, changed, once

calls = []


@once
def tokens(a, r):
    calls.append("tokens")
    return r.batch * r.length if a.has_tokens else r.batch


@once
def two_sequences(a, r):
    calls.append("two sequences")
    return tokens(a, changed(r, {"batch": 2})) + r.more


def runs(results, **values):
    return MemoisedRun({"batch": 1, "length": 8, "more": 0, "other": 0} | values, results)


def test_a_formula_is_computed_once_for_the_settings_that_it_reads():
    calls.clear()
    a, results = SimpleNamespace(has_tokens=1), {}
    assert tokens(a, runs(results)) == tokens(a, runs(results, other=3)) == 8
    assert tokens(SimpleNamespace(has_tokens=1), runs(results, more=1)) == 8
    assert calls == ["tokens"]
    assert tokens(a, runs(results, length=9)) == 9
    assert tokens(SimpleNamespace(has_tokens=0), runs(results)) == 1
    assert len(calls) == 3


def test_what_is_read_of_a_copy_is_read_of_the_run_unless_the_copy_changes_it():
    calls.clear()
    a, results = SimpleNamespace(has_tokens=1), {}
    assert two_sequences(a, runs(results)) == two_sequences(a, runs(results, batch=5)) == 16
    assert calls == ["two sequences", "tokens"]
    assert two_sequences(a, runs(results, more=1)) == 17
    assert calls == ["two sequences", "tokens", "two sequences"]
    assert two_sequences(a, runs(results, length=9)) == 18


def test_settings_that_a_run_does_not_have_are_read_too():
    @once
    def whole(r):
        return r.whole if hasattr(r, "whole") else r.length

    results = {}
    assert whole(runs(results)) == 8
    assert whole(runs(results, whole=20)) == 20
    assert whole(SimpleNamespace(length=4)) == 4
