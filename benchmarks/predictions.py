"""Time predictions without measurements: a formula over columns, and a sweep of 10 million models.

    python benchmarks/predictions.py

The total parameters of 10 million rows are computed in turn with four others in one process, so
quote the ratios: a slow machine slows all of them. One is a copy of the same columns, which is a
lower bound for reading and writing them. The others are closed formulas called model by model: our
own minimal one, and that of llm-analysis, a public calculator (Li 2023,
https://github.com/cli99/llm-analysis; `make bench` installs it in a separate environment). Then
one and ten million models go from a sweep file to Parquet, each in a process of its own, with its
peak memory.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from modelbudget.architecture.evaluators import polars_columns
from modelbudget.architecture.terms import total
from modelbudget.catalogue.named_models import Catalogue
from modelbudget.predict.axis_summary import AxisSummary
from modelbudget.predict.grid_rows import ROWS as SLICE
from modelbudget.predict.predicted_grids import frames, groups_of, predicted
from modelbudget.sweeps.derive import named_architecture
from modelbudget.sweeps.read import read

ROWS = 10_000_000
CALLS = 200_000
ROUNDS = 9
THREADS = 2
MODELS = Path(__file__).parent.parent / "configs" / "models"
SIZES = {
    "n_vocab": (256, 256_000), "n_ctx": (128, 32_768), "d_model": (64, 16_384),
    "n_layer": (1, 128), "d_ff": (64, 65_536),
}  # fmt: skip
SWEEP = """
title: Ten million
question: How many models per second?
base: gpt-2
grid:
  tied: [true, false]
  n_layer: {{from: 1, to: {n_layer}, steps: {n_layer}}}
  n_ctx: [128, 512, 1024, 2048, 4096]
  d_model: {{from: 64, to: 6400, steps: 100, multiple_of: 64}}
  d_ff: {{from: 64, to: 25600, steps: 100, scale: logarithmic, multiple_of: 8}}
derive: {{n_head: d_model / 64}}
measure: {{device: none, quantities: [parameters]}}
"""


@dataclass
class Config:
    """The sizes of a model, as calculators read them."""

    n_vocab: int
    n_ctx: int
    d_model: int
    n_layer: int
    d_ff: int


def closed_form(config: Config) -> int:
    """Count the parameters of a tied GPT-2 with an MLP of any width (Radford et al. 2019)."""
    d, layers = config.d_model, config.n_layer
    parts = {
        "token embedding": config.n_vocab * d,
        "position embedding": config.n_ctx * d,
        "norms": layers * 4 * d + 2 * d,
        "query, key, value": layers * (3 * d * d + 3 * d),
        "attention output": layers * (d * d + d),
        "MLP up": layers * (d * config.d_ff + config.d_ff),
        "MLP down": layers * (config.d_ff * d + d),
    }
    return sum(parts.values())


def over_columns() -> None:
    """Print rows per second of all methods."""
    import calculator  # imports transformers, whose memory must not count for the sweeps below

    gpt2 = named_architecture(Catalogue(MODELS)["gpt-2-124m"])
    random = np.random.default_rng(0)
    rows = pl.DataFrame({name: random.integers(*ends, ROWS) for name, ends in SIZES.items()})
    there = {name: rows[name].to_numpy() for name in SIZES}
    copies = {name: np.zeros_like(values) for name, values in there.items()}
    starts = range(0, ROWS, SLICE)

    def formula(start: int, decoder: Any = gpt2) -> pl.Series:
        return total_of(decoder, rows.slice(start, SLICE))

    def copy(start: int) -> None:
        for name, values in there.items():
            copies[name][start : start + SLICE] = values[start : start + SLICE]

    some = list(rows.head(CALLS).iter_rows())

    def one_by_one() -> None:
        for sizes in some:
            closed_form(Config(*sizes))

    assert formula(0).to_list() == [closed_form(Config(*sizes)) for sizes in some[:SLICE]]
    bare = formula(0, calculator.counted(gpt2)).to_list()
    assert bare == calculator.formula_alone(some[:SLICE]) == calculator.as_documented(some[:SLICE])
    with ThreadPoolExecutor(THREADS) as pool:
        works = {
            "copy of the columns": (ROWS, lambda: list(pool.map(copy, starts))),
            "formula over columns": (ROWS, lambda: list(pool.map(formula, starts))),
            "our closed form, one by one": (CALLS, one_by_one),
            f"{calculator.NAME}, formula alone": (CALLS, lambda: calculator.formula_alone(some)),
            f"{calculator.NAME}, as documented": (CALLS, lambda: calculator.as_documented(some)),
        }
        rounds = [
            {name: n / seconds(work) for name, (n, work) in works.items()} for _ in range(ROUNDS)
        ]
    print(f"total parameters of {ROWS:,} decoders, {len(SIZES)} columns, {ROUNDS} rounds, medians")
    for name in works:
        rate = statistics.median(rates[name] for rates in rounds) / 1e6
        ours = statistics.median(rates["formula over columns"] / rates[name] for rates in rounds)
        print(f"  {name:33} {rate:8.3f} M rows/s   formula: {ours:,.2f} x")
    (theirs,) = calculator.as_documented([[getattr(gpt2, name) for name in SIZES]])
    off = theirs / total(gpt2.parameters(gpt2)) - 1
    print(f"  {calculator.NAME} counts no biases and no positions: GPT-2 {off:.2%}")


def total_of(decoder: Any, rows: pl.DataFrame) -> pl.Series:
    """Return the total parameters of decoders with some sizes."""
    # One head as wide as the model: the number of heads does not change the count.
    fields = decoder.model_dump() | {"n_head": 1, "n_kv_head": 1} | rows.to_dict()
    named = polars_columns.namespace(type(decoder), fields | {"d_head": rows["d_model"]})
    return polars_columns.series(total(decoder.parameters(named)), rows.height)


def seconds(work) -> float:
    """Time the second of two calls: the first pays for page faults and idle processors."""
    work()
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def whole_sweep(n_layer: str) -> None:
    """Time a sweep from YAML to Parquet and its summary, in this process."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sweep.yaml"
        path.write_text(SWEEP.format(n_layer=n_layer))
        start = time.perf_counter()
        found = predicted(read(path, Catalogue(MODELS)))
        checked = time.perf_counter() - start
        along = AxisSummary(found.sweep.axes(), found.sweep.measure.quantities, groups_of(found))
        for number, rows in enumerate(frames(found, THREADS)):
            rows.write_parquet(Path(folder) / f"{number}.parquet")
            along.add(rows)
        along.totals(), along.shares()
        taken = time.perf_counter() - start
        size = sum(part.stat().st_size for part in Path(folder).glob("*.parquet"))
    status = Path("/proc/self/status").read_text().splitlines()
    peak = next(line for line in status if line.startswith("VmHWM"))
    print(
        f"  {along.rows:>10,} models in {taken:.1f} s, {along.rows / taken / 1e6:.1f} M/s "
        f"(checked in {checked:.2f} s), {size / 1e6:.0f} MB of Parquet, "
        f"at most {int(peak.split()[1]) / 1024:.0f} MiB of memory"
    )


def main() -> None:
    over_columns()
    print("a sweep from its file to Parquet")
    for n_layer in ("10", "100"):
        subprocess.run([sys.executable, __file__, n_layer], check=True)


if __name__ == "__main__":
    whole_sweep(*sys.argv[1:]) if sys.argv[1:] else main()
