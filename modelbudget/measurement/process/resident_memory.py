"""Resident memory of a model in a fresh process, as reported by the operating system.

Linux reports it for each process in `/proc/self/status` (proc(5)): `RssAnon` is its resident
private memory, `VmHWM` the peak of its resident memory. A tensor is resident once it is written to.
"""

import ctypes
import gc
import math
import re
from pathlib import Path

import numpy as np
import torch
from torch import nn

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_config import RunConfig
from modelbudget.common.workers import Failure
from modelbudget.measurement.build import build
from modelbudget.measurement.measured import Values
from modelbudget.measurement.process.device import use_one_core
from modelbudget.measurement.process.fresh_process import fresh
from modelbudget.measurement.step.train import two_steps
from modelbudget.modules.initialise import uninitialised

STATUS = Path("/proc/self/status")
ENOUGH_BYTES, MOST_COPIES = 2**28, 256
"""Bytes in copies of one model, or number of copies, that make page rounding negligible."""
WARM_UP = 128
"""Copies that are built first, to fill the free blocks that the start of the process leaves."""
M_MMAP_THRESHOLD, OWN_PAGES_BYTES = -3, 2**16
"""The C library maps larger blocks separately and unmaps them when they are freed (mallopt(3)).
By default it changes this threshold while it runs.
"""


def copies(n_bytes: int) -> int:
    """Return the number of copies of a model of `n_bytes` that are measured together."""
    return max(1, min(MOST_COPIES, ENOUGH_BYTES // n_bytes))


def resident(architecture: Architecture, run: RunConfig, n_copies: int, trained: bool) -> Values:
    """Measure the resident bytes of one model's parameters, with the standard error.

    The error needs enough copies. If `trained`, measure the peak of two training steps instead.

    Raises RuntimeError if the system does not report it or if the measuring process fails.
    """
    if not STATUS.exists():
        raise RuntimeError(f"resident memory is read in {STATUS}, which this system lacks")
    outcome = fresh(_measured, (architecture, run, n_copies, trained))
    if isinstance(outcome, Failure):
        raise RuntimeError(outcome.reason)
    return outcome


def _measured(model: tuple[Architecture, RunConfig, int, bool]) -> Values:
    architecture, run, n_copies, trained = model
    use_one_core()
    if trained:
        return of_training(architecture, run)
    return of_parameters(architecture, run, n_copies)


def of_parameters(architecture: Architecture, run: RunConfig, n_copies: int) -> Values:
    """Measure what a copy adds to the process, minus what a copy on meta adds.

    The latter are the objects of Python and torch, which outweigh the tensors of a small model.
    Both are slopes of a least-squares fit over the number of copies.
    """
    # Nothing is freed in between, so that no freed memory is reused.
    gc.disable()
    models = [built(architecture, run, "meta") for _ in range(WARM_UP)]
    objects, of_objects = _slope(models, architecture, run, n_copies, "meta")
    whole, of_whole = _slope(models, architecture, run, n_copies, "cpu")
    values = {"resident_bytes": {"model": round(whole - objects)}}
    if n_copies > 2:
        values["resident_error_bytes"] = {"model": math.ceil(math.hypot(of_objects, of_whole))}
    return values


def _slope(
    models: list[nn.Module], architecture: Architecture, run: RunConfig, n_copies: int, device: str
) -> tuple[float, float]:
    """Return the bytes of `RssAnon` for each further copy, and their standard error."""
    readings = [status("RssAnon")]
    for _ in range(n_copies):
        models.append(built(architecture, run, device))
        readings.append(status("RssAnon"))
    if n_copies < 3:
        return (readings[-1] - readings[0]) / n_copies, 0.0
    (slope, _), covariance = np.polyfit(np.arange(n_copies + 1), readings, 1, cov=True)
    return slope, math.sqrt(covariance[0, 0])


def built(architecture: Architecture, run: RunConfig, device: str) -> nn.Module:
    """Build a model; on a CPU, write to every parameter, so that its pages are resident."""
    with uninitialised():
        model = build(architecture, device, run.dtype)
    if device == "cpu":
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(0.01)
    return model


def of_training(architecture: Architecture, run: RunConfig) -> Values:
    """Measure the peak that building a model and two training steps add to the process.

    A warm-up first loads the libraries that torch needs for them.
    """
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_THRESHOLD, OWN_PAGES_BYTES)
    _warm_up(architecture, run)
    gc.collect()
    libc.malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = status("VmRSS")
    list(two_steps(built(architecture, run, "cpu"), run))
    return {"resident_peak_bytes": {"model": status("VmHWM") - before}}


def _warm_up(architecture: Architecture, run: RunConfig) -> None:
    """Run every operation of a step at its size.

    The optimizer, which needs most memory and has the same operations for each parameter, steps
    only for the smallest one.
    """
    model = built(architecture, run, "cpu")
    steps = two_steps(model, run)
    next(steps)
    smallest = min(model.parameters(), key=nn.Parameter.numel)
    for parameter in model.parameters():
        if parameter is not smallest:
            parameter.grad = None
    next(steps)


def status(name: str) -> int:
    """Return a field of the process's status, in bytes."""
    fields = dict(re.findall(r"(\w+):\s+(\d+) kB", STATUS.read_text()))
    return int(fields[name]) * 1024
