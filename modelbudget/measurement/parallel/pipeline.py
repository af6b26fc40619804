"""Training steps of one stage of a pipeline (`torch.distributed.pipelining`), on meta.

Torch's schedule decides when which microbatch passes, and what is kept; sends and receives move
nothing and are done at once.
"""

from collections import Counter
from collections.abc import Set
from functools import partial
from typing import cast

import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import stage_index
from modelbudget.measurement.arrange import arrange
from modelbudget.measurement.build import build
from modelbudget.measurement.count import Count, count
from modelbudget.measurement.loss import loss_of
from modelbudget.measurement.parallel.private import fake_process_group, pipeline_without_votes
from modelbudget.measurement.parallel.trace import ShardedTrace
from modelbudget.measurement.trace import Trace
from modelbudget.measurement.train import Pass, Values, of_pass, operations, texts, train
from modelbudget.modules.decoder import DecoderModel
from modelbudget.modules.initialise import uninitialised
from modelbudget.modules.pipeline_stage import cut
from modelbudget.sweeps.quantities import OF_TRAINING

SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


def of_stage(
    architecture: Architecture, run: RunConfig, quantities: Set[str]
) -> tuple[dict[str, Count], Values]:
    """Return counts of the whole model, and bytes by component and peaks of the run's stage."""
    index, n_stage = stage_index(run), run.pipeline_parallel
    with fake_process_group(index, n_stage), pipeline_without_votes():
        with uninitialised():
            model = cast(DecoderModel, build(architecture, "meta", run.dtype))
        counts = count(model)
        values = traced(cut(model, index, n_stage), architecture, run, index, quantities)
    return counts, values | {"parameters": {name: c.parameters for name, c in counts.items()}}


def traced(
    stage: DecoderModel, a: Architecture, run: RunConfig, index: int, quantities: Set[str]
) -> Values:
    """Return the bytes of the parameters of a stage, and trace two training steps."""
    held = {name: one.parameter_bytes for name, one in count(stage).items()}
    values: Values = {"parameter_bytes": held}
    if quantities & OF_TRAINING:
        arrange(stage, run)
        width = cast(int, vars(a)["d_model"])
        make_pass = partial(_make_pass, index, width)
        values |= train(stage, run, quantities, ShardedTrace(stage), make_pass)
    return values


def _make_pass(index: int, width: int, trace: Trace, stage: nn.Module, run: RunConfig) -> Pass:
    """Return the passes of all microbatches through one stage.

    The first stage has the tokens, the last the targets.
    """
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

    stage.register_forward_hook(look)
    schedule = _schedule(stage, run, index, width, loss_fn)
    tokens, targets = texts(stage, run)
    given = (tokens,) if is_first else ()
    wanted = targets if is_last else None
    del tokens, targets  # what a stage has no use for is freed

    def run_pass() -> tuple[Values, int]:
        with operations(stage, run), trace.watching("forward"):
            schedule.step(*given, target=wanted, return_outputs=run.outputs == "kept")
        return of_pass(trace, stage, dict(largest)), trace.peak

    return run_pass


def _schedule(stage: nn.Module, run: RunConfig, index: int, width: int, loss_fn):
    """Return torch's schedule of one stage, with the shapes of a microbatch."""
    device = next(stage.parameters()).device
    shape = run.batch // run.n_microbatch, run.length
    tokens = torch.empty(shape, dtype=torch.long, device="meta")
    dtype = getattr(torch, run.dtype)
    states = torch.empty(*shape, width, dtype=dtype, device="meta", requires_grad=True)
    pipe = PipelineStage(
        stage,
        index,
        run.pipeline_parallel,
        device,
        input_args=(tokens if index == 0 else states,),
        output_args=(states,),
    )
    return SCHEDULES[run.pipeline_schedule](pipe, run.n_microbatch, loss_fn=loss_fn)
