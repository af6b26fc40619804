"""Peak memory of forward and backward under FSDP2, one group for each layer and one for the rest.

A group's parameters are gathered into one buffer and copied from there into the full tensors; both
are as large, padding included. In the forward pass a layer's buffer lives until the next layer's
copies have been made; in the backward pass it is freed at once, and that of the layer before is
gathered while this one computes. The gradients of a group are copied into the input of a
reduce-scatter, which lives until the next group's. The rest of the model stays gathered from the
first layer to the end of the backward pass. With `zero: 2` so does each layer, to the end of its
own backward pass, and none is gathered again (`reshard_after_forward=False`). Torch 2.13:
`_fsdp_param_group.py` (`wait_for_unshard`, `_backward_prefetch`, `post_backward`) and
`_fsdp_collectives.py` (`foreach_reduce`). Shards in another dtype are cast into one tensor before
they are gathered (`_get_param_all_gather_inputs`).
"""

from typing import Any, NamedTuple

from modelbudget.architecture.arithmetic import largest, positive
from modelbudget.architecture.formula_arguments import Run
from modelbudget.architecture.run_values import (
    bytes_of,
    reduced_number,
    replicas,
    stays_gathered,
    stored,
)
from modelbudget.components.parallel.shards import with_padding
from modelbudget.memory.parameter_tensors import Tensor, last_of
from modelbudget.memory.timeline import (
    Allocation,
    Model,
    Timeline,
    change,
    freed_in_first,
    peak_during,
    times,
)


class Group(NamedTuple):
    """Bytes of the parameters that are gathered together.

    `gathered`: of all parameters, with the padding of their shards, and of the buffer that they are
    copied from; `cast`: of this device's shard in the run's dtype, if it has another; `gradients`:
    of all parameters; `reduced`: of the input of a reduce-scatter; `output`: of its output;
    `shard`: of this device's gradients, if they have another dtype than the output; `last`: of the
    last parameter's gradient, which `foreach_reduce` still holds when it has been copied. `summed`:
    the timeline by which devices that compute one model together bring gradients to the placement
    of their parameters (`_get_grad_inner_tensor`), while the gathered parameters are there.
    """

    gathered: Any
    cast: Any
    gradients: Any
    reduced: Any
    output: Any
    shard: Any
    last: Any
    summed: Timeline


def group(r: Run, tensors: list[Tensor], summed: Timeline, other_gradients=0) -> Group:
    """Return the group of some parameter tensors, all of which get a gradient.

    `other_gradients`: of gradients that `summed` leaves besides those of the parameters.
    """
    n, size, kept = replicas(r), bytes_of(r.dtype), bytes_of(stored(r).dtype)
    reduced = reduced_number(r)
    numbers = sum(tensor.is_there * with_padding(r, tensor) for tensor in tensors)
    return Group(
        n * size * numbers,
        int(size != kept) * size * numbers,
        size * sum(tensor.is_there * tensor.numbers for tensor in tensors) + other_gradients,
        n * reduced * numbers,
        reduced * numbers,
        int(reduced != kept) * kept * numbers,
        size * last_of(tensors),
        summed,
    )


class Ends(NamedTuple):
    """What happens before and after the layers of a model, in addition to `training.Model`.

    `embedding`: the timeline of the embedding's forward pass; `loss`: that of the loss's backward
    pass, with which the timeline `Model.head` begins; `logits`: bytes live at the end of the head,
    in addition to those live when backward begins.
    """

    embedding: Timeline
    loss: Timeline
    logits: Any


def forward_backward(model: Model, layer: Group, rest: Group, ends: Ends, r: Run, start, before):
    """Peak bytes, where `start` bytes are live at first and `before` when backward begins.

    Neither includes what is gathered. The model has at least two layers, all of one kind.
    """
    (of_layer,) = model.layers
    stays = stays_gathered(r)
    full = before + rest.gathered + stays * model.n_layer * layer.gathered
    levels = _forward(model, layer, rest, ends, r, start, full)
    head = [*ends.loss, *times(1 - stays, _gathered("last layer", layer))]
    head += model.head[len(ends.loss) :]
    levels.append(peak_during(full, head))
    first, middle, last = (
        _layer_backward(layer, of_layer.backward_pass(r), is_first, is_last, stays)
        for is_first, is_last in ((1, 0), (0, 0), (0, 1))
    )
    live = full + change(head)
    levels.append(peak_during(live, last))
    live = live + change(last)
    n_middle = model.n_layer - 2
    for before_it in (0, n_middle - 1):
        at = live + before_it * change(middle)
        levels.append(positive(n_middle) * peak_during(at, middle))
    live = live + n_middle * change(middle)
    levels.append(peak_during(live, first, is_first=1))
    live = live + change(first) - freed_in_first(first)
    last = [*model.embedding, *reduced(rest, layer.reduced)]
    return largest(*levels, peak_during(live, last))


def _forward(model: Model, layer: Group, rest: Group, ends: Ends, r: Run, start, full) -> list:
    """Return live bytes in forward; `full`: at its end, what is gathered of the rest included."""
    (passes,) = model.layers
    saves = r.recompute != "full"
    embedded = start + 2 * rest.gathered
    levels = [peak_during(embedded, ends.embedding)]
    embedded = embedded + change(ends.embedding)
    levels.append(peak_during(embedded, copied_in_forward(layer, rest)))
    last = full + layer.gathered  # the buffer, which is freed before the loss
    of_chunks, of_loss, *of_head = model.forward_end
    levels += [full + of_chunks, full + of_loss, last + ends.logits]
    levels += [last + more for more in of_head]
    before_last = full - model.saved_after_layers - saves * change(passes.forward)
    before_last = before_last - stays_gathered(r) * layer.gathered
    levels.append(peak_during(before_last + layer.gathered, copied_in_forward(layer, layer)))
    return levels + saves * [peak_during(before_last + 2 * layer.gathered, passes.forward)]


def copied_in_forward(layer: Group, before: Group) -> Timeline:
    """Return how the parameters of a layer are gathered, where the last buffer before is there."""
    copied = Allocation("copied", layer.gathered, before.gathered)
    return [Allocation("buffer", layer.gathered), copied]


def forward_of_layers_is_lower(model: Model, layer: Group, rest: Group, ends: Ends, r: Run, saved):
    """1 where the forward pass of checkpointed layers surely needs less than something else.

    With parameters that stay gathered it has a buffer that the backward pass has not. It saves
    nothing, and so needs less than one that saves all. `saved`: bytes, at least, that are live when
    backward begins and not before.
    """
    (of_layer,) = model.layers
    gathered = rest.gathered + (model.n_layer + 1) * layer.gathered
    forward = peak_during(gathered - model.saved_after_layers, of_layer.forward)
    return 1 - positive(forward - forward_backward(model, layer, rest, ends, r, -saved, 0))


def _layer_backward(layer: Group, backward: Timeline, is_first, is_last, stays) -> Timeline:
    """Return the backward pass of one layer; `stays` 1: its parameters are still gathered.

    Each layer has gathered the one before ahead, and the head the last one.
    """
    timeline = [Allocation("copied", layer.gathered, layer.gathered)]
    timeline += (1 - is_first) * _gathered("layer before", layer)
    inputs = (1 - is_last) * layer.reduced
    return [*times(1 - stays, timeline), *backward, *reduced(layer, inputs)]


def _gathered(name: str, group: Group) -> Timeline:
    """Return the timeline of an all-gather, from this device's shard to the buffer of all."""
    return [
        Allocation(f"{name}: cast of the shard", group.cast),
        Allocation(f"{name}: gathered", group.gathered, group.cast),
    ]


def reduced(group: Group, freed) -> Timeline:
    """Return the timeline from gradients to this device's shard of their mean.

    `freed`: bytes of the input of the reduce-scatter before.
    """
    return [
        *group.summed,
        Allocation("parameters", 0, group.gathered + freed),
        Allocation("reduce-scatter input", group.reduced, group.gradients - group.last),
        Allocation("reduce-scatter output", group.output),
        Allocation("shard of the gradients", group.shard, positive(group.shard) * group.output),
        Allocation("last gradient", 0, group.last),
    ]
