"""Time predictions by programs over columns against closed formulas over the same columns.

    python benchmarks/regimes.py

Llama's layers with random sizes, a million models in chunks of the grid's size. CPU seconds of one
process, which include the runs with symbols. All rows of both are compared. Then one model of
PaLM's depth.
"""

import time

import numpy as np
import polars as pl

from modelbudget.architecture.evaluators import polars_columns
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.terms import of_model
from modelbudget.catalogue.named_models import Catalogue
from modelbudget.common.paths import MODELS
from modelbudget.predict import by_regime
from modelbudget.predict.by_program import quantities
from modelbudget.predict.formula import formula
from modelbudget.predict.grid_rows import ROWS as CHUNK
from modelbudget.sweeps.derive import named_architecture

ROWS = 1_000_000
QUANTITIES = ("activation_bytes", "flops_backward", "peak_training_bytes")


def fields_of(a, run: RunConfig) -> dict:
    random = np.random.default_rng(0)
    n_kv_head = random.integers(1, 17, ROWS)
    swept = {
        "n_layer": random.integers(1, 129, ROWS),
        "d_model": random.integers(8, 16_384, ROWS),
        "d_ff": random.integers(8, 65_536, ROWS),
        "n_kv_head": n_kv_head,
        "n_head": n_kv_head * random.integers(1, 9, ROWS),
        "batch": random.integers(1, 17, ROWS),
        "length": random.integers(1, 8_193, ROWS),
    }
    fields = {n: int(v) if isinstance(v, bool) else v for n, v in (dict(a) | dict(run)).items()}
    return fields | {name: pl.Series(values) for name, values in swept.items()}


def by_formula(family, quantity: str, fields: dict, n_row: int) -> pl.Series:
    a, r = (polars_columns.namespace(kind, fields) for kind in (family, RunConfig))
    terms, _ = formula(family, quantity, a, r)
    return polars_columns.series(of_model(quantity, terms), n_row)


def by_program(family, quantity: str, fields: dict, n_row: int) -> pl.Series:
    return by_regime.totals(family, quantity, fields, pl.repeat(True, n_row, eager=True))


def main() -> None:
    catalogue = Catalogue(MODELS)
    run = RunConfig.model_validate(
        {"batch": 2, "length": 2048, "dtype": "bfloat16", "attention_kernel": "flash"}
    )
    a = named_architecture(catalogue["llama-3-8b"])
    fields = fields_of(a, run)
    print(f"{'CPU seconds':20} {'formulas':>9} {'programs':>9}   equal rows")
    for quantity in QUANTITIES:
        seconds, equal = [0.0, 0.0], 0
        for start in range(0, ROWS, CHUNK):
            chunk = {
                n: v.slice(start, CHUNK) if isinstance(v, pl.Series) else v
                for n, v in fields.items()
            }
            n_row = min(CHUNK, ROWS - start)
            totals = []
            for i, method in enumerate((by_formula, by_program)):
                before = time.process_time()
                totals.append(method(type(a), quantity, chunk, n_row))
                seconds[i] += time.process_time() - before
            equal += (totals[0] == totals[1]).sum()
        print(f"{quantity:20} {seconds[0]:9.2f} {seconds[1]:9.2f}   {equal:,} of {ROWS:,}")
    palm = named_architecture(catalogue["palm-540b"])
    before = time.process_time()
    quantities("training", palm, run)
    print(f"PaLM 540B, one training step: {time.process_time() - before:.3f} CPU seconds")


if __name__ == "__main__":
    main()
