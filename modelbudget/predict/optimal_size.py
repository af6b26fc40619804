"""How the compute-optimal size grows with compute, by what counts as size.

A published fit of the loss, E + A / N^α + B / D^β over total parameters N and tokens D, decides
which of many models is best for each budget. The models are real shapes, counted exactly: decoders
like those of Kaplan et al. 2020, with every hidden size of a range. Pearce and Song (2024) do the
same with a power law between the parameters with and without embeddings.

Nothing is trained or fitted to losses here: the exponents follow from the published fits.
"""

from typing import NamedTuple

import numpy as np
import polars as pl

from modelbudget.architecture.counting_conventions import BY_NAME, PARAMETERS, Convention
from modelbudget.architecture.evaluators import polars_columns
from modelbudget.catalogue.named_models import Base
from modelbudget.sweeps.derive import resolved

BUDGETS = 100
"""Budgets at which the best model is chosen, evenly spaced on a logarithmic scale."""


class LossFit(NamedTuple):
    """A published fit of the loss: E + a / N^α + b / D^β, N total parameters, D tokens."""

    title: str
    source: str
    a: float
    b: float
    alpha: float
    beta: float

    @property
    def exponent(self) -> float:
        """That of the optimal N, in the limit where all parameters count."""
        return self.beta / (self.alpha + self.beta)


HOFFMANN = LossFit(
    "Hoffmann et al. 2022", "Appendix D.3; α and β in four digits",
    406.4, 410.7, 0.3392, 0.2849,
)  # fmt: skip
BESIROGLU = LossFit(
    "Besiroglu et al. 2024", "the same runs, fitted again", 482.01, 2085.43, 0.3478, 0.3658
)
FITS = (HOFFMANN, BESIROGLU)


class Shapes(NamedTuple):
    """Models with every hidden size from `least` to `most`, and d_model / n_layer near `aspect`.

    No model has less than one layer, so the smallest are wider than `aspect`.
    """

    least: int
    most: int
    aspect: int

    def counted(self, base: Base, convention: Convention, length: int) -> np.ndarray:
        """Return the counts of all shapes as floats, in ascending order of the hidden size."""
        widths = np.arange(self.least, self.most + 1)
        layers = np.maximum(1, np.rint(widths / self.aspect)).astype(int)
        smallest, _ = resolved(base, {"d_model": self.least, "n_layer": 1, "n_head": 1})
        sizes = {"d_model": widths, "d_head": widths, "d_ff": 4 * widths, "n_layer": layers}
        fields = smallest.model_dump() | {name: pl.Series(all_) for name, all_ in sizes.items()}
        grid = polars_columns.namespace(base.family, fields)
        counts = convention.value(base.family.parameters(grid), grid, length)
        return polars_columns.series(counts, len(widths)).cast(pl.Float64).to_numpy()


def exponent(
    base: Base, shapes: Shapes, fit: LossFit, convention: Convention, length: int = 1024
) -> float:
    """Return the exponent of the optimal size over compute, by what a convention counts as size.

    Compute is 6 · size · D where the convention is of parameters, else size · D.
    """
    total = shapes.counted(base, BY_NAME["total"], length)
    size = shapes.counted(base, convention, length)
    return slope(total, size, 6 * size if convention.unit == PARAMETERS else size, fit)


def slope(total: np.ndarray, size: np.ndarray, per_token: np.ndarray, fit: LossFit) -> float:
    """Return the slope of log optimal size over log compute, by least squares.

    All three ascend: total parameters, size, and compute for each token. Budgets whose best model
    is the smallest or the largest of all are left out: a better one may lie outside.
    """
    low, high = (_as_good_as_next(total, per_token, fit, at) for at in (0, len(total) - 2))
    budgets = np.geomspace(low, high, BUDGETS)
    # b / D^β with D = budget / compute for each token, as a product: no power of each pair.
    of_tokens = np.outer(budgets**-fit.beta, fit.b * per_token**fit.beta)
    best = np.argmin(fit.a / total**fit.alpha + of_tokens, axis=1)
    inside = (best > 0) & (best < len(size) - 1)
    return float(np.polyfit(np.log(budgets[inside]), np.log(size[best[inside]]), 1)[0])


def _as_good_as_next(total: np.ndarray, per_token: np.ndarray, fit: LossFit, at: int) -> float:
    """Return the budget for which a model and the next larger one have the same loss."""
    n, c = total[[at, at + 1]], per_token[[at, at + 1]]
    gained = fit.a * (n[0] ** -fit.alpha - n[1] ** -fit.alpha)
    lost = fit.b * (c[1] ** fit.beta - c[0] ** fit.beta)
    return (lost / gained) ** (1 / fit.beta)
