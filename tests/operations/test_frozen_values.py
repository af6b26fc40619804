"""Predictions of 1,795 models against what closed formulas said before programs replaced them."""

from functools import cache

import pytest
from helpers import frozen_values

N_TESTS = 30
cases = cache(frozen_values.read)


@pytest.mark.parametrize(
    "number",
    [n if n % 10 == 0 else pytest.param(n, marks=pytest.mark.slow) for n in range(N_TESTS)],
)
def test_values_are_those_of_the_formulas_that_programs_replaced(number):
    """Only this sees a program that replaces a formula, in a run that no trace of a test has."""
    for a, run, values in cases()[number::N_TESTS]:
        assert frozen_values.values_of(a, run, values) == values, (a, run)
