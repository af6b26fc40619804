"""Every tensor that two training steps allocate: when, by which operation, and what it is for."""

from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from modelbudget.architecture.run_config import RunConfig
from modelbudget.measurement.step.train import train
from modelbudget.measurement.trace.bytes_at_peak import TEMPORARY, first
from modelbudget.measurement.trace.module_trace import OPTIMIZER, Trace


@dataclass
class Allocation:
    """A storage that was live during the operations `start` to `end` - 1, counted from 1.

    `end` is None if it was still live after the last one. `operation` allocated it while
    `component` ran. `kind`: one of `bytes_at_peak.PURPOSES`.
    """

    bytes: int
    component: str
    operation: str
    phase: int
    start: int
    end: int | None = None
    kind: str = TEMPORARY


@dataclass
class Phase:
    """A phase of a step: its first and last operation, and its peak of live bytes."""

    name: str
    first: int
    last: int = 0
    peak: int = 0


class StepTrace(Trace):
    """A trace that keeps every allocation, and the number of the operation that made it.

    `phases` and `allocations` are in the order of time. Views are not counted as operations.
    """

    def __init__(self, model: nn.Module):
        self.allocations: list[Allocation] = []
        self.phases: list[Phase] = []
        self._open: dict[int, Allocation] = {}
        self._now = ("", "")
        self._n = 0
        super().__init__(model)

    @contextmanager
    def watching(self, phase: str):
        """Assign all operations of the block to a phase, and number them."""
        self.phases.append(Phase(phase, self._n + 1))
        with super().watching(phase):
            yield self
        self.phases[-1].last, self.phases[-1].peak = self._n, self.peak

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not func.is_view:
            self._n += 1
            component = OPTIMIZER if self._phase == OPTIMIZER else self._running()
            self._now = (str(func._overloadpacket), component)
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _watch(self, tensor: torch.Tensor) -> None:
        n_changes = len(self.changes)
        super()._watch(tensor)
        if len(self.changes) > n_changes:
            key, n_bytes = self.changes[-1]
            self._begin(key, n_bytes or 0)

    def _freed(self, key: int, n_bytes: int, _) -> None:
        super()._freed(key, n_bytes, _)
        self._end(key)

    def _begin(self, key: int, n_bytes: int) -> None:
        operation, component = self._now
        self._open[key] = Allocation(n_bytes, component, operation, len(self.phases), self._n)
        self.allocations.append(self._open[key])

    def _end(self, key: int) -> None:
        self._open.pop(key).end = self._n + 1

    def _mark(self, key: int, purpose: str) -> None:
        if allocation := self._open.get(key):
            allocation.kind = first(allocation.kind, purpose.partition(".")[0])


def trace_step(model: nn.Module, run: RunConfig) -> dict[str, Any]:
    """Trace two training steps of a model.

    Returns `allocations` and `phases` (of both steps) as plain data, `peaks` (the peaks of live
    bytes by phase that a comparison has too), and `n_parameters`.
    """
    return traced_step(StepTrace(model), model, run)


def traced_step(trace: StepTrace, model: nn.Module, run: RunConfig) -> dict[str, Any]:
    """Trace two training steps with a given trace; see `trace_step`."""
    values = train(model, run, {"peak_training_bytes"}, trace)
    return {
        "allocations": [asdict(item) for item in trace.allocations],
        "phases": [asdict(item) for item in trace.phases],
        "peaks": values["peak_training_bytes"],
        "n_parameters": sum(parameter.numel() for parameter in model.parameters()),
    }
