"""Passes of the stages of one device of a pipeline (`torch.distributed.pipelining`), on meta.

Torch's schedule decides when which microbatch passes, and what is kept; sends and receives move
nothing and are done at once.
"""

from collections import Counter
from itertools import count
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)

from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import is_interleaved, parts_of_length
from modelbudget.measurement.measured import Values
from modelbudget.measurement.step.operations_of_step import operations
from modelbudget.measurement.step.train import Pass, loss_of, of_pass, texts
from modelbudget.measurement.trace.module_trace import Trace

SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


def make_pass(width: int, mesh: DeviceMesh, trace: Trace, stage: nn.Module, run: RunConfig) -> Pass:
    """Return the passes of all microbatches through one stage, or through a list of stages.

    The first device has the tokens, the last the targets. `width`: of the states between stages;
    `mesh`: the devices of one pipeline.
    """
    index = mesh.get_local_rank()
    is_first, is_last = index == 0, index == run.pipeline_parallel - 1
    largest: Counter[str] = Counter()

    def look(*_) -> None:
        """Keep what is saved by the most microbatches at once, after each forward pass."""
        nonlocal largest
        largest = max(largest, trace.saved(), key=Counter.total)

    def loss_fn(logits, labels) -> torch.Tensor:
        loss = loss_of(logits, labels, run)
        look()
        return loss

    parts = list(stage.children()) if is_interleaved(run) else [stage]
    for part in parts:
        part.register_forward_hook(look)
    schedule = _schedule(parts, run, width, mesh, loss_fn)
    tokens, targets, *_ = texts(stage, run)
    inputs = (tokens,) if is_first else ()
    wanted = targets if is_last else None
    del tokens, targets  # what a stage has no use for is freed

    def run_pass() -> tuple[Values, int]:
        with operations(stage, run), trace.watching("forward"):
            schedule.step(*inputs, target=wanted, return_outputs=run.outputs == "kept")
        return of_pass(trace, stage, dict(largest)), trace.peak

    return run_pass


def _schedule(parts: list[nn.Module], run: RunConfig, width: int, mesh: DeviceMesh, loss_fn):
    """Return torch's schedule of a device's stages, with the shapes of a microbatch."""
    device = next(parts[0].parameters()).device
    shape = run.batch // run.n_microbatch, run.length
    tokens = torch.empty(shape, dtype=torch.long, device="meta")
    of_states = shape[0], run.length // parts_of_length(run), width
    dtype = getattr(torch, run.dtype)
    states = torch.empty(of_states, dtype=dtype, device="meta", requires_grad=True)
    pipes: list[Any] = [
        PipelineStage(
            part,
            index,
            run.pipeline_parallel * run.virtual_stages,
            device,
            input_args=(tokens if index == 0 else states,),
            output_args=(states,),
            group=mesh.get_group(),
        )
        for index, part in zip(count(mesh.get_local_rank(), run.pipeline_parallel), parts)
    ]
    if is_interleaved(run):
        return ScheduleInterleaved1F1B(pipes, run.n_microbatch, loss_fn=loss_fn)
    return SCHEDULES[run.pipeline_schedule](pipes[0], run.n_microbatch, loss_fn=loss_fn)
