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

from modelbudget.architecture.fields import Run
from modelbudget.architecture.operations import largest, positive
from modelbudget.architecture.run_values import (
    bytes_of,
    reduced_number,
    replicas,
    stays_gathered,
    stored,
)
from modelbudget.memory.adamw_temporaries import Tensor
from modelbudget.memory.shards import with_padding
from modelbudget.memory.timeline import (
    Allocation,
    Timeline,
    change,
    freed_once,
    peak_during,
    times,
)
from modelbudget.memory.training import Model


class Group(NamedTuple):
    """Bytes of the parameters that are gathered together.

    `gathered`: of all devices' shards, with their padding; `cast`: of this device's shard in the
    run's dtype, if it has another; `gradients`: of all parameters; `reduced`: of the input of a
    reduce-scatter; `output`: of its output; `shard`: of this device's gradients, if they have
    another dtype than the output; `last`: of the gradient that autograd computes last and still
    holds when it has been copied. `summed`: the timeline by which devices that compute one model
    together bring gradients to the placement of their parameters (`_get_grad_inner_tensor`), while
    the gathered parameters are there.
    """

    gathered: Any
    cast: Any
    gradients: Any
    reduced: Any
    output: Any
    shard: Any
    last: Any
    summed: Timeline


def group(r: Run, tensors: list[Tensor], last, summed: Timeline, held=0) -> Group:
    """Return the group of some parameter tensors, all of which get a gradient.

    `last`: bytes of the last gradient; `held`: of gradients that `summed` leaves besides those.
    """
    size, kept, reduced = bytes_of(r.dtype), bytes_of(stored(r).dtype), reduced_number(r)
    numbers = sum(one.is_there * with_padding(r, one) for one in tensors)
    gradients = size * sum(one.is_there * one.numbers for one in tensors)
    return Group(
        replicas(r) * size * numbers,
        int(size != kept) * size * numbers,
        gradients + held,
        replicas(r) * reduced * numbers,
        reduced * numbers,
        int(reduced != kept) * kept * numbers,
        last,
        summed,
    )


def kept_of(group: Group):
    """Bytes of a device's shard of the gradients of a group, which stay to the optimizer's step."""
    return group.output + group.shard - positive(group.shard) * group.output


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

    Neither includes what is gathered. The model has at least two layers, all of one group.
    """
    (one,) = model.layers
    stays = stays_gathered(r)
    full = before + rest.gathered + stays * model.n_layer * layer.gathered
    found = _forward(model, layer, rest, ends, r, start, full)
    head = [*ends.loss, *times(1 - stays, _gathered("last layer", layer))]
    head += model.head[len(ends.loss) :]
    found.append(peak_during(full, head))
    first, middle, last = (
        _layer_backward(layer, one.backward_pass(r), is_first, is_last, stays)
        for is_first, is_last in ((1, 0), (0, 0), (0, 1))
    )
    live = full + change(head)
    found.append(peak_during(live, last))
    live = live + change(last)
    n_middle = model.n_layer - 2
    for before_it in (0, n_middle - 1):
        at = live + before_it * change(middle)
        found.append(positive(n_middle) * peak_during(at, middle))
    live = live + n_middle * change(middle)
    found.append(peak_during(live, first, once=1))
    live = live + change(first) - freed_once(first)
    last = [*model.embedding, *reduced(rest, layer)]
    return largest(*found, peak_during(live, last))


def _forward(model: Model, layer: Group, rest: Group, ends: Ends, r: Run, start, full) -> list:
    """Return live bytes in forward; `full`: at its end, what is gathered of the rest included."""
    (one,) = model.layers
    embedded = start + 2 * rest.gathered
    found = [peak_during(embedded, ends.embedding)]
    found.append(embedded + change(ends.embedding) + 2 * layer.gathered)
    last = full + layer.gathered  # whose buffer is freed before the loss
    of_chunks, of_loss, *of_head = model.forward_end
    found += [full + of_chunks, full + of_loss, last + ends.logits]
    found += [last + more for more in of_head]
    saves = r.recompute != "full"
    before_last = full - model.saved_after_layers - saves * change(one.forward)
    before_last = before_last - stays_gathered(r) * layer.gathered
    found.append(before_last + 3 * layer.gathered)
    return found + saves * [peak_during(before_last + 2 * layer.gathered, one.forward)]


def forward_of_layers_is_lower(model: Model, layer: Group, rest: Group, ends: Ends, r: Run, saved):
    """1 where the forward pass of checkpointed layers surely needs less than something else.

    With parameters that stay gathered it has a buffer that the backward pass has not. It saves
    nothing, and so needs less than one that saves all. `saved`: bytes, at least, that are live when
    backward begins and not before.
    """
    (one,) = model.layers
    gathered = rest.gathered + (model.n_layer + 1) * layer.gathered
    forward = peak_during(gathered - model.saved_after_layers, one.forward)
    return 1 - positive(forward - forward_backward(model, layer, rest, ends, r, -saved, 0))


def _layer_backward(layer: Group, backward: Timeline, is_first, is_last, stays) -> Timeline:
    """Return the backward pass of one layer, whose buffer is gathered before it begins.

    `stays` 1: its parameters are still gathered.
    """
    copied = Allocation("parameters copied from the buffer", layer.gathered, layer.gathered)
    return [
        *times(1 - stays, [copied]),
        *times((1 - stays) * (1 - is_first), _gathered("layer before", layer)),
        *backward,
        *reduced(layer, layer, 1 - is_last),
    ]


def _gathered(name: str, group: Group) -> Timeline:
    """Return the timeline of an all-gather, from this device's shard to the buffer of all."""
    return [
        Allocation(f"{name}: cast of the shard", group.cast),
        Allocation(f"{name}: gathered", group.gathered, group.cast),
    ]


def reduced(group: Group, before: Group, has_before=1) -> Timeline:
    """Return the timeline from a group's gradients to this device's shard of their mean."""
    return [
        *group.summed,
        Allocation("parameters", 0, group.gathered + has_before * before.reduced),
        Allocation("reduce-scatter input", group.reduced, group.gradients - group.last),
        Allocation("reduce-scatter output", group.output),
        Allocation("shard of the gradients", group.shard, positive(group.shard) * group.output),
        Allocation("last gradient", 0, group.last),
    ]
