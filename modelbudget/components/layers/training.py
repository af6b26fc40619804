"""Timelines of layers in training."""

from modelbudget.architecture.fields import Fields, Run
from modelbudget.architecture.layer_groups import layer_groups
from modelbudget.components.layers.backward import backward, cast_of_gradient
from modelbudget.components.layers.forward import cached_casts, cast_weights, forward
from modelbudget.components.layers.states import first_gathered
from modelbudget.memory.training import Layers


def training(a: Fields, r: Run, received: int = 0) -> list[Layers]:
    """Return the timelines of one layer of each group, for the peak of training.

    `received` 1: the gradient of the output is in a buffer that stays.
    """
    return [
        Layers(
            group,
            forward(a, r, group),
            backward(a, r, group, received),
            [
                *cast_of_gradient(a, r, group.feed_forward),
                *first_gathered(a, r, group.feed_forward),
            ],
            cached_casts(a, r, group) + cast_weights(a, r, group),
        )
        for group in layer_groups(a)
    ]
