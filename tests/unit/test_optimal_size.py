"""Exponents of the compute-optimal size: against closed forms and published values."""

import numpy as np
import pytest

from modelbudget.architecture.counting_conventions import BY_NAME
from modelbudget.predict.optimal_size import BESIROGLU, FITS, HOFFMANN, Shapes, exponent, slope

KAPLAN_RANGE = (8, 1700)


def power_law(fit, gamma, least, most):
    """Pearce and Song's closed form: N without embeddings, N + gamma · N^(1/3) in all."""
    n = np.geomspace(least, most, 4000)
    total = n + gamma * np.cbrt(n)
    compute = (
        6 * n * (fit.beta / fit.alpha * fit.b / fit.a) ** (1 / fit.beta)
        * (n + gamma / 3 * np.cbrt(n)) ** (-1 / fit.beta) * total ** ((1 + fit.alpha) / fit.beta)
    )  # fmt: skip
    return total, n, compute


@pytest.mark.parametrize("fit", FITS)
def test_the_slope_of_a_power_law_is_that_of_its_closed_form(fit):
    total, n, compute = power_law(fit, 47_491, 768, 1.5e9)
    even = np.geomspace(compute[1], compute[-2], 500)
    expected = np.polyfit(np.log(even), np.interp(np.log(even), np.log(compute), np.log(n)), 1)[0]
    assert slope(total, n, 6 * n, fit) == pytest.approx(expected, abs=0.002)
    assert slope(total, total, 6 * total, fit) == pytest.approx(fit.exponent, abs=0.002)


def test_shapes_are_counted_exactly(catalogue):
    shapes = Shapes(8, 1700, 40)
    counts = shapes.counted(catalogue["gpt-2"], BY_NAME["total"], 1024)
    d, n_layer = 1600, 40
    by_hand = (50_257 + 1024) * d + n_layer * (12 * d * d + 13 * d) + 2 * d
    assert counts[d - 8] == by_hand
    without = shapes.counted(catalogue["gpt-2"], BY_NAME["without_embeddings"], 1024)
    assert (without[0], round(without[-1], -7)) == (888, 1.46e9)  # as the page says
    # Kaplan et al. 2020: 768 to 1.5 billion non-embedding parameters; matrices alone of the least
    ends = shapes.counted(catalogue["gpt-2"], BY_NAME["kaplan"], 1024)[[0, -1]]
    assert ends[0] == 768
    assert ends[1] == pytest.approx(1.5e9, rel=0.04)


def test_what_counts_decides_the_exponent(catalogue):
    """Kaplan et al. 2020 have 0.73, from models of up to 1.5 billion parameters."""
    base = catalogue["gpt-2"]
    small, large = (Shapes(*ends, 40) for ends in (KAPLAN_RANGE, (4096, 20_000)))
    for fit, least in ((HOFFMANN, 0.68), (BESIROGLU, 0.72)):
        without, total = BY_NAME["without_embeddings"], BY_NAME["total"]
        assert exponent(base, small, fit, total) == pytest.approx(fit.exponent, abs=0.005)
        assert least < exponent(base, small, fit, without) < least + 0.03
        assert exponent(base, large, fit, without) == pytest.approx(fit.exponent, abs=0.005)
