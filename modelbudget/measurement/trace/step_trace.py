"""Every tensor that two training steps allocate: when, by which operation, and what it is for."""

from bisect import bisect_right
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from torch import nn

from modelbudget.architecture.run_config import RunConfig
from modelbudget.measurement.step.train import train
from modelbudget.measurement.trace.bytes_at_peak import GATHERED, allocations
from modelbudget.measurement.trace.module_trace import OPTIMIZER, Trace

RESIZED = "FSDP2 gathers parameters"
"""Operation that allocates gathered parameters, by resizing their storage."""


class Operation(NamedTuple):
    """An operation, the component that ran it, and the number of changes before it."""

    name: str
    component: str
    n_before: int


class Allocation(NamedTuple):
    """A storage that was live during the operations `start` to `end` - 1, counted from 1.

    `end` is None if it was still live after the last one. `operation` allocated it while
    `component` ran. `kind`: one of `bytes_at_peak.PURPOSES`.
    """

    bytes: int
    component: str
    operation: str
    phase: int
    start: int
    end: int | None
    kind: str


@dataclass
class Phase:
    """A phase of a step: its first and last operation, and its peak of live bytes."""

    name: str
    first: int
    last: int = 0
    peak: int = 0


class StepTrace(Trace):
    """A trace that knows the operation of every allocation. Views are not counted as operations."""

    def __init__(self, model: nn.Module):
        self.phases: list[Phase] = []
        self._starts: list[int] = []  # changes before each phase
        self._operations = [Operation("", "", 0)]
        super().__init__(model)

    @contextmanager
    def watching(self, phase: str):
        """Assign all operations of the block to a phase, and number them."""
        self.phases.append(Phase(phase, len(self._operations)))
        self._starts.append(len(self.changes))
        with super().watching(phase):
            yield self
        self.phases[-1].last, self.phases[-1].peak = len(self._operations) - 1, self.peak

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not func.is_view:
            component = OPTIMIZER if self._phase == OPTIMIZER else self._running()
            operation = Operation(str(func._overloadpacket), component, len(self.changes))
            self._operations.append(operation)
        return super().__torch_dispatch__(func, types, args, kwargs)

    def operation_at(self, change: int) -> int:
        """Return the number of the operation that made a change, from 0 on; 0 before the first."""
        return bisect_right(self._operations, change, key=lambda made: made.n_before) - 1

    def operation(self, number: int) -> Operation:
        return self._operations[number]

    def allocations(self) -> list[Allocation]:
        """Return every allocation, in the order of time."""
        made = []
        for storage in allocations(self.changes, self.marks):
            number, kind = self.operation_at(storage.start), storage.purpose.partition(".")[0]
            name, component, _ = self._operations[number]
            phase = bisect_right(self._starts, storage.start)
            end = None if storage.end is None else self.operation_at(storage.end) + 1
            name = RESIZED if kind == GATHERED else name
            made.append(Allocation(storage.n_bytes, component, name, phase, number, end, kind))
        return made


def trace_step(
    model: nn.Module, run: RunConfig, make_trace: Callable[[nn.Module], StepTrace] = StepTrace
) -> dict[str, Any]:
    """Trace two training steps of a model.

    Returns `allocations` and `phases` (of both steps) as plain data, `peaks` (the peaks of live
    bytes by phase that a comparison has too), and `n_parameters`.
    """
    trace = make_trace(model)
    values = train(model, run, {"peak_training_bytes"}, trace)
    return {
        "allocations": [item._asdict() for item in trace.allocations()],
        "phases": [asdict(item) for item in trace.phases],
        "peaks": values["peak_training_bytes"],
        "n_parameters": sum(parameter.numel() for parameter in model.parameters()),
    }
