"""One stage of a pipeline: a decoder with fewer layers and without one or both of its ends.

Torch's schedules decide what is live at once (torch 2.13, `torch/distributed/pipelining`):

- A stage allocates buffers for the states that it receives, and for the gradients, of all
  microbatches at once, and keeps them (`stage.py`: `_setup_forward_recv_info`,
  `_create_grad_recv_info`).
- From its forward to its backward pass a microbatch leaves what autograd saves, and its output
  (`fwd_cache`). GPipe does so for all microbatches; 1F1B for as many as there are stages from this
  one on (`schedules.py`: `warmup_chunks`; Narayanan et al. 2021, §2.2).
- The gradients of the first microbatch stay, and those of each later one are added to them, tensor
  by tensor.
- 1F1B holds the gradient that it has to send until it has the next one (`bwd_sends`).
"""

from collections.abc import Callable
from functools import wraps
from types import SimpleNamespace
from typing import Any, NamedTuple

from modelbudget.architecture.arithmetic import ceil_div, largest, positive
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.memoised_run import changed
from modelbudget.architecture.run_values import (
    INDEX,
    accumulates,
    bytes_of,
    computed_again,
    is_pipelined,
    stage_index,
    tokens,
)
from modelbudget.architecture.terms import Term, Terms, scaled, total
from modelbudget.components import embedding, layer_step, loss, norm
from modelbudget.memory.timeline import (
    Allocation,
    Model,
    Timeline,
    added_to_buffer,
    change,
    freed_in_first,
    layers_with_gradient_buffer,
    live_bytes,
    peak_during,
    times,
)

FIRST, LAST = ("embedding", "norm.embedding", "dropout"), ("head", "norm.final", "loss")
"""Components, with those below them, that only the first stage has, and only the last."""


def is_first(r: Run) -> int:
    return int(r.pipeline_rank == "first")


def is_last(r: Run) -> int:
    return int(r.pipeline_rank == "last")


def layers_of_stage(a: Fields, r: Run) -> tuple[Fields, Run]:
    """Return the layers of one stage as a model, and its run without a pipeline.

    A tied matrix is on both ends, and each has a gradient and states of its own; that these
    gradients have to be added up is no memory.
    """
    layers = {"n_layer": ceil_div(a.n_layer, r.pipeline_parallel), "tied": 0}
    alone = {"pipeline_schedule": "none"}
    return SimpleNamespace(**vars(a) | layers), changed(r, alone)


def microbatch(r: Run) -> Run:
    return changed(r, {"batch": ceil_div(r.batch, r.n_microbatch)})


def has(r: Run, component: str) -> bool:
    """Whether a stage has a component of the model."""
    absent = (1 - is_first(r)) * FIRST + (1 - is_last(r)) * LAST
    return not any(component == end or component.startswith(f"{end}.") for end in absent)


def without_ends(r: Run, terms: Terms) -> Terms:
    """Return the terms of a stage, from those of a model with both ends."""
    return {name: term for name, term in terms.items() if has(r, name)}


def by_stage(formula: Callable[..., Terms]) -> Callable[..., Terms]:
    """Let a formula of a model and its run count one stage, where the run has a pipeline."""

    @wraps(formula)
    def of_stage(*arguments) -> Terms:
        *family, a, r = arguments
        if not is_pipelined(r):
            return formula(*arguments)
        return without_ends(r, formula(*family, *layers_of_stage(a, r)))

    return of_stage


def in_flight(r: Run):
    """Count the microbatches between forward and backward at once."""
    if r.pipeline_schedule == "gpipe":
        return r.n_microbatch
    stages = r.pipeline_parallel - stage_index(r)
    return r.n_microbatch + stages - largest(r.n_microbatch, stages)


def activations(r: Run, of_microbatch: Terms) -> Terms:
    """Return the bytes saved by all microbatches in flight.

    Tokens and targets of a microbatch are views of those of all.
    """
    n = in_flight(r)
    terms = scaled(without_ends(r, of_microbatch), n)
    rest = INDEX * (tokens(r) - n * tokens(microbatch(r)))
    return terms | {
        name: Term(terms[name].each + rest, terms[name].instances)
        for name in ("embedding.token", "loss")
        if name in terms
    }


class Passes(NamedTuple):
    """The backward pass of one microbatch: loss and head, layers, embedding.

    `last_layer` is the first that runs. A repeated forward pass is part of its layer's timeline.
    """

    head: Timeline
    last_layer: Timeline
    layer: Timeline
    end: Timeline


class Stage(NamedTuple):
    """What one stage computes, and holds of one microbatch, in bytes.

    `forward`: bytes live at moments of the forward pass up to the logits, `loss`: in the loss, both
    in addition to those live at its end. `backward`: of the first microbatch; `again`: of a later
    one. `waiting`: bytes that stay from the forward to the backward pass, without received states;
    `left`: those of them that stay until the end of the step. `states`: between two stages.
    """

    n_layer: Any
    forward: list
    loss: list
    backward: Passes
    again: Passes
    waiting: Any
    left: Any
    states: Any
    logits: Any


def added(passes: Passes) -> Passes:
    """Return the passes of a microbatch whose gradients are added to those that are there."""
    return Passes(*map(added_to_buffer, passes))


def received(r: Run, states):
    """Bytes of the buffers for the states and the gradients of states that a stage receives."""
    return r.n_microbatch * (2 - is_first(r) - is_last(r)) * states


def texts(r: Run):
    """Bytes of tokens and targets: the first stage has these, the last those."""
    return INDEX * tokens(r) * (is_first(r) + is_last(r))


def passes(stage: Stage, r: Run, start, gradients) -> list:
    """Live bytes in all passes of one step, where `start` bytes are live throughout.

    `gradients`: bytes of those of all parameters, which are there after the first backward pass.

    The peak is where the most microbatches wait: at the end of the first forward passes and in the
    first backward pass, or in a later one, when all gradients are there. In 1F1B as many wait again
    after each forward pass, until there are no more; what has been computed is then left of
    `finished` microbatches.
    """
    m, n = r.n_microbatch, in_flight(r)
    full = start + n * stage.waiting
    refills = positive(m - n)
    finished = refills * (m - n) + 1 - refills
    in_turn = int(r.pipeline_schedule == "1f1b")
    unsent = in_turn * (1 - is_first(r)) * stage.states
    later = start + (n - 1 + refills) * stage.waiting + finished * stage.left
    later = later + gradients + unsent
    # The schedule has the logits of the microbatch before until the next ones are computed.
    before = in_turn * is_last(r) * stage.logits
    forward = largest(0, *stage.forward)
    in_forward = largest(forward, *stage.loss)
    levels = [full + in_forward, *backward_levels(stage.backward, stage.n_layer, full)]
    again = backward_levels(stage.again, stage.n_layer, later)
    levels += [positive(m - 1) * level for level in again]
    return [*levels, refills * (later + before + forward), refills * (later + in_forward)]


def backward_levels(passes: Passes, n_layer, before) -> list:
    """Return the most live bytes in the parts of a backward pass; `before` are live at first."""
    n_more = n_layer - 1
    several = positive(n_more)
    first = [*passes.head, *passes.last_layer]
    levels = [peak_during(before, first, is_first=1 - several)]
    live = before + change(first) - (1 - several) * freed_in_first(first)
    for done in (0, n_more - 1):
        at = live + done * change(passes.layer)
        is_first = 1 - positive(n_more - 1 - done)
        levels.append(several * peak_during(at, passes.layer, is_first))
    live = live + n_more * change(passes.layer) - several * freed_in_first(passes.layer)
    return [*levels, peak_during(live, passes.end)]


def stage(
    a: Fields,
    r: Run,
    timelines: Callable[[Fields, Run], Model],
    activation_bytes: Callable[[Fields, Run], Terms],
) -> Stage:
    """Return what a stage computes and holds of one microbatch.

    `a`, `r`: the layers of the stage as a model, and its run without a pipeline. `timelines`,
    `activation_bytes`: the formulas of the whole model.
    """
    of_microbatch = kept_microbatch(r)
    model, has_head = timelines(a, of_microbatch), is_last(r)
    logits = bytes_of(r.dtype) * tokens(of_microbatch) * embedding.rows(a)
    kept = has_head * loss.number(r)
    output = loss.unsaved(of_microbatch, embedding.rows(a)) if has_head else model.states
    saves_input = 1 - norm.copies_input(a, r) * (1 - computed_again(r))
    input_ = (1 - is_first(r)) * saves_input * model.states
    first = _passes(a, of_microbatch, model, output - kept, input_)
    again = first if accumulates(r) else added(first)
    saved = total(without_ends(r, activation_bytes(a, of_microbatch)))
    saved = saved + layer_step.arguments_of_checkpoints(a, of_microbatch)
    return Stage(
        a.n_layer,
        *_forward(a, model, of_microbatch),
        first,
        again,
        saved + output - input_ - texts(of_microbatch),
        kept,
        model.states,
        logits,
    )


def kept_microbatch(r: Run) -> Run:
    """Return the run of one microbatch, whose outputs torch's schedules keep."""
    return changed(microbatch(r), {"outputs": "kept"})


def _forward(a: Fields, model: Model, r: Run) -> tuple[list, list]:
    """Return bytes live in the last layer's forward pass and at the logits, and in the loss.

    In addition to those live at the end. Only the last stage has logits and loss. A layer that is
    computed again needs more in backward.
    """
    has_head = is_last(r)
    of_loss, *of_head = model.forward_end
    levels = [*of_head, loss.logits(r, embedding.rows(a))] if has_head else []
    in_loss = [of_loss] if has_head else []
    if r.recompute == "full":
        return levels, in_loss
    (last,) = model.layers
    after = model.saved_after_layers if has_head else model.states
    return levels + live_bytes(-after - change(last.forward), last.forward), in_loss


def _passes(a: Fields, r: Run, model: Model, output, input_) -> Passes:
    """Return the backward pass of one microbatch, at whose end `output` bytes are freed.

    `input_`: bytes of the buffer in which a stage has received what its first layer saves.
    """
    has_head = is_last(r)
    (of_layer,) = model.layers
    last = of_layer
    if not has_head:
        (last,) = layer_step.training(a, r, received=1)
        last = layers_with_gradient_buffer(last) if accumulates(r) else last
    return Passes(
        times(has_head, model.head),
        last.backward_pass(r),
        of_layer.backward_pass(r),
        [
            Allocation("buffer of the input, which stays", input_),
            *times(is_first(r), model.embedding),
            Allocation("output", 0, output),
        ],
    )
