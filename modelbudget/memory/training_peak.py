"""Peak memory of forward and backward in a training step, from timelines.

Layers of a group are identical, so that live bytes change by the same amount from one to the next,
and the peak is in the first or in the last of them.
"""

from collections.abc import Sequence
from typing import NamedTuple

from modelbudget.architecture.arithmetic import largest, positive
from modelbudget.architecture.formula_arguments import Run
from modelbudget.architecture.layer_groups import LayerGroup
from modelbudget.memory.timeline import (
    Allocation,
    Timeline,
    added_to_buffer,
    change,
    freed_once,
    peak_during,
)


class Layers(NamedTuple):
    """The layers of one group.

    The forward pass of one layer, from its input to all that is saved, and its backward pass;
    `first`: what the backward pass begins with and that reads nothing saved.
    """

    group: LayerGroup
    forward: Timeline
    backward: Timeline
    first: Sequence[Allocation] = ()

    def backward_pass(self, r: Run) -> Timeline:
        """Return the backward pass, in which a layer may run forward once more."""
        repeated = self.forward if r.recompute == "full" else []
        return [*self.first, *repeated, *self.backward]


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


def with_gradient_buffer(model: Model) -> Model:
    """Return the model where gradients of parameters are added to a buffer and freed at once."""
    return model._replace(
        head=added_to_buffer(model.head),
        layers=[layers_with_gradient_buffer(of_group) for of_group in model.layers],
        embedding=added_to_buffer(model.embedding),
    )


def layers_with_gradient_buffer(layers: Layers) -> Layers:
    """Return layers whose gradients of parameters are added to a buffer and freed at once."""
    return layers._replace(backward=added_to_buffer(layers.backward))


def forward_backward(model: Model, r: Run, before):
    """Peak bytes, where `before` bytes are live when backward begins.

    The peak may be in forward, in the last layers' attention.
    """
    backward = [of_group.backward_pass(r) for of_group in model.layers]
    levels = [peak_during(before, model.head)]
    live = before + change(model.head)
    levels += [before + more for more in model.forward_end]
    for of_group, timeline in zip(model.layers, backward, strict=True):
        for index in of_group.group.first, of_group.group.last:
            at = live + _change_from(model, backward, index + 1) - _freed_from(model, index + 1)
            once = 1 - positive(index - of_group.group.first)
            levels.append(of_group.group.is_there * peak_during(at, timeline, once))
    if r.recompute != "full":
        levels += _forward_of_layers(model, before)
    embedding = live + _change_from(model, backward, 0) - _freed_from(model, 0)
    return largest(*levels, peak_during(embedding, model.embedding))


def _forward_of_layers(model: Model, before) -> list:
    """Live bytes in the forward pass of the last layer of each group, which saves all it needs."""
    levels, forward = [], [of_group.forward for of_group in model.layers]
    for of_group in model.layers:
        last = of_group.group.last
        # A layer saves its own input, and so the later layers' inputs are not live yet.
        later = (model.n_layer - last - 1) * model.states + _change_from(model, forward, last)
        at = before - model.saved_after_layers - later
        levels.append(of_group.group.is_there * peak_during(at, of_group.forward))
    return levels


def _freed_from(model: Model, index):
    """Return the bytes that the first layers of groups free, as far as they follow `index`."""
    return sum(
        of_group.group.is_there
        * positive(of_group.group.first - index + 1)
        * freed_once(of_group.backward)
        for of_group in model.layers
    )


def _change_from(model: Model, timelines: list[Timeline], index):
    """Return the change in live bytes through the layers from `index` on."""
    return sum(
        change(timeline) * (of_group.group.before(model.n_layer) - of_group.group.before(index))
        for of_group, timeline in zip(model.layers, timelines, strict=True)
    )
