"""nanochat's exponents: against the printed ones, and counts against the printed breakdown."""

import numpy as np
import pytest

from modelbudget.predict.nanochat_runs import ALL, COUNTS, LAYERS, MATRICES, counts, exponent, slope


def test_counts_are_the_printed_ones_of_12_layers():
    """dev/LOG.md: transformer_matrices, lm_head and total of d12."""
    found = {count: int(n[0]) for count, n in counts(np.array([12])).items()}
    assert found == {LAYERS: 84_935_808, MATRICES: 84_935_808 + 25_165_824, ALL: 412_091_556}


@pytest.mark.parametrize("count", COUNTS)
def test_the_printed_optima_have_the_printed_exponents(count):
    assert round(slope(count.optima), 2) == count.exponent
    assert exponent(count, count) == pytest.approx(slope(count.optima), abs=0.001)


def test_what_counting_explains():
    """From 0.54 to 0.37 nearly all; from 0.54 to 0.70 a third: the rest is other optimal depths."""
    assert exponent(MATRICES, ALL) == pytest.approx(0.384, abs=0.001)
    assert exponent(ALL, MATRICES) == pytest.approx(0.523, abs=0.001)
    assert exponent(MATRICES, LAYERS) == pytest.approx(0.600, abs=0.001)
