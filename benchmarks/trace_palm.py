"""Time to trace a training step of PaLM 540B, compared with torch's own memory tracker.

    python benchmarks/trace_palm.py

All 118 layers, forward and backward, without storage. One trace gives activation bytes, peak memory
and FLOPs by component; `MemTracker` gives only the peak. Takes a few minutes, mostly `MemTracker`.
"""

import statistics
import time
from pathlib import Path

import torch
from torch.distributed._tools.mem_tracker import MemTracker
from torch.nn import functional as F

from modelbudget.architecture.run_config import RunConfig
from modelbudget.catalogue.named_models import Catalogue
from modelbudget.measurement.build import build
from modelbudget.measurement.step.train import train
from modelbudget.measurement.trace.backend import backend
from modelbudget.modules.initialise import uninitialised
from modelbudget.sweeps.derive import named_architecture

ROUNDS = 5
MODELS = Path(__file__).parent.parent / "configs" / "models"
RUN = RunConfig(length=1024, dtype="bfloat16", attention_kernel="flash")


def traced(model) -> tuple[int, str]:
    """Return the peak in bytes, and the other results of the trace as text."""
    values = train(model, RUN, {"gradient_bytes"})
    others = ", ".join(
        f"{sum(values[quantity].values()):,} {quantity}"
        for quantity in ("activation_bytes", "flops_forward", "flops_backward")
    )
    return values["peak_training_bytes"]["first.forward_backward"], others


def tracked(model) -> int:
    """Return the peak in bytes of the same step by torch's tracker."""
    tracker = MemTracker()
    tracker.track_external(model)
    tokens = torch.zeros(RUN.batch, RUN.length, dtype=torch.long, device="meta")
    targets = torch.zeros_like(tokens)
    tracker.track_external(tokens, targets)
    with backend(RUN.backend, RUN.attention_kernel), tracker:
        logits = model(tokens)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        del logits
        loss.backward()
    return tracker.get_tracker_snapshot("peak")[torch.device("meta")]["Total"]


def main() -> None:
    palm = named_architecture(Catalogue(MODELS)["palm-540b"])
    seconds = []
    for _ in range(ROUNDS):
        with uninitialised():
            model = build(palm, "meta", RUN.dtype)
        start = time.perf_counter()
        peak, others = traced(model)
        seconds.append(time.perf_counter() - start)
    ours = statistics.median(seconds)
    print(f"PaLM 540B, {RUN.batch} × {RUN.length}, {RUN.dtype}, {RUN.attention_kernel} attention")
    print(f"  traced      {ours:7.2f} s (median of {ROUNDS}), peak {peak:,} bytes; {others}")
    with uninitialised():
        model = build(palm, "meta", RUN.dtype)
    start = time.perf_counter()
    peak = tracked(model)
    theirs = time.perf_counter() - start
    print(f"  MemTracker  {theirs:7.2f} s, peak {peak:,} bytes; {theirs / ours:.0f} × as long")


if __name__ == "__main__":
    main()
