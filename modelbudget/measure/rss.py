"""Resident memory: what the system says that a model takes of the machine, in a fresh process.

Linux tells it of each process in `/proc/self/status` (proc(5)): `RssAnon` is memory of its own that
is really there, `VmHWM` the most that ever was. A tensor is there when it has been written to.
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
from modelbudget.measure.build import build
from modelbudget.measure.fresh import fresh
from modelbudget.measure.train import Values, two_steps
from modelbudget.modules.initialise import uninitialised

STATUS = Path("/proc/self/status")
ENOUGH_BYTES, MOST_COPIES = 2**28, 256
"""So many bytes in copies of one model, or so many copies, drown what pages round up to."""
WARM_UP = 8
M_MMAP_THRESHOLD, OWN_PAGES_BYTES = -3, 2**16
"""The C library gives what is larger than this pages of its own, and gives them back when it is
freed (mallopt(3)); else it keeps some, as many as it likes.
"""


def copies(n_bytes: int) -> int:
    """How many models of so many bytes are held at once."""
    return max(1, min(MOST_COPIES, ENOUGH_BYTES // n_bytes))


def resident(architecture: Architecture, run: RunConfig, n_copies: int, trained: bool) -> Values:
    """Bytes that the parameters of one model take, with the standard error where there are enough
    copies to know; or, where it is `trained`, the most that two steps take at once.

    Raises RuntimeError where the system does not tell, and where the process that asks it fails.
    """
    if not STATUS.exists():
        raise RuntimeError(f"resident memory is read in {STATUS}, which this system has not")
    found = fresh(_measured, (architecture, run, n_copies, trained))
    if isinstance(found, Failure):
        raise RuntimeError(found.reason)
    return found


def _measured(model: tuple[Architecture, RunConfig, int, bool]) -> Values:
    architecture, run, n_copies, trained = model
    torch.set_num_threads(1)
    if trained:
        return of_training(architecture, run)
    return of_parameters(architecture, run, n_copies)


def of_parameters(architecture: Architecture, run: RunConfig, n_copies: int) -> Values:
    """What one more copy adds to the process, less what one more copy without storage adds: the
    objects of Python and torch, of which a small model has more than of numbers.

    Both are slopes of least squares over the number of copies.
    """
    # Nothing is freed in between, so that nothing is put where something was. The first ones fill
    # the holes that starting has left.
    gc.disable()
    held = [built(architecture, run, "meta") for _ in range(WARM_UP)]
    objects, of_objects = _slope(held, architecture, run, n_copies, "meta")
    whole, of_whole = _slope(held, architecture, run, n_copies, "cpu")
    values = {"resident_bytes": {"model": round(whole - objects)}}
    if n_copies > 2:
        values["resident_error_bytes"] = {"model": math.ceil(math.hypot(of_objects, of_whole))}
    return values


def _slope(
    held: list[nn.Module], architecture: Architecture, run: RunConfig, n_copies: int, device: str
) -> tuple[float, float]:
    """Bytes of `RssAnon` for each copy that joins those held, and the standard error of that."""
    there = [status("RssAnon")]
    for _ in range(n_copies):
        held.append(built(architecture, run, device))
        there.append(status("RssAnon"))
    if n_copies < 3:
        return (there[-1] - there[0]) / n_copies, 0.0
    (slope, _), covariance = np.polyfit(np.arange(n_copies + 1), there, 1, cov=True)
    return slope, math.sqrt(covariance[0, 0])


def built(architecture: Architecture, run: RunConfig, device: str) -> nn.Module:
    """On a CPU with a value in every parameter, so that each has its pages. Which value does not
    matter.
    """
    with uninitialised():
        model = build(architecture, device, run.dtype)
    if device == "cpu":
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(0.01)
    return model


def of_training(architecture: Architecture, run: RunConfig) -> Values:
    """The most that building a model and two steps of training it add to the process, once what
    torch loads for them is there.
    """
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_THRESHOLD, OWN_PAGES_BYTES)
    _warm_up(architecture, run)
    gc.collect()
    libc.malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # forgets the highest so far
    before = status("VmRSS")
    list(two_steps(built(architecture, run, "cpu"), run))
    return {"resident_peak_bytes": {"model": status("VmHWM") - before}}


def _warm_up(architecture: Architecture, run: RunConfig) -> None:
    """Run every operation of a step in its size; those of the optimizer, which has the same ones
    for each parameter and the largest memory, for the smallest parameter alone.
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
    """A line of the process's status, in bytes."""
    return int(re.search(rf"{name}:\s+(\d+) kB", STATUS.read_text())[1]) * 1024
