"""Every tensor that two training steps allocate on one of several devices with shards."""

import warnings
from typing import Any

import torch
from torch import nn

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_config import RunConfig
from modelbudget.measurement.arrange import arrange
from modelbudget.measurement.build import build
from modelbudget.measurement.parallel.private import fake_process_group, fsdp_on_meta, serve_meta
from modelbudget.measurement.parallel.rank import distribute, dtype_of_parameters, mesh_of, world
from modelbudget.measurement.parallel.trace import ShardedTrace
from modelbudget.measurement.step_trace import PARAMETERS, StepTrace, traced_step

GATHERED = "FSDP2 gathers parameters"
"""Operation that allocates gathered parameters, by resizing their storage."""


class ShardedStepTrace(ShardedTrace, StepTrace):
    """A trace of what one rank holds that keeps every allocation.

    A storage that grows again after it was emptied has gathered parameters.
    """

    def __init__(self, model: nn.Module):
        self._emptied: set[int] = set()
        super().__init__(model)

    def _resized(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        before = self._sizes.get(key)
        super()._resized(storage)
        after = self._sizes.get(key)
        if before == after:
            return
        if key in self._open:
            self._end(key)
            self._emptied.add(key)
        if after:
            self._begin(key, after)
            if key in self._emptied:
                self._open[key].kind, self._open[key].operation = PARAMETERS, GATHERED

    def _gone(self, key: int, _) -> None:
        super()._gone(key, _)
        self._emptied.discard(key)
        if key in self._open:
            self._end(key)


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
