"""Every tensor that two training steps allocate on one of several devices with shards."""

import warnings
from typing import Any

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_config import RunConfig
from modelbudget.measurement.build import build
from modelbudget.measurement.parallel.fake_process_group import (
    fake_process_group,
    fsdp_on_meta,
    serve_meta,
)
from modelbudget.measurement.parallel.rank import distribute, dtype_of_parameters, mesh_of, world
from modelbudget.measurement.parallel.trace_of_rank import ShardedTrace
from modelbudget.measurement.step.module_settings import arrange
from modelbudget.measurement.trace.bytes_at_peak import GATHERED
from modelbudget.measurement.trace.step_trace import StepTrace, traced_step

RESIZED = "FSDP2 gathers parameters"
"""Operation that allocates gathered parameters, by resizing their storage."""


class ShardedStepTrace(ShardedTrace, StepTrace):
    """A trace of what one rank holds that keeps every allocation."""

    def _change(self, key: int, n_bytes: int) -> None:
        n_changes = len(self.changes)
        super()._change(key, n_bytes)
        if len(self.changes) == n_changes:
            return
        if key in self._open:
            self._end(key)
        if n_bytes:
            self._begin(key, n_bytes)

    def _mark(self, key: int, kind: str) -> None:
        super()._mark(key, kind)
        if kind == GATHERED and key in self._open:
            self._open[key].operation = RESIZED


def trace_step_of_rank(architecture: Architecture, run: RunConfig) -> dict[str, Any]:
    """Trace two training steps of one of the devices that share a model as shards (zero: 2 or 3).

    Returns what `trace_step` does of a whole model.
    """
    with fake_process_group(0, world(run)), fsdp_on_meta(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "FSDP2-wrapped module")
        model = build(architecture, "meta", dtype_of_parameters(run))
        mesh = mesh_of(run)
        serve_meta(mesh.get_group("stage"))
        distribute(model, run, mesh)
        # Shards are the master weights, so that the optimizer has no copies of them.
        run = run.model_copy(update={"master_weights": False})
        arrange(model, run)
        return traced_step(ShardedStepTrace(model), model, run)
