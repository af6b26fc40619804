"""Timelines: operations of a pass, each with the bytes that it allocates and frees; their peaks.

Live bytes are the running sum. The peaks of training are computed from timelines alone. Layers of a
group are identical, so that live bytes change by the same amount from one to the next, and the peak
is in the first or in the last of them.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from modelbudget.architecture.arithmetic import ceil_div, is_nothing, largest, positive
from modelbudget.architecture.formula_arguments import Run
from modelbudget.architecture.layer_groups import LayerGroup
from modelbudget.architecture.run_values import divides, parts_of_length


class Allocation(NamedTuple):
    """One operation: `bytes` are allocated while it runs, `freed` bytes are freed after it.

    What an operation frees may have been allocated by an earlier one, or before the timeline.
    `freed_in_first`: bytes that all layers of a group have saved: the backward pass of the first,
    which runs last, frees them.
    `gradients`: bytes of gradients of parameters that are done after it; they stay, unless the
    backward pass adds them to a buffer (`added_to_buffer`).
    """

    name: str
    bytes: Any = 0
    freed: Any = 0
    freed_in_first: Any = 0
    gradients: Any = 0


Timeline = list[Allocation]


def live_bytes(before, timeline: Timeline, is_first: Any = 0) -> list:
    """Live bytes during each operation, and after the last one; `before` bytes are live already.

    `is_first`: 1 in the first layer, which frees what all layers read, else 0.

    An operation that frees nothing is left out: during the next, as many bytes or more are live.
    """
    levels, live = [], before
    for allocation in timeline:
        live = live + allocation.bytes
        if not (is_nothing(allocation.freed) and is_nothing(allocation.freed_in_first)):
            levels.append(live)
            live = live - allocation.freed - is_first * allocation.freed_in_first
    return [*levels, live]


def peak_during(before, timeline: Timeline, is_first: Any = 0):
    """Most live bytes during a timeline, arguments as of `live_bytes`.

    What does not depend on `before` stands alone, so that readings which know equal expressions
    (`evaluators/graph.py`) have it once for all moments at which the same timeline begins.
    """
    return before + largest(*live_bytes(0, timeline, is_first))


def change(timeline: Timeline):
    """Live bytes after the timeline less those before it, in a layer that is not the first."""
    return sum(allocation.bytes - allocation.freed for allocation in timeline)


def freed_in_first(timeline: Timeline):
    """Return the bytes that a timeline frees only in the first layer."""
    return sum(allocation.freed_in_first for allocation in timeline)


def times(switch, timeline: Sequence[Allocation]) -> Timeline:
    """Return the timeline where `switch` is 1; no operation where it is 0."""
    if is_nothing(switch):
        return []
    if isinstance(switch, int) and switch == 1:
        return list(timeline)
    return [Allocation(name, *(switch * size for size in sizes)) for name, *sizes in timeline]


def added_to_buffer(timeline: Timeline) -> Timeline:
    """Return the timeline where each gradient of a parameter is freed when it is done.

    It is added to a buffer in a hook after autograd has accumulated it (Megatron-Core,
    distributed/distributed_data_parallel.py, `_make_backward_post_hook`).
    """
    return [
        allocation._replace(freed=allocation.freed + allocation.gradients)
        for allocation in timeline
    ]


def accumulate(gradient) -> Timeline:
    """Return the operation that adds two gradients of the same states and frees both."""
    return [Allocation("gradient accumulation", gradient, 2 * gradient)]


def all_reduce(r, states) -> Timeline:
    """Sum states of which each of several devices has computed a term, which is freed.

    With sequence parallelism a device has a part of the sum, from a copy in the order of the parts
    (torch 2.13, `funcol.reduce_scatter_tensor`).
    """
    part, copy = ceil_div(states, parts_of_length(r)), r.sequence_parallel * states
    return times(divides(r), [Allocation("sum over devices", part + copy, states + copy)])


def all_gather(r, states, freed=0) -> Timeline:
    """Gather `states` bytes of which each device has a part of the length.

    With a copy in the order of the parts, unless there is one sequence (torch 2.13,
    `_functional_collectives.py`: `_maybe_view_chunk_cat`). `freed`: 1 where the part is freed.
    """
    part, copy = ceil_div(states, parts_of_length(r)), copied_in_order(r, states)
    timeline = [Allocation("gathered over the length", states + copy, copy + freed * part)]
    return times(r.sequence_parallel, timeline)


def copied_in_order(r, states):
    """Bytes of the copy of states that devices have gathered over the length."""
    return positive(r.batch - 1) * states


def linear_backward(
    name: str,
    of_weight,
    of_bias,
    of_input,
    freed,
    saved,
    again,
    then: Sequence[Allocation] = (),
    biased=0,
) -> Timeline:
    """Gradients of a linear layer's weight, input and bias, each of that many bytes.

    `freed`: the output's gradient. `saved`: the saved input. A node holds it until it has passed
    its gradients on; where a layer is computed again (`again` 1) the node only has a promise of it,
    so that the first operation frees it.

    `then`: what follows the gradient of its input. Autograd runs the newest node first, and in a
    linear layer of (batch, length, channels) with a bias (`biased` 1) the transposed weight is
    newer than the view of the input, so that the gradients of the parameters are done before;
    without one it is older.
    """
    return [
        Allocation(f"{name} weight and input gradients", of_weight + of_input, again * saved),
        Allocation(f"{name} bias gradient", of_bias, freed + (1 - again) * saved),
        *times(1 - biased, then),
        Allocation(f"{name} gradients done", gradients=of_weight + of_bias),
        *times(biased, then),
    ]


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
            is_first = 1 - positive(index - of_group.group.first)
            levels.append(of_group.group.is_there * peak_during(at, timeline, is_first))
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
        * freed_in_first(of_group.backward)
        for of_group in model.layers
    )


def _change_from(model: Model, timelines: list[Timeline], index):
    """Return the change in live bytes through the layers from `index` on."""
    return sum(
        change(timeline) * (of_group.group.before(model.n_layer) - of_group.group.before(index))
        for of_group, timeline in zip(model.layers, timelines, strict=True)
    )
