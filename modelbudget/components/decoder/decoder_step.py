"""A decoder in a training step: peaks of a model, of a device's shards, of a stage.

Each takes the family, a class whose other formulas say what is held.
"""

from collections.abc import Callable
from typing import Any

from modelbudget.architecture.arithmetic import largest
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.layer_groups import layer_groups
from modelbudget.architecture.memoised_run import once
from modelbudget.architecture.run_values import (
    INDEX,
    accumulates,
    bytes_of,
    has_part_of_states,
    is_divided,
    is_pipelined,
    is_sharded,
    of_states,
    own_tokens,
    reduced_number,
    stored,
    tokens,
)
from modelbudget.architecture.terms import Terms, total
from modelbudget.components import embedding, embedding_step, layer, layer_step, loss, norm
from modelbudget.components.attention.attention_layout import model_frequencies
from modelbudget.components.decoder.decoder_terms import in_own_rows, in_shards
from modelbudget.components.layer import BEFORE
from modelbudget.components.parallel import (
    fsdp_timelines,
    pipeline_stage,
    sharded_stage,
    shards,
    tensor_parallel,
)
from modelbudget.components.parallel.device_share import share
from modelbudget.memory import optimizer_states, parameter_tensors, timeline
from modelbudget.memory.parameter_tensors import Neighbours, Tensor
from modelbudget.memory.timeline import Allocation, change, times


def _tensors_of_ends(a: Fields, r: Run) -> list[list[Tensor]]:
    """Return the parameter tensors before and behind the layers: of a pipeline, those of a stage.

    In the order of the module.
    """
    norms = (("norm.embedding", a.embedding_norm), ("norm.final", a.final_norm))
    of_norms = [tensor for end in norms for tensor in norm.tensors(a, *end)]
    ends = [embedding.tensors(a), [*of_norms, *embedding.head_tensors(a)]]
    if is_pipelined(r):
        ends = [[x for x in tensors if pipeline_stage.has(r, x.name)] for tensors in ends]
    return ends


@once
def neighbours(a: Fields, r: Run) -> list[parameter_tensors.Neighbours]:
    """Parameter tensors and the ones before them, in the order of the module.

    Of a model that is sharded, the optimizer sees a device's own rows; of a pipeline, a stage.
    """

    def seen(tensors: list[Tensor]) -> list[Tensor]:
        return [shards.of_device(r, tensor) for tensor in tensors] if is_sharded(r) else tensors

    layers = [(group, seen(layer.tensors(a, group))) for group in layer_groups(a)]
    before, behind = (seen(tensors) for tensors in _tensors_of_ends(a, r))
    return parameter_tensors.neighbours_of_model(before, layers, behind, a.n_layer)


def gathered_together(
    a: Fields, r: Run, in_backward=1
) -> tuple[fsdp_timelines.Group, fsdp_timelines.Group]:
    """Return the parameters of one layer, and those outside of layers.

    `in_backward` 0: gradients are reduced after the backward pass, when autograd does not hold that
    of the norm which reads the layer's input. Of a pipeline, the parameters of a stage.
    """
    # Untied: the gradient of a tied matrix is that of the head, too.
    token = bytes_of(r.dtype) * (1 - a.tied) * embedding.table(a)
    if is_pipelined(r):
        token = token * pipeline_stage.is_first(r)
    summed = tensor_parallel.summed_in_rest(a, r, token)
    outside = [tensor for tensors in _tensors_of_ends(a, r) for tensor in tensors]
    rest = fsdp_timelines.group(r, outside, summed)
    return _layer_gathered(a, r, in_backward), rest


def _layer_gathered(a: Fields, r: Run, in_backward) -> fsdp_timelines.Group:
    (group,) = layer_groups(a)
    size, tensors = bytes_of(r.dtype), layer.tensors(a, group)
    of_norm = size * int(a.norm_placement in BEFORE) * a.norm_scale * a.d_model
    summed, is_kept = tensor_parallel.summed_in_layer(a, r, of_norm, in_backward)
    return fsdp_timelines.group(r, tensors, summed, is_kept)


def ends_of_shards(a: Fields, r: Run) -> fsdp_timelines.Ends:
    """Return what happens before and after the layers, where the rest of the model is gathered."""
    n_rows = embedding.rows(a)
    shared = Allocation("tables and positions of RoPE", layer_step.rope_of_model(a, r))
    return fsdp_timelines.Ends(
        [*embedding_step.forward(a, r), shared], loss.backward(r, n_rows), loss.logits(r, n_rows)
    )


def forward_end(a: Fields, r: Run) -> tuple:
    """Return the bytes live in the loss, at the end of the final norm, and before the head.

    In addition to those live when backward begins.
    """
    unsaved = layer_step.positions_in_forward(a, r) + layer_step.unsaved_embeddings(a, r)
    normed = embedding_step.final_norm(a, r, unsaved)
    of_loss = loss.forward(r, embedding.rows(a))
    return of_loss, normed, embedding_step.gathered_for_head(a, r)


def peaks(family: Any, a: Fields, r: Run) -> Terms:
    """Return the largest number of bytes live at once, for each phase of two steps."""
    r = own_tokens(r)
    if is_pipelined(r):
        layers, start, forward_backward = _pass_of_stage(family, a, r)
    else:
        layers = a = share(a, r)
        start, forward_backward = _pass_of_model(family, a, r)
    trained, of_device = (
        _shards_trained(layers, r) if is_sharded(r) else _trained(family, layers, r)
    )
    tensors, part = neighbours(layers, r), None
    if has_part_of_states(r):
        of_device = part = optimizer_states.of_part(r, trained)
        tensors = [Neighbours(part, 0)]
    return optimizer_states.phases(
        stored(r),
        trained,
        start,
        total(family.optimizer_bytes(a, r)),
        optimizer_states.temporaries(stored(r), of_device, tensors),
        forward_backward,
        part,
    )


def _shards_trained(a: Fields, r: Run) -> tuple:
    """Count the numbers of a device's shards with their padding, and of its own rows."""
    return tuple(_of_stage(r, of(a, r)) for of in (in_shards, in_own_rows))


@once
def _trained(family: Any, a: Fields, r: Run) -> tuple:
    """Count the numbers of gradients that are no shards, and of what the optimizer updates."""
    updated = gradients = family.trained_parameters(a)
    if is_divided(r) and not accumulates(r):
        gradients = tensor_parallel.with_whole_embedding(a, r, updated)
    return _of_stage(r, gradients), _of_stage(r, updated)


def _of_stage(r: Run, terms: Terms):
    """Add up terms: of a pipeline, those that a stage has."""
    return total(pipeline_stage.without_ends(r, terms) if is_pipelined(r) else terms)


ForwardBackward = Callable[[Any], Any]
"""Computes the peak of a forward and a backward pass, of the bytes of what the optimizer holds."""


def _pass_of_model(family: Any, a: Fields, r: Run) -> tuple[Any, ForwardBackward]:
    """Return the bytes before a pass of a device's share of a model, and the peak of the pass."""
    of_parameters = total(family.parameter_bytes(a, r)) + model_frequencies(a, r)
    start = of_parameters + 2 * INDEX * tokens(r)
    saved, model = of_parameters + _saved(family, a, r), timelines(a, r)

    def forward_backward(n_bytes):
        if not is_sharded(r):
            return timeline.forward_backward(model, r, saved + n_bytes)
        groups = gathered_together(a, r)
        return fsdp_timelines.forward_backward(
            model, *groups, ends_of_shards(a, r), r, start + n_bytes, saved + n_bytes
        )

    return start, forward_backward


def _saved(family: Any, a: Fields, r: Run):
    """Bytes that a forward pass and the loss leave for the backward pass."""
    unsaved = loss.unsaved(r, embedding.rows(a)) + layer_step.arguments_of_checkpoints(a, r)
    return total(family.activation_bytes(a, r)) + unsaved


def _pass_of_stage(family: Any, a: Fields, r: Run) -> tuple[Fields, Any, ForwardBackward]:
    """Return the layers of one stage, and the same of all its passes of one step."""
    layers, stage, gradients = _stage(family, a, r)
    resident = total(family.parameter_bytes(a, r)) + pipeline_stage.texts(r)
    resident = resident + pipeline_stage.received(r, stage.states)
    resident = resident + model_frequencies(layers, r)

    def forward_backward(states):
        if not is_sharded(r):
            return largest(*pipeline_stage.passes(stage, r, resident + states, gradients))
        of_shards, _ = _sharded_stage(layers, r, stage)
        return sharded_stage.peak(of_shards, r, resident + states, gradients)

    return layers, resident, forward_backward


def forward_of_shards_is_lower(family: Any, a: Fields, r: Run):
    """1 where the forward pass of checkpointed layers surely needs less than something else.

    With shards whose parameters stay gathered.
    """
    if is_pipelined(r):
        layers, stage, gradients = _stage(family, a, r)
        sharded, model = _sharded_stage(layers, r, stage)
        (last,) = model.layers
        return sharded_stage.forward_of_layers_is_lower(sharded, r, last.forward, gradients)
    a = share(a, r)
    parts = *gathered_together(a, r), ends_of_shards(a, r)
    saved = _saved(family, a, r)
    return fsdp_timelines.forward_of_layers_is_lower(timelines(a, r), *parts, r, saved)


@once
def _stage(family: Any, a: Fields, r: Run):
    """Return a device's layers, their stage, and the bytes of whole gradients of its model."""
    layers, alone = pipeline_stage.layers_of_stage(a, r)
    layers = share(layers, r)
    stage = pipeline_stage.stage(layers, alone, timelines, family.activation_bytes)
    trained, _ = _trained(family, layers, r)
    return layers, stage, (1 - accumulates(r)) * reduced_number(r) * trained


def _sharded_stage(layers: Fields, r: Run, stage: pipeline_stage.Stage):
    """Return a device's stage with its shards, and the timelines of one microbatch.

    `layers`, `stage`: as of `_stage`.
    """
    of_microbatch, is_last = pipeline_stage.microbatch(r), pipeline_stage.is_last(r)
    model = timelines(layers, pipeline_stage.kept_microbatch(r))
    ends = ends_of_shards(layers, of_microbatch)
    (last,) = model.layers
    after = model.saved_after_layers if is_last else model.states
    in_layer = int(r.recompute != "full") * change(last.forward)
    sharded = sharded_stage.ShardedStage(
        stage,
        *gathered_together(layers, r, in_backward=0),
        times(pipeline_stage.is_first(r), ends.embedding),
        -after - in_layer,
        loss.number(r) + stage.logits if is_last else model.states,
    )
    return sharded, model


@once
def _layers(a: Fields, r: Run) -> list[timeline.Layers]:
    """Return the timelines of the layers, which depend on fewer settings than the whole."""
    return layer_step.training(a, r)


@once
def timelines(a: Fields, r: Run) -> timeline.Model:
    """Return the timelines from which the peak of training is computed."""
    r = own_tokens(r)
    model = timeline.Model(
        embedding_step.head_backward(a, r),
        _layers(a, r),
        embedding_step.backward(a, r),
        a.n_layer,
        embedding_step.saved_after_layers(a, r),
        bytes_of(r.dtype) * tokens(of_states(r)) * a.d_model,
        forward_end(a, r),
    )
    return timeline.with_gradient_buffer(model) if accumulates(r) else model
