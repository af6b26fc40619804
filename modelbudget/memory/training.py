"""Peak memory of forward and backward in a training step, from timelines.

Layers of a group are identical, so that live bytes change by the same amount from one to the next,
and the peak is in the first or in the last of them.
"""

from typing import Any, NamedTuple

from modelbudget.architecture.fields import Run
from modelbudget.architecture.layer_groups import LayerGroup
from modelbudget.architecture.operations import largest, positive
from modelbudget.memory.timeline import (
    Allocation,
    Timeline,
    added_to_buffer,
    change,
    freed_once,
    live_bytes,
    within,
)


class Layers(NamedTuple):
    """The layers of one group.

    The forward pass of one layer, from its input to all that is saved, and its backward pass.
    """

    group: LayerGroup
    forward: Timeline
    backward: Timeline


class Model(NamedTuple):
    """The timelines of a model: loss and head backward, layers, embedding backward.

    `saved_after_layers`: bytes saved by all that follows the layers; `states`: bytes of the states
    between two layers; `forward_end`: bytes live at moments after the last layer's forward pass, in
    addition to those live when backward begins.
    """

    head: Timeline
    layers: list[Layers]
    embedding: Timeline
    n_layer: int
    saved_after_layers: int
    states: int
    forward_end: tuple
    only_forward: Any = 0
    """Bytes that layers leave and that are freed before backward begins."""


def with_gradient_buffer(model: Model) -> Model:
    """Return the model where gradients of parameters are added to a buffer and freed at once."""
    return model._replace(
        head=added_to_buffer(model.head),
        layers=[one._replace(backward=added_to_buffer(one.backward)) for one in model.layers],
        embedding=added_to_buffer(model.embedding),
    )


def forward_backward(model: Model, r: Run, before):
    """Peak bytes, where `before` bytes are live when backward begins.

    The peak may be in forward, in the last layers' attention. Under full checkpointing a layer runs
    forward once more before it runs backward.
    """
    repeats = r.recompute == "full"
    backward = [one.forward * repeats + one.backward for one in model.layers]
    forward = [one.forward for one in model.layers]
    found = live_bytes(before, model.head)
    live = found[-1]
    found += [before + model.only_forward + more for more in model.forward_end]
    for one, timeline in zip(model.layers, backward, strict=True):
        for index in one.group.first, one.group.last:
            at = live + _change_from(model, backward, index + 1)
            once = 1 - positive(index)
            found += [one.group.is_there * level for level in live_bytes(at, timeline, once)]
        if not repeats:
            last = one.group.last
            # A layer saves its own input, and so the later layers' inputs are not live yet.
            later = _change_from(model, forward, last) + (model.n_layer - last - 1) * model.states
            at = before + model.only_forward - model.saved_after_layers - later
            found += [one.group.is_there * level for level in live_bytes(at, one.forward)]
    embedding = live + _change_from(model, backward, 0)
    for one in model.layers:
        embedding = embedding - one.group.at(0) * freed_once(one.backward)
    return largest(*found, *live_bytes(embedding, model.embedding))


def backward_timeline(model: Model, r: Run) -> Timeline:
    """Return the timeline of the backward pass, layer by layer, for comparison with a trace."""
    found = list(model.head)
    for index in reversed(range(model.n_layer)):
        one = next(one for one in model.layers if one.group.at(index))
        repeated = one.forward if r.recompute == "full" else []
        found += within(f"layer {index}", [*repeated, *one.backward])
    once = Allocation("freed once", 0, freed_once(one.backward))
    return [*found, once, *model.embedding]


def _change_from(model: Model, timelines: list[Timeline], index):
    """Return the change in live bytes through the layers from `index` on."""
    return sum(
        change(timeline) * (one.group.before(model.n_layer) - one.group.before(index))
        for one, timeline in zip(model.layers, timelines, strict=True)
    )
