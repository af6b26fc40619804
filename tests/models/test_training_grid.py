"""Published models over a grid of batch, length, dtype, attention, dropout and recomputation: what
predicted against measured training steps, component by component, to the byte.
"""

from itertools import product

import pytest
from helpers.tiers import ALL, pairwise
from helpers.training import PREDICTED, measured, predicted, without_zeros

from modelbudget.architecture.run_config import RunConfig
from modelbudget.families.decoder import Decoder
from modelbudget.sweeps.derive import named_architecture

N_LAYER = 2
"""Of models that are deeper: in `test_training.py` they run with all their layers."""

NAMES = ["gpt-2-124m", "llama-3-8b", "mixtral-8x7b", "palm-8b", "palm-62b", "palm-540b"]
SAME = {"palm-62b", "palm-540b"}
"""Models that differ from another in sizes alone."""
BARE = Decoder(
    n_vocab=50_257, d_model=64, n_layer=2, n_head=1, n_kv_head=1, d_head=64, d_ff=64, n_ctx=16,
    position="none", norm_scale=False, final_norm=False,
)  # fmt: skip
AXES = {
    "shape": [(1, 7), (3, 16)],
    "dtype": ["float32", "bfloat16"],
    "attention_kernel": ["math", "flash", "efficient"],
    "dropout": [False, True],
    "recompute": ["none", "selective", "full"],
}


def grid() -> list[RunConfig]:
    """All that a GPU can run: its flash attention takes half precision alone.

    `make test` has each pair of settings.
    """
    allowed = [one for one in product(*AXES.values()) if one[1:3] != ("float32", "flash")]
    runs = []
    for (batch, length), *words in allowed if ALL else pairwise(allowed):
        settings = dict(zip(list(AXES)[1:], words, strict=True))
        runs.append(RunConfig(batch=batch, length=length, **settings))
    return runs


def disagreements(a, run: RunConfig) -> list[str]:
    found = measured(a, run)
    return [
        f"{quantity}: {run}"
        for quantity, expected in predicted(a, run, (*PREDICTED, "peak_training_bytes")).items()
        if without_zeros(expected) != without_zeros(found[quantity])
    ]


@pytest.mark.parametrize(
    "name",
    ["bare", *(pytest.param(n, marks=pytest.mark.slow if n in SAME else ()) for n in NAMES)],
)
def test_nothing_differs_anywhere_on_the_grid(catalogue, name):
    a = BARE if name == "bare" else named_architecture(catalogue[name])
    a = a.model_copy(update={"n_layer": min(a.n_layer, N_LAYER)})
    assert [line for run in grid() for line in disagreements(a, run)] == []
