"""Memory and compute of transformers' classes relative to our modules, one model of each class.

    python benchmarks/once/classes.py [--batch 4] [--length 1024] [--dtype bfloat16]

Prints a Markdown table: bytes of activations, peak of two training steps, KV cache or state, and
FLOPs of the forward pass, each of the class as a multiple of our module's. Attention is flash where
both have it. A class without any of them (it has a loop over tokens) is left out.
"""

import argparse
import logging

import torch

from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_constraints import run_mistake
from modelbudget.architecture.terms import is_peak, total
from modelbudget.catalogue.named_models import Catalogue
from modelbudget.common.paths import MODELS
from modelbudget.measurement.one_model import measure_one
from modelbudget.measurement.process.device import Room
from modelbudget.measurement.reference.class_run import class_run
from modelbudget.measurement.reference.class_trace import LIMIT, trace_class
from modelbudget.sweeps.class_config import class_config
from modelbudget.sweeps.derive import named_architecture
from modelbudget.sweeps.sweep_file import Measure

QUANTITIES = {
    "activation_bytes": "activations",
    "peak_training_bytes": "training peak",
    "cache_bytes": "cache",
    "flops_forward": "forward FLOPs",
}


def smallest_of_each_class() -> dict:
    """Return the smallest published model of each class, by class."""
    found = {}
    for base in Catalogue(MODELS).bases.values():
        if base.model and base.transformers:
            a = named_architecture(base)
            one = (total(a.parameters(a)), base.label, a)
            found[base.transformers] = min(
                found.get(base.transformers, one), one, key=lambda o: o[0]
            )
    return dict(sorted(found.items()))


def ratios(kind: str, a, run: RunConfig) -> tuple[dict[str, float], str | None] | None:
    """Return the class's values by quantity, relative to ours, and its attention.

    None if one of both cannot be traced.
    """
    quantities = frozenset(QUANTITIES)
    if run_mistake(a, run):
        return None
    traced = trace_class(kind, class_config(kind, a), class_run(kind, run), quantities, limit=LIMIT)
    if not traced.values:
        return None
    measure = Measure(quantities=list(QUANTITIES), device="meta")
    ours = measure_one(a, run, measure, Room(0, 0)).values
    found = {}
    for quantity in QUANTITIES:
        both = [values.get(quantity, {}).values() for values in (traced.values, ours)]
        if all(both):
            theirs, own = map(max if is_peak(quantity) else sum, both)
            found[quantity] = theirs / own
    return found, traced.attention


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--dtype", default="bfloat16")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    print(
        "| class | model | attention |", *(f" {title} |" for title in QUANTITIES.values()), sep=""
    )
    print("| --- | --- | --- |", " --: |" * len(QUANTITIES), sep="")
    for kind, (_, label, a) in smallest_of_each_class().items():
        length = min(given.length, getattr(a, "n_ctx", 0) or given.length)
        for kernel in ("flash", "math"):
            run = RunConfig(
                batch=given.batch, length=length, dtype=given.dtype, attention_kernel=kernel
            )
            if found := ratios(kind, a, run):
                values, attention = found
                how = f"{attention}, {kernel}" if attention == "sdpa" else attention
                cells = (f"{values[q]:.2f}" if q in values else "–" for q in QUANTITIES)
                print(f"| {kind} | {label} | {how} | {' | '.join(cells)} |", flush=True)
                break


if __name__ == "__main__":
    main()
