"""Gradients in the buckets of torch's DistributedDataParallel: formulas against its reducer on a
fake process group, and that against processes that communicate.
"""

import random

import polars as pl
import pytest
from helpers.devices import COMPARED, compared, measured, predicted, programmed
from helpers.divided import LLAMA, SHAPES, SMALL
from helpers.gloo import steps_of_all_ranks
from helpers.readings import in_first_row
from helpers.tiers import seeds

from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_constraints import run_mistake
from modelbudget.families.decoder import Decoder
from modelbudget.predict.predict import predict


def random_device(seed: int) -> tuple[Decoder, RunConfig]:
    """Return a small decoder, and a run with its gradients in buckets."""
    draw = random.Random(seed)
    shape = {
        "n_vocab": draw.choice([4, 64, 2000]), "d_model": draw.choice([4, 36]),
        "n_kv_head": draw.choice([1, 4]), "d_ff": draw.choice([4, 120, 400]),
        "tied": draw.random() < 0.5, "parallel": draw.random() < 0.3, "gated": draw.random() < 0.5,
        "position": draw.choice(["none", "rotary", "learned"]),
        **{f"{name}_bias": draw.random() < 0.4 for name in ("query", "output", "up", "head")},
    }  # fmt: skip
    run = {
        "batch": draw.choice([1, 4]), "length": draw.choice([2, 16]), "data_parallel": 2,
        "gradient_buckets": ("copied", "views")[seed % 2], "dropout": draw.random() < 0.3,
        "recompute": draw.choice(["none", "full", "selective"]),
        "optimizer": draw.choice(["adamw", "momentum"]), "foreach": draw.random() < 0.3,
    }  # fmt: skip
    if seed % 3 == 0:
        run |= {"dtype": "bfloat16", "master_weights": True}
    return Decoder(**SMALL | shape), RunConfig(**run)


@pytest.mark.parametrize("seed", seeds(8))
def test_random_devices_are_predicted(seed):
    a, run = random_device(seed)
    assert run_mistake(a, run) is None
    formulas, values = predicted(a, run), measured(a, run)
    assert programmed(a, run) == values, run
    assert formulas.items() <= values.items(), run


def test_buckets_are_a_copy_of_all_gradients_from_the_start():
    a = Decoder(**SMALL | LLAMA)
    alone, copied, views = (
        programmed(a, RunConfig(batch=2, length=16, data_parallel=4, gradient_buckets=buckets))
        for buckets in ("none", "copied", "views")
    )
    n_bytes = sum(alone["gradient_bytes"].values())
    peaks = "peak_training_bytes"
    for phase, n in alone[peaks].items():
        assert copied[peaks][phase] == n + n_bytes
    assert views[peaks]["second.optimizer"] == alone[peaks]["second.optimizer"]
    assert views["gradient_bytes"] == copied["gradient_bytes"] == alone["gradient_bytes"]


@pytest.mark.parametrize("buckets", ["copied", "views"])
def test_with_autocast(buckets):
    """Gradients are cast before they reach their bucket."""
    a = Decoder(**SMALL)
    run = RunConfig(length=8, autocast="bfloat16", data_parallel=2, gradient_buckets=buckets)
    assert programmed(a, run) == measured(a, run)


@pytest.mark.parametrize("buckets", ["copied", "views"])
def test_processes_that_communicate_hold_the_same(tmp_path, buckets):
    """With the real reducer, which orders its buckets anew before the second step."""
    a = Decoder(**SMALL | SHAPES["Llama"])
    run = RunConfig(batch=2, length=16, backend="cpu", data_parallel=2, gradient_buckets=buckets)
    for found in steps_of_all_ranks(a, run, tmp_path):
        assert compared(found) == measured(a, run)


def test_columns_equal_integers():
    for seed in (0, 1):
        a, run = random_device(seed)
        row = {"architecture": "it", "run": "so", "family": "decoder"}
        row |= a.model_dump() | run.model_dump()
        another = {"architecture": "another", "n_layer": 12, "batch": 8, "d_model": 40}
        table = predict(pl.DataFrame([row, row | another]), COMPARED)
        for quantity, values in predicted(a, run).items():
            assert in_first_row(table, quantity) == values, (seed, quantity)


REFUSED = {
    "gradient_buckets: views": "gradient_buckets = 'views': data_parallel = 1 has no other device",
    "gradient_buckets: copied, data_parallel: 2, zero: 3": "gradient_buckets = 'copied': not known "
    "yet with zero: 3; allowed: 0",
    "gradient_buckets: copied, data_parallel: 2, tensor_parallel: 2": "not known yet with "
    "tensor_parallel: 2; allowed: 1",
    "gradient_buckets: views, data_parallel: 2, vocabulary_dtype: float32": "not known yet with "
    "vocabulary_dtype: float32; allowed: dtype",
}


@pytest.mark.parametrize("settings", REFUSED)
def test_runs_without_meaning_are_refused(sweep, settings):
    with pytest.raises(Exception, match="gradient_buckets") as error:
        sweep(f"base: gpt-2-124m\nfixed: {{{settings}}}\npoints: [{{}}]\n")
    assert REFUSED[settings] in str(error.value)
