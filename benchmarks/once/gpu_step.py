"""Two steps on a CUDA device without a trace: the allocator's peaks, and which blocks were live."""

import gc
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_config import RunConfig
from modelbudget.huggingface.construct import config_object
from modelbudget.measurement.build import build, build_class
from modelbudget.measurement.process.allocator import change, statistics
from modelbudget.measurement.step.train import two_steps
from modelbudget.modules.initialise import initialise, uninitialised
from modelbudget.sweeps.class_config import class_config

MAKERS = ("modelbudget/", "transformers/", "peft/", "torch/optim/", "torch/nn/", "torch/")
"""Parts of the path of a file whose line is the maker of a block, best first."""


class Meter:
    """Stands where a trace stands, and reads the allocator instead."""

    def __init__(self, before: dict[str, int]):
        self.before, self.peak = before, 0
        self.peaks: dict[str, list[int]] = {}
        self.ends: dict[str, float] = {}
        self.flops: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def of_backend(self, name: str) -> None:
        """Do nothing: the device's kernels run."""

    @contextmanager
    def watching(self, phase: str) -> Iterator[None]:
        statistics()
        yield
        self.read(phase)

    def read(self, phase: str) -> None:
        _, peak = change(self.before, statistics())
        self.peak, self.peaks[phase] = peak.requested, list(peak)
        self.ends[phase] = time.time() * 1e6


def begin_history() -> None:
    history = {"context": "alloc", "stacks": "python", "max_entries": 10**7}
    torch.cuda.memory._record_memory_history("all", **history)


def clear() -> None:
    torch.cuda.memory._record_memory_history(enabled=None)
    gc.collect()
    torch.cuda.empty_cache()


def build_on_device(a: Architecture, run: RunConfig, kind: str | None) -> torch.nn.Module:
    if kind is not None:
        return build_class(kind, config_object(kind, class_config(kind, a)), run, "cuda")
    with uninitialised():
        model = build(a, "cuda", run.dtype)
    initialise(model)
    return model


def train(make: Callable[[], torch.nn.Module], run: RunConfig) -> dict:
    meter = Meter(statistics())
    model, trained = make(), set()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    statistics()
    begin_history()
    for phase in two_steps(model, run):
        meter.read(phase)
        if phase == "first.forward_backward":
            note_gradients(model, trained)
    live = at_peak(meter.ends)
    del model
    clear()
    times, start = [], time.monotonic()
    for _ in two_steps(make(), run):
        torch.cuda.synchronize()
        times.append(time.monotonic() - start)
    step_ms = round(1000 * (times[3] - times[1]), 2)
    return {
        "run": run.model_dump(), "peaks": meter.peaks, "step_ms": step_ms, "at_peak": live,
        "trained_tensors": len(trained),
    }  # fmt: skip


def note_gradients(model: torch.nn.Module, trained: set[str]) -> None:
    """Add the name of each parameter that gets a gradient from now on, also one freed at once."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda _, name=name: trained.add(name))


def at_peak(ends: dict[str, float]) -> dict[str, list[list]]:
    """Return [bytes, number, line] of the blocks that were live at the peak of each phase.

    `ends`: microseconds since the epoch. A line is the innermost one of the maker known best.
    """
    events = torch.cuda.memory._snapshot()["device_traces"][0]
    live: dict[int, tuple] = {}
    of_phases: dict[str, list[list]] = {}
    now, i = 0, 0
    for phase, end in ends.items():
        first, before, best, n_best = i, dict(live), now, -1
        while i < len(events) and events[i]["time_us"] <= end:
            now += _apply(events[i], live)
            if now > best:
                best, n_best = now, i
            i += 1
        for event in events[first : n_best + 1]:
            _apply(event, before)
        counts = Counter((size, _line(event.get("frames", ()))) for size, event in before.values())
        of_phases[phase] = [[*key, n] for key, n in sorted(counts.items(), reverse=True)[:40]]
    return of_phases


def _apply(event: dict, live: dict[int, tuple]) -> int:
    """Apply an event to the live blocks; return the bytes that it adds."""
    if event["action"] == "alloc":
        live[event["addr"]] = event["size"], event
        return event["size"]
    if event["action"] == "free_requested" and event["addr"] in live:
        return -live.pop(event["addr"])[0]
    return 0


def _line(frames) -> str:
    for maker in MAKERS:
        for frame in frames:
            if maker in frame["filename"]:
                file = "/".join(frame["filename"].split("/")[-2:])
                return f"{file}:{frame['line']} {frame['name']}"
    return ""
