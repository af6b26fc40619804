"""One stage of a decoder's pipeline, from its own formulas, for `devices/pipeline_timelines.py`.

Of each microbatch torch holds more than the same layers without a pipeline do: the output, until
the end of its backward pass, and buffers of what is received, which stay.
"""

from collections.abc import Callable

from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.memoised_run import changed
from modelbudget.architecture.run_values import accumulates, bytes_of, computed_again, tokens
from modelbudget.architecture.terms import Terms, total
from modelbudget.components import embedding, layer_step, loss, norm
from modelbudget.devices import pipeline_timelines
from modelbudget.memory.timeline import (
    Allocation,
    Model,
    change,
    layers_with_gradient_buffer,
    live_bytes,
    times,
)

Timelines = Callable[[Fields, Run], Model]


def stage(
    a: Fields, r: Run, timelines: Timelines, activation_bytes: Callable[[Fields, Run], Terms]
) -> pipeline_timelines.Stage:
    """Return what a stage computes and holds of one microbatch.

    `a`, `r`: the layers of the stage as a model, and its run without a pipeline. `timelines`,
    `activation_bytes`: the formulas of the whole model.
    """
    of_microbatch = microbatch(r)
    model, is_last = timelines(a, of_microbatch), pipeline_timelines.is_last(r)
    logits = bytes_of(r.dtype) * tokens(of_microbatch) * embedding.rows(a)
    kept = is_last * loss.number(r)
    output = loss.held(of_microbatch, embedding.rows(a)) if is_last else model.states
    saves_input = 1 - norm.copies_input(a, r) * (1 - computed_again(r))
    input_ = (1 - pipeline_timelines.is_first(r)) * saves_input * model.states
    first = _passes(a, of_microbatch, model, output - kept, input_)
    again = first if accumulates(r) else pipeline_timelines.added(first)
    saved = total(
        pipeline_timelines.without_ends(r, activation_bytes(a, of_microbatch))
    ) + layer_step.held(a, of_microbatch)
    return pipeline_timelines.Stage(
        a.n_layer,
        *_forward(a, model, of_microbatch),
        first,
        again,
        saved + output - input_ - pipeline_timelines.texts(of_microbatch),
        kept,
        model.states,
        logits,
    )


def microbatch(r: Run) -> Run:
    """Return the run of one microbatch, whose outputs torch's schedules keep."""
    return changed(pipeline_timelines.microbatch(r), {"outputs": "kept"})


def _forward(a: Fields, model: Model, r: Run) -> tuple[list, list]:
    """Return bytes live in the last layer's forward pass and at the logits, and in the loss.

    In addition to those live at the end. Only the last stage has logits and loss. A layer that is
    computed again needs more in backward.
    """
    is_last = pipeline_timelines.is_last(r)
    of_loss, *of_head = model.forward_end
    levels = [*of_head, loss.logits(r, embedding.rows(a))] if is_last else []
    in_loss = [of_loss] if is_last else []
    if r.recompute == "full":
        return levels, in_loss
    (last,) = model.layers
    after = model.saved_after_layers if is_last else model.states
    return levels + live_bytes(-after - change(last.forward), last.forward), in_loss


def _passes(a: Fields, r: Run, model: Model, output, input_) -> pipeline_timelines.Passes:
    """Return the backward pass of one microbatch, at whose end `output` bytes are freed.

    `input_`: bytes of the buffer in which a stage has received what its first layer saves.
    """
    is_last = pipeline_timelines.is_last(r)
    (of_layer,) = model.layers
    last = of_layer
    if not is_last:
        (last,) = layer_step.training(a, r, received=1)
        last = layers_with_gradient_buffer(last) if accumulates(r) else last
    return pipeline_timelines.Passes(
        times(is_last, model.head),
        last.backward_pass(r),
        of_layer.backward_pass(r),
        [
            Allocation("buffer of the input, which stays", input_),
            *times(pipeline_timelines.is_first(r), model.embedding),
            Allocation("output", 0, output),
        ],
    )
