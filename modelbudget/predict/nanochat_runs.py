"""The exponent of the optimal size in nanochat's scaling runs, by what counts as size.

Karpathy counts the same runs in three ways, "Chinchilla-style", "Kaplan-style" and
"Transformer-only-style", and prints three exponents (github.com/karpathy/nanochat, commit 92d63d4e,
dev/LOG.md). All models have one shape for each depth, so that an optimum by one count is a depth,
and that depth has the other two counts.
"""

from typing import NamedTuple

import numpy as np

BUDGETS = (1e18, 2.15e18, 4.64e18, 1e19)
"""FLOPs of the runs, runs/scaling_laws.sh; the log prints the middle two as 2e18 and 5e18."""
DEPTHS = np.arange(6, 33, 2)
"""Even depths: every second layer has value embeddings."""
N_VOCAB = 32_768
"""Vocabulary size of `GPTConfig`."""


class Count(NamedTuple):
    """A way to count: its exponent and the optimal sizes for BUDGETS as printed."""

    title: str
    exponent: float
    optima: tuple[int, ...]


ALL = Count(
    "all parameters", 0.37, (416_320_605, 560_239_841, 741_495_903, 988_644_331)
)  # fmt: skip
MATRICES = Count(
    "layers and head", 0.54, (110_678_115, 167_797_457, 250_650_865, 381_758_347)
)  # fmt: skip
LAYERS = Count("layers", 0.70, (80_259_665, 131_488_566, 220_985_474, 401_213_504))
COUNTS = (ALL, MATRICES, LAYERS)


def counts(depth: np.ndarray) -> dict[Count, np.ndarray]:
    """Return the parameters of models by depth, in each way: hidden size 64 · depth.

    Layers: attention and MLP (12 · d²), and gates of value embeddings (192 in every second layer).
    All: three scalars a layer, and tables: one of the tokens, five of bigrams, and one of values in
    every second layer.
    """
    width = 64 * depth
    table = N_VOCAB * width
    layers = 12 * depth * width**2 + 192 * (depth // 2)
    head = layers + table
    return {LAYERS: layers, MATRICES: head, ALL: head + (6 + depth // 2) * table + 3 * depth}


def slope(sizes) -> float:
    """Return the slope of log size over log FLOPs, by least squares."""
    return float(np.polyfit(np.log(BUDGETS), np.log(sizes), 1)[0])


def exponent(optimum: Count, size: Count) -> float:
    """Return the exponent of one count for the models that are optimal by another.

    Sizes between even depths are interpolated on logarithmic scales.
    """
    table = counts(DEPTHS)
    logs = np.interp(np.log(optimum.optima), np.log(table[optimum]), np.log(table[size]))
    return slope(np.exp(logs))
