"""Peak memory of one stage of a pipeline whose parameters FSDP2 shards, and keeps gathered.

The first forward pass gathers the parameters, group after group, and they stay to the end of the
step (`zero: 2`); gradients are added up whole. When all microbatches have passed, the schedule
reduces one group after the other, first the parameters outside of layers (torch 2.13,
`torch/distributed/pipelining/stage.py`: `backward_maybe_with_nosync`, `perform_reduce_grad`).
"""

from typing import Any, NamedTuple

from modelbudget.architecture.fields import Run
from modelbudget.architecture.operations import largest, positive
from modelbudget.memory.fsdp import Group, kept_of, reduced
from modelbudget.memory.pipeline import Stage, is_first, outputs, passes
from modelbudget.memory.timeline import Timeline, change, live_bytes


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


def peak(one: ShardedStage, r: Run, start, gradients):
    """Peak bytes of all passes of one step, where `start` bytes are live throughout.

    `gradients`: bytes of those of all parameters, whole.
    """
    stage, layer, rest = one.stage, one.layer, one.rest
    gathered = start + rest.gathered + stage.n_layer * layer.gathered
    found = passes(stage, r, gathered, gradients)
    found += live_bytes(start + 2 * rest.gathered, one.embedding)
    found.append(found[-1] + 2 * layer.gathered)
    # The first microbatch's forward pass: the buffer of a layer is there, too.
    first = gathered + stage.waiting + layer.gathered
    found += [first + more for more in stage.forward]
    found.append(first + one.before_last + layer.gathered)
    unsent = (1 - is_first(r)) * stage.states
    ended = gathered + gradients + unsent + one.output + outputs(r, stage.logits)
    shards = kept_of(rest) + stage.n_layer * kept_of(layer)
    joined = start + shards + 2 * outputs(r, stage.logits)
    return largest(*found, *_reductions(one, ended), joined)


def forward_of_layers_is_lower(one: ShardedStage, r: Run, forward: Timeline, gradients):
    """1 where the first forward pass of checkpointed layers surely needs less than something else.

    It saves nothing, and so needs less than `forward`, one that saves all; 0 where it may not.
    """
    stage, layer = one.stage, one.layer
    gathered = one.rest.gathered + (stage.n_layer + 1) * layer.gathered
    most = largest(*live_bytes(gathered + stage.waiting + one.before_last, forward))
    return 1 - positive(most - peak(one, r, 0, gradients))


def _reductions(one: ShardedStage, before) -> list:
    """Return live bytes while all groups are reduced, where `before` bytes are live at first."""
    layer, rest = one.layer, one.rest
    first, other = reduced(layer, rest), reduced(layer, layer)
    found = live_bytes(before, reduced(rest, rest, 0))
    found += live_bytes(found[-1], first)
    last = found[-1] + (one.stage.n_layer - 2) * change(other)
    return [*found, *live_bytes(last, other)]
