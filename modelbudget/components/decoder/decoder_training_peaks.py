"""Peaks of a decoder's training: of a whole model, of a device's shards, and of a stage.

Each takes the family, a class whose other formulas say what is held.
"""

from typing import Any

from modelbudget.architecture.arithmetic import largest
from modelbudget.architecture.formula_arguments import Fields, Run
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
from modelbudget.components import (
    embedding,
    embedding_step,
    layer,
    loss,
    pipeline_stage,
    tensor_parallel,
)
from modelbudget.components.attention.model_tables import model_frequencies
from modelbudget.components.decoder.decoder_terms import in_own_rows, in_shards
from modelbudget.components.decoder.decoder_timelines import (
    ends_of_shards,
    forward_end,
    gathered_together,
    neighbours,
    sharded_stage_of,
)
from modelbudget.components.device_share import share
from modelbudget.memory import fsdp, optimizer_states, pipeline_stages, sharded_stage, training_peak
from modelbudget.memory.parameter_tensors import Neighbours


def peaks(family: Any, a: Fields, r: Run) -> Terms:
    """Return the largest number of bytes live at once, for each phase of two steps."""
    r = own_tokens(r)
    if is_pipelined(r):
        return _peaks_of_stage(family, a, r)
    a = share(a, r)
    sharded, states = is_sharded(r), total(family.optimizer_bytes(a, r))
    trained = total(in_shards(a, r) if sharded else family.trained_parameters(a))
    of_device = total(in_own_rows(a, r)) if sharded else trained
    if is_divided(r) and not sharded and not accumulates(r):
        trained = total(tensor_parallel.with_whole_embedding(a, r, family.trained_parameters(a)))
    of_parameters = total(family.parameter_bytes(a, r)) + model_frequencies(a, r)
    saved = of_parameters + total(family.activation_bytes(a, r))
    saved = saved + loss.held(r, embedding.rows(a)) + layer.held(a, r)
    model, tensors, part = timelines(a, r), neighbours(a, r), None
    if has_part_of_states(r):
        of_device = part = optimizer_states.of_part(r, trained)
        tensors = [Neighbours(part, 0)]
    start = of_parameters + 2 * INDEX * tokens(r)

    def forward_backward(n_bytes):
        if not sharded:
            return training_peak.forward_backward(model, r, saved + n_bytes)
        groups = gathered_together(a, r)
        return fsdp.forward_backward(
            model, *groups, ends_of_shards(a, r), r, start + n_bytes, saved + n_bytes
        )

    return optimizer_states.phases(
        stored(r),
        trained,
        start,
        states,
        optimizer_states.temporaries(stored(r), of_device, tensors),
        forward_backward,
        part,
    )


def _peaks_of_stage(family: Any, a: Fields, r: Run) -> Terms:
    """Return the largest number of bytes live at once in one stage, for the same phases."""
    layers, stage, trained = _stage(family, a, r)
    gradients = (1 - accumulates(r)) * reduced_number(r) * trained
    resident = total(family.parameter_bytes(a, r)) + pipeline_stages.texts(r)
    resident = resident + pipeline_stages.received(r, stage.states)
    resident = resident + model_frequencies(layers, r)
    of_stage = pipeline_stages.without_ends(r, family.trained_parameters(layers))
    part, of_device, tensors = None, total(of_stage), neighbours(layers, r)
    if has_part_of_states(r):
        part = of_device = optimizer_states.of_part(r, trained)
        tensors = [Neighbours(part, 0)]
    of_shards = None
    if is_sharded(r):
        of_shards, _ = _sharded_stage(layers, r, stage)
        trained, of_device = (
            total(pipeline_stages.without_ends(r, of(layers, r))) for of in (in_shards, in_own_rows)
        )

    def forward_backward(states):
        if of_shards is None:
            return largest(*pipeline_stages.passes(stage, r, resident + states, gradients))
        return sharded_stage.peak(of_shards, r, resident + states, gradients)

    return optimizer_states.phases(
        stored(r),
        trained,
        resident,
        total(family.optimizer_bytes(a, r)),
        optimizer_states.temporaries(stored(r), of_device, tensors),
        forward_backward,
        part,
    )


def forward_of_shards_is_lower(family: Any, a: Fields, r: Run):
    """1 where the forward pass of checkpointed layers surely needs less than something else.

    With shards whose parameters stay gathered.
    """
    if is_pipelined(r):
        layers, stage, trained = _stage(family, a, r)
        gradients = reduced_number(r) * trained
        sharded, model = _sharded_stage(layers, r, stage)
        (last,) = model.layers
        return sharded_stage.forward_of_layers_is_lower(sharded, r, last.forward, gradients)
    a = share(a, r)
    saved = (
        total(family.activation_bytes(a, r)) + loss.held(r, embedding.rows(a)) + layer.held(a, r)
    )
    parts = *gathered_together(a, r), ends_of_shards(a, r)
    return fsdp.forward_of_layers_is_lower(timelines(a, r), *parts, r, saved)


def _stage(family: Any, a: Fields, r: Run):
    """Return a device's layers, their stage, and the bytes of whole gradients of its model."""
    layers, alone = pipeline_stages.stage(a, r)
    layers = share(layers, r)
    stage = pipeline_stage.stage(layers, alone, timelines, family.activation_bytes)
    trained = family.trained_parameters(layers)
    if is_divided(r) and not accumulates(r):
        trained = tensor_parallel.with_whole_embedding(layers, r, trained)
    return layers, stage, total(pipeline_stages.without_ends(r, trained))


def _sharded_stage(layers: Fields, r: Run, stage: pipeline_stages.Stage):
    """Return a device's stage with its shards, and the timelines of one microbatch.

    `layers`, `stage`: as of `_stage`.
    """
    model = timelines(layers, pipeline_stage.microbatch(r))
    return sharded_stage_of(layers, r, stage, model), model


def timelines(a: Fields, r: Run) -> training_peak.Model:
    """Return the timelines from which the peak of training is computed."""
    r = own_tokens(r)
    model = training_peak.Model(
        embedding_step.head_backward(a, r),
        layer.training(a, r),
        embedding_step.backward(a, r),
        a.n_layer,
        embedding_step.saved_after_layers(a, r),
        bytes_of(r.dtype) * tokens(of_states(r)) * a.d_model,
        forward_end(a, r),
    )
    return training_peak.with_gradient_buffer(model) if accumulates(r) else model
