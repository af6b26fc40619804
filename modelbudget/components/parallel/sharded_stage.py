"""Peak memory of one stage of a pipeline whose parameters FSDP2 shards, and keeps gathered.

The first forward pass gathers the parameters, group after group, and they stay to the end of the
step (`zero: 2`); gradients are added up whole. When all microbatches have passed, the schedule
reduces one group after the other, first the parameters outside of layers (torch 2.13,
`torch/distributed/pipelining/stage.py`: `backward_maybe_with_nosync`, `perform_reduce_grad`).
"""

from typing import Any, NamedTuple

from modelbudget.architecture.arithmetic import largest, positive
from modelbudget.architecture.formula_arguments import Run
from modelbudget.components.parallel.fsdp_timelines import (
    Group,
    copied_in_forward,
    reduced,
)
from modelbudget.components.parallel.pipeline_stage import Stage, is_first, passes
from modelbudget.memory.timeline import Timeline, change, live_bytes, peak_during


class ShardedStage(NamedTuple):
    """A stage of at least two layers, and what is gathered and reduced together in it.

    `embedding`: the timeline of the embedding's forward pass, of the first stage. `before_last`:
    bytes live before the last layer's forward pass, in addition to those live at the end of the
    microbatch's. `output`: of what the schedule still holds of the last microbatch at the end.
    """

    stage: Stage
    layer: Group
    rest: Group
    embedding: Timeline
    before_last: Any
    output: Any


def peak(sharded: ShardedStage, r: Run, start, gradients):
    """Peak bytes of all passes of one step, where `start` bytes are live throughout.

    `gradients`: bytes of those of all parameters, whole.
    """
    stage, layer, rest = sharded.stage, sharded.layer, sharded.rest
    gathered = start + rest.gathered + stage.n_layer * layer.gathered
    levels = passes(stage, r, gathered, gradients)
    levels += live_bytes(start + 2 * rest.gathered, sharded.embedding)
    levels.append(peak_during(levels[-1], copied_in_forward(layer, rest)))
    # The first microbatch's forward pass: the buffer of a layer is there, too.
    first = gathered + stage.waiting + layer.gathered
    levels += [first + more for more in stage.forward]
    before_last = first + sharded.before_last - layer.gathered
    levels.append(peak_during(before_last, copied_in_forward(layer, layer)))
    unsent = (1 - is_first(r)) * stage.states
    ended = gathered + gradients + unsent + sharded.output
    return largest(*levels, *_reductions(sharded, ended))


def forward_of_layers_is_lower(sharded: ShardedStage, r: Run, forward: Timeline, gradients):
    """1 where the first forward pass of checkpointed layers surely needs less than something else.

    It saves nothing, and so needs less than `forward`, one that saves all; 0 where it may not.
    """
    stage, layer = sharded.stage, sharded.layer
    gathered = sharded.rest.gathered + (stage.n_layer + 1) * layer.gathered
    most = largest(*live_bytes(gathered + stage.waiting + sharded.before_last, forward))
    return 1 - positive(most - peak(sharded, r, 0, gradients))


def _reductions(sharded: ShardedStage, before) -> list:
    """Return live bytes while all groups are reduced, where `before` bytes are live at first."""
    layer, rest = sharded.layer, sharded.rest
    first, between = reduced(layer, rest.reduced), reduced(layer, layer.reduced)
    levels = live_bytes(before, reduced(rest, 0))
    levels += live_bytes(levels[-1], first)
    last = levels[-1] + (sharded.stage.n_layer - 2) * change(between)
    return [*levels, *live_bytes(last, between)]
