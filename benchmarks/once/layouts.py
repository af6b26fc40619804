"""Time the prediction of a million layouts of devices, and of one at a time.

    python benchmarks/once/layouts.py

Llama 3 70B in bfloat16 on 1 to 1,024 devices (powers of two), 16 sequences on each replica: every
layout that model and run allow, with many lengths. Some of the layouts are predicted once more, one
by one, and compared.
"""

import time
from pathlib import Path

import polars as pl

from modelbudget.catalogue.named_models import Catalogue
from modelbudget.common.paths import MODELS
from modelbudget.predict.fitting_layouts import numbers_of_devices, pareto, smallest
from modelbudget.predict.largest_that_fits import needed
from modelbudget.predict.layout_search import LAYOUT, layouts
from modelbudget.sweeps.derive import resolved

BASE, MOST, ROOM = "llama-3-70b", 1024, 80 * 10**9
RUN = {"dtype": "bfloat16", "attention_kernel": "flash", "batch": 16}
AXES = {"length": [64 * i for i in range(1, 91)]}
COMPARED = 200


def main() -> None:
    base = Catalogue(MODELS)[BASE]
    start = time.perf_counter()
    found = layouts(base, RUN, numbers_of_devices(MOST), axes=AXES)
    taken = time.perf_counter() - start
    print(f"{found.height:,} layouts in {taken:.1f} s, {found.height / taken / 1e3:,.0f} k/s")
    start = time.perf_counter()
    known = found.drop_nulls("bytes")
    for row in known.sample(COMPARED, seed=0).iter_rows(named=True):
        fields = {name: row[name] for name in (*AXES, *LAYOUT, "pipeline_rank")}
        assert needed(resolved(base, RUN | fields), "training") == row["bytes"]
    taken = time.perf_counter() - start
    rate = f"{COMPARED / taken:,.0f} /s"
    print(f"{COMPARED} of the {known.height:,} with a formula one by one, equal, {rate}")
    fitting = found.filter(pl.col("bytes") <= ROOM)
    print(f"{fitting.height:,} fit {ROOM / 1e9:.0f} GB, from {smallest(found, ROOM):,} devices on")
    print(pareto(found).select("devices", "bytes", *AXES, *LAYOUT))
    status = Path("/proc/self/status").read_text().splitlines()
    print(next(line for line in status if line.startswith("VmHWM")))


if __name__ == "__main__":
    main()
