"""Timelines of layers in training: of the backward pass, and of both passes."""

from modelbudget.architecture.arithmetic import positive
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.layer_groups import LayerGroup, layer_groups
from modelbudget.architecture.run_values import computed_again, divides, of_states
from modelbudget.components import norm
from modelbudget.components.layers.layer_fields import BEFORE
from modelbudget.components.layers.layer_forward import forward
from modelbudget.components.layers.layer_parts import all_parts
from modelbudget.components.layers.layer_saved import read_by_all
from modelbudget.components.layers.layer_states import (
    gathers_first,
    is_summed,
    output_backward,
    place_of,
    states_bytes,
    whole_states_bytes,
)
from modelbudget.memory.timeline import (
    Allocation,
    Timeline,
    accumulate,
    all_gather,
    all_reduce,
    times,
    within,
)
from modelbudget.memory.training_peak import Layers


def backward(a: Fields, r: Run, group: LayerGroup, received: int = 0) -> Timeline:
    """From the gradient of the layer's output to that of its input."""
    two_norms = a.parallel * (1 - a.shared_norm)
    before = int(a.norm_placement in BEFORE)
    of_mixer, of_second = (
        output_backward(a, r, name)[0] for name in (group.mixer, group.feed_forward)
    )
    again, unsaved = computed_again(r), before * norm.copies_input(a, r) * states_bytes(a, r)
    mixer, second = (
        within(name, all_parts()[name].backward(a, r, place_of(a, r, name)))
        for name in (group.mixer, group.feed_forward)
    )
    # The last reader of the output's gradient frees it.
    stays = times(received, [Allocation("buffer of the output's gradient", states_bytes(a, r))])
    is_post = int(a.norm_placement == "post")
    straight = int(a.norm_placement not in BEFORE)
    summed = all_reduce(r, whole_states_bytes(a, r))
    met = accumulate(states_bytes(a, r))
    second_summed = is_summed(r, group.feed_forward)
    has_first = 1 - positive(group.first)
    of_all = has_first * read_by_all(a, r)  # freed by the last layer that reads them
    mixer = [
        allocation._replace(freed_once=has_first * allocation.freed_once) for allocation in mixer
    ]
    return [
        *of_second,
        *times(is_post, stays),
        *second,
        *times(second_summed, [*summed, *times(straight, met)]),
        *times(1 - a.parallel, [*_input_backward(a, r), *times(1 - is_post, stays)]),
        *of_mixer,
        *mixer,
        *summed,
        *times(divides(r) * (straight + a.parallel * a.shared_norm), met),
        *times(two_norms, norm.backward(a, of_states(r), residual=1, others=1)),
        *_input_backward(a, r),
        *times(a.parallel, stays),
        *times(again, [Allocation("layer's input", 0, unsaved, of_all)]),
    ]


def _input_backward(a: Fields, r: Run) -> Timeline:
    """Return the backward timeline of the norm before a part; empty if there is none."""
    return norm.backward(a, of_states(r), residual=1) if a.norm_placement in BEFORE else []


def training(a: Fields, r: Run, received: int = 0) -> list[Layers]:
    """Return the timelines of one layer of each group, for the peak of training.

    `received` 1: the gradient of the output is in a buffer that stays.
    """
    gathered = all_gather(r, whole_states_bytes(a, r))
    return [
        Layers(
            group,
            forward(a, r, group),
            backward(a, r, group, received),
            times(gathers_first(a, r, group.feed_forward), gathered),
        )
        for group in layer_groups(a)
    ]
