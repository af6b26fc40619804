"""Timelines of layers in training."""

from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.layer_groups import layer_groups
from modelbudget.components.layers.layer_backward import backward
from modelbudget.components.layers.layer_forward import forward
from modelbudget.components.layers.layer_states import first_gathered
from modelbudget.memory.training_peak import Layers


def training(a: Fields, r: Run, received: int = 0) -> list[Layers]:
    """Return the timelines of one layer of each group, for the peak of training.

    `received` 1: the gradient of the output is in a buffer that stays.
    """
    return [
        Layers(
            group,
            forward(a, r, group),
            backward(a, r, group, received),
            first_gathered(a, r, group.feed_forward),
        )
        for group in layer_groups(a)
    ]
