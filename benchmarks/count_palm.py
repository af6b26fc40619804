"""Time to count PaLM 540B, compared with building its bare torch modules.

    python benchmarks/count_palm.py

Both run in turn in one process, so quote the ratio: a slow machine slows both.
"""

import statistics
import time
from pathlib import Path

import torch
from torch import nn

from modelbudget.catalogue.named_models import Catalogue
from modelbudget.families.decoder import Decoder
from modelbudget.measurement.build import build
from modelbudget.measurement.count import count
from modelbudget.modules.initialise import uninitialised
from modelbudget.sweeps.derive import named_architecture

ROUNDS = 30
MODELS = Path(__file__).parent.parent / "configs" / "models"


def bare_modules(a: Decoder) -> list[nn.Module]:
    """Build PaLM's leaf modules as a flat list: no layers, no names, no count."""
    d_query = a.n_head * a.d_head
    leaves = [nn.Embedding(a.n_vocab, a.d_model), nn.LayerNorm(a.d_model, bias=False)]
    for _ in range(a.n_layer):
        leaves += [
            nn.LayerNorm(a.d_model, bias=False),
            nn.Linear(a.d_model, d_query, bias=False),
            nn.Linear(a.d_model, a.d_head, bias=False),
            nn.Linear(a.d_model, a.d_head, bias=False),
            nn.Linear(d_query, a.d_model, bias=False),
            nn.Linear(a.d_model, a.d_ff, bias=False),
            nn.Linear(a.d_model, a.d_ff, bias=False),
            nn.Linear(a.d_ff, a.d_model, bias=False),
        ]
    return leaves


def seconds(work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    palm = named_architecture(Catalogue(MODELS)["palm-540b"])

    def bare():
        with torch.device("meta"):
            bare_modules(palm)

    def built():
        build(palm, "meta", "float32")

    def counted():
        count(build(palm, "meta", "float32"))

    with uninitialised():
        total = sum(part.parameters for part in count(build(palm, "meta", "float32")).values())
        rounds = [(seconds(bare), seconds(built), seconds(counted)) for _ in range(ROUNDS)]
    print(f"PaLM 540B on meta: {total:,} parameters, {ROUNDS} rounds, medians")
    for name, times in zip(
        ("bare modules", "built", "built and counted"), zip(*rounds, strict=True), strict=True
    ):
        ratio = statistics.median(t / r[0] for t, r in zip(times, rounds, strict=True))
        print(f"  {name:<18} {1e3 * statistics.median(times):7.1f} ms   {ratio:.2f} × bare")


if __name__ == "__main__":
    main()
