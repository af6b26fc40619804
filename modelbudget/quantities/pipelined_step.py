"""Training steps of one device of a pipeline: passes that are run once, and their order.

Each pass of a stage is run on a tape, for a microbatch. What the schedule adds is what lives
between passes (`devices/pipeline_schedules.py`). Passes are of any depth, and so is their sum.
"""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

from modelbudget.architecture.layer_pattern import layers_from
from modelbudget.architecture.run_adapter import is_partial
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import (
    INDEX,
    is_divided,
    is_interleaved,
    is_sharded,
    parts_of_length,
    stage_index,
    stored,
)
from modelbudget.devices.pipeline_schedules import Key, Pass, Saved, Schedule, Stage
from modelbudget.operations.autograd import backward, make_leaf
from modelbudget.operations.part import NoProgramError
from modelbudget.operations.tape import (
    BYTES,
    Active,
    Repeat,
    Tape,
    Tensor,
    empty,
    running_on,
)
from modelbudget.quantities.depth import OfPhases, of_any_depth
from modelbudget.quantities.optimizer_step import OptimizerStep
from modelbudget.quantities.saved_tensors import saved_by_component
from modelbudget.quantities.tape_of_run import (
    kept_of,
    make_model,
    parameters_of,
    peak_of,
    tape_of,
)
from modelbudget.quantities.training_step import (
    TrainingStep,
    check_devices,
    check_heads,
    free_leaf,
    gradients_again,
    gradients_of,
    has_parts_of_gradients,
    loss_of,
    of_own_tokens,
)

NAMES = {
    "F": "forward", "B": "backward", "G": "perform_reduce_grad", "U": "unshard",
    "W": "wait_for_unshard", "R": "reshard",
}  # fmt: skip
PASSES, PASSES_IN_ORDER, PASSES_OF_SHARDS = "FFBB", "FFBBFB", "FFBBFBG"
ONE, ONE_OF_SHARDS = "FB", "FBG"
PASSES_OF_INTERLEAVED_SHARDS = "UWFFBBFBGRUWFRUWBFRUWBR"
"""Passes of a stage, so that each kind is among them (`Stage.key`)."""


Repeats = tuple[Repeat, ...]
ONE_MICROBATCH = {
    "outputs": "freed", "pipeline_schedule": "none", "pipeline_parallel": 1,
    "pipeline_rank": "first", "virtual_stages": 1, "n_microbatch": 1,
}  # fmt: skip
"""Settings of a microbatch: schedules keep outputs, and passes do not depend on their order."""


class Layers(NamedTuple):
    """A stage as a model of its own."""

    architecture: Any
    is_first: bool
    is_last: bool


@dataclass
class Passes(OfPhases):
    """What a stage runs, by pass; bytes live before and after."""

    live: Counter[Any] = field(default_factory=Counter)
    results: Counter[Key] = field(default_factory=Counter)
    gradients_of_leaf: Counter[Key] = field(default_factory=Counter)
    saved: Counter[str] = field(default_factory=Counter)
    saved_once: Counter[str] = field(default_factory=Counter)
    parameters: Counter[str] = field(default_factory=Counter)
    parameter_bytes: Counter[str] = field(default_factory=Counter)
    flops_forward: Counter[str] = field(default_factory=Counter)
    flops_backward: Counter[str] = field(default_factory=Counter)
    gradients: Callable[[list[Tensor]], None] | None = None
    """Allocates the stage's gradients again; none of a depth that was not run."""

    def record(
        self, tape: Tape, key: Key, before: Any, result: Tensor | None, leaf: Tensor | None
    ) -> None:
        """Keep what a pass has allocated, unless one like it has been kept.

        `leaf`: an embedding that requires a gradient, which lives with the output that it leads to.
        """
        if key not in self.peaks:
            self.peaks[key] = peak_of(tape)
            self.live[key, "before"], self.live[key, "after"] = before, tape.live
            self.results[key] = 0 if result is None else result.storage.n_bytes
            if leaf is not None and leaf.grad is not None:
                self.gradients_of_leaf[key] = leaf.grad.storage.n_bytes
            elif leaf is not None:
                self.results[key] += leaf.storage.n_bytes


@dataclass
class Steps(OfPhases):
    """Two steps of the optimizer of all stages; live: bytes before, and of gradients."""

    live: Counter[Any] = field(default_factory=Counter)
    gradient_bytes: Counter[str] = field(default_factory=Counter)
    optimizer_bytes: Counter[str] = field(default_factory=Counter)


def pipelined_step(a, run: RunConfig) -> TrainingStep:
    """Return what two training steps of a device need. Raises NoProgramError."""
    check_heads(a, run)
    if is_sharded(run) and run.gathered_states == "again":
        raise NoProgramError(f"zero: {run.zero} with gathered_states: again, of stages")
    run = of_own_tokens(run)
    stages = stages_of(a, run)
    letters = _letters_of(run)
    of_microbatch = run.model_copy(update=ONE_MICROBATCH | {"batch": run.batch // run.n_microbatch})
    if not run.zero and run.gradient_buckets == "none":
        # Replicas need as much each.
        of_microbatch = of_microbatch.model_copy(update={"data_parallel": 1})
    check_devices(a, of_microbatch)
    passes = [_passes(stage, letters, of_microbatch, len(stages) > 1) for stage in stages]
    steps = _steps(stages, letters, of_microbatch)
    return _in_order(passes, steps, a, of_microbatch, run)


@lru_cache(maxsize=1024)
def _passes(stage: Layers, letters: str, run: RunConfig, is_one_of_several: bool) -> Passes:
    """Return the passes of a stage, which many devices have: of the layers of `_steps`."""

    def of_depth(layers) -> Passes:
        of_stage = stage._replace(architecture=layers)
        return _run_passes(of_stage, letters, run, tuple(Active.repeats))

    passes = of_any_depth(of_depth, stage.architecture, keeps_pattern=is_one_of_several)
    return replace(passes, gradients=None)


@lru_cache(maxsize=1024)
def _steps(stages: tuple[Layers, ...], letters: str, run: RunConfig) -> Steps:
    deepest = max(stages, key=lambda stage: stage.architecture.n_dense_layer)

    def of_depth(layers) -> Steps:
        depth = {"n_layer": layers.n_layer}
        shallow = [
            stage._replace(architecture=stage.architecture.model_copy(update=depth))
            for stage in stages
        ]
        if len(stages) == 1:  # as its passes
            shallow = [stages[0]._replace(architecture=layers)]
        return _run_optimizer(tuple(shallow), letters, run, tuple(Active.repeats))

    return of_any_depth(of_depth, deepest.architecture, keeps_pattern=len(stages) > 1)


def stages_of(a, run: RunConfig) -> tuple[Layers, ...]:
    """Return the stages of a device, the first of all first."""
    n_stage = run.pipeline_parallel * run.virtual_stages
    indices = range(stage_index(run), n_stage, run.pipeline_parallel)
    n = a.n_layer // n_stage
    apart = a.model_copy(update={"tied": False})  # a tied matrix is on both ends, each its own
    return tuple(Layers(layers_from(apart, i * n, n), i == 0, i == n_stage - 1) for i in indices)


@lru_cache(maxsize=32)
def _run_optimizer(
    stages: tuple[Layers, ...], letters: str, run: RunConfig, repeats: Repeats
) -> Steps:
    """Run two steps of the optimizer of all stages; `repeats`: those that are active."""
    steps = Steps()
    passes = (_run_passes(stage, letters, run, repeats) for stage in stages)
    gradients = [of_stage.gradients for of_stage in passes]
    accumulates = run.gradient_casts == "accumulated"
    with running_on(tape_of(run)) as tape:
        models, trained = [], []
        for stage in stages:
            tape.parameters = []
            models.append(_make(tape, stage, run))
            trained.append([kept_of(tape, p) for p in tape.parameters if p.needs_gradient])
        every = [p for of_stage in trained for p in of_stage]
        numbers = sum(p.numel() * p.storage.times for p in every)
        buffer = empty((numbers,), "float32") if accumulates else None
        optimizer = OptimizerStep(stages[0].architecture, stored(run), every, buffer)
        before = tape.live - optimizer.n_bytes_of_states()
        for name in ("first", "second"):
            steps.live[name] = tape.live
            tape.restart("backward")
            for of_stage, allocate in zip(trained, gradients, strict=True):
                assert allocate is not None
                allocate(of_stage)
            steps.live[name, "gradients"] = tape.live - steps.live[name]
            steps.gradient_bytes = gradients_of(every, accumulates)
            tape.restart("optimizer")
            optimizer.run()
            steps.optimizer_bytes = optimizer.bytes_by_component()
            if optimizer.is_known:
                steps.peaks[name] = peak_of(tape)
        steps.remainder = tape.live - before - optimizer.n_bytes_of_states()
    return steps


SEPARATE = {"projections": "separate", "gate_and_up": "separate"}


def _declare(passes: Passes, stage: Layers, run: RunConfig, tape: Tape) -> None:
    """Count parameters: of a packed matrix one by one, unless it is divided or adapted as one.

    `tape`: on which the stage has been made.
    """
    is_packed = any(getattr(run, name) != value for name, value in SEPARATE.items())
    if is_packed and not (is_sharded(run) or is_divided(run) or is_partial(run)):
        run = run.model_copy(update=SEPARATE)
        with running_on(tape_of(run)) as tape:
            _make(tape, stage, run)
    passes.parameters, passes.parameter_bytes = parameters_of(tape)


def _make(tape: Tape, stage: Layers, run: RunConfig) -> Callable:
    program = type(stage.architecture).program()
    ends = {"is_first": stage.is_first, "is_last": stage.is_last}
    return make_model(tape, partial(program, **ends), stage.architecture, run, True)


@lru_cache(maxsize=128)
def _run_passes(stage: Layers, letters: str, run: RunConfig, repeats: Repeats) -> Passes:
    """Run the passes of a stage; `repeats`: those that are active."""
    passes = Passes()
    shape = run.batch, run.length // parts_of_length(run), stage.architecture.d_model
    order = Stage({}, Saved(Counter(), Counter()), run)
    pending: deque[tuple[Tensor, Tensor, Tensor | None]] = deque()
    with running_on(tape_of(run)) as tape:
        model = _make(tape, stage, run)
        _declare(passes, stage, run, tape)
        if tape.adapter is not None:
            tape.adapter.check_forward()
        trained = [kept_of(tape, p) for p in tape.parameters if p.needs_gradient]
        if tape.sharded is not None:
            tape.sharded.accumulate_gradients()
        tape.accumulates_gradients = run.gradient_casts == "accumulated"
        tokens, targets = (empty((run.batch, run.length), "int64") for _ in range(2))
        gradient_of_states = empty(shape)
        inputs = [tokens if stage.is_first else make_leaf(empty(shape)) for _ in range(8)]
        before_all = tape.live
        unread = iter(inputs)  # all are live to the end, as a stage's buffers are
        seen: set[str] = set()
        for letter in letters:
            name, result, leaf = NAMES[letter], None, None
            key, is_new = order.key(name), name not in seen
            seen.add(name)
            tape.restart("forward")
            before = tape.live
            if name == "forward":
                x, loss = next(unread), None
                result = output = model(x)
                leaf = tape.leaves[-1] if tape.leaves else None
                if stage.is_last:
                    passes.record(tape, key, before, output, leaf)
                    tape.restart("forward")
                    before, key = tape.live, order.key("loss")
                    result = loss = loss_of(output, run, targets)
                if is_new:
                    _keep_saved(passes, tape, result, tokens, targets)
                pending.append((x, output, loss))
            elif name == "backward":
                x, output, loss = pending.popleft()
                if loss is None:
                    backward((output, gradient_of_states))
                else:
                    backward((loss, empty((), loss.dtype)))
                result, x.grad = x.grad, None
                leaf = tape.leaves.pop(0) if tape.leaves else None
                if is_new:
                    passes.flops_backward.update(tape.flops["backward"])
            else:
                getattr(tape.sharded, name)()
            passes.record(tape, key, before, result, leaf)  # torch holds these until then
            if leaf is not None and name == "backward":
                free_leaf(leaf)
            x = output = loss = leaf = None
            order.done(name)
        passes.gradients = gradients_again(trained)
        pending.clear()
        result = None
        if tape.sharded is not None:  # no pass needs these any more
            tape.sharded.perform_reduce_grad()
            tape.sharded.reshard()
        for p in trained:
            p.grad = None
        kept = [x.storage.n_bytes for x in tape.without_values]
        passes.remainder = tape.live - before_all - sum(kept)
    return passes


def _letters_of(run: RunConfig) -> str:
    """Return the passes to run of each stage, so that each kind that it needs is among them."""
    gathers_again = run.gathered_states == "again"
    if is_sharded(run) and is_interleaved(run):
        return PASSES_OF_INTERLEAVED_SHARDS
    needs_more = gathers_again or is_interleaved(run) or run.gradient_casts == "accumulated"
    if run.n_microbatch == 1 and not needs_more:
        return ONE_OF_SHARDS if is_sharded(run) else ONE
    if is_sharded(run):
        return PASSES_OF_SHARDS
    return PASSES_IN_ORDER if gathers_again else PASSES


def _keep_saved(passes: Passes, tape: Tape, root: Tensor, *texts: Tensor) -> None:
    """Keep what a microbatch saves; its tokens and targets are views of those of all."""
    saved = saved_by_component(root.node, [*tape.parameters, *texts])
    passes.flops_forward.update(tape.flops["forward"])
    for name, n_bytes in saved_by_component(root.node, tape.parameters).items():
        passes.saved[name] = saved[name]
        passes.saved_once[name] = n_bytes - saved[name]


def _in_order(
    passes: list[Passes], steps: Steps, a, of_microbatch: RunConfig, run: RunConfig
) -> TrainingStep:
    """Let the passes follow each other in two steps. `of_microbatch`: the run of a microbatch."""
    parameters, parameter_bytes, forward, backward = (
        sum((getattr(of_stage, name) for of_stage in passes), Counter())
        for name in ("parameters", "parameter_bytes", "flops_forward", "flops_backward")
    )
    step = TrainingStep(
        parameters, parameter_bytes, Counter(steps.gradient_bytes), Counter(steps.optimizer_bytes)
    )
    m, length = run.n_microbatch, of_microbatch.length // parts_of_length(run)
    states = BYTES[run.dtype] * of_microbatch.batch * length * a.d_model
    n_text = sum(stage.is_first + stage.is_last for stage in stages_of(a, run))
    resident = INDEX * run.batch * run.length * n_text
    resident = resident + m * states * (2 * len(passes) - n_text)  # buffers of what is received
    with running_on(Tape()) as tape:
        schedule = Schedule([_stage(of_stage, run) for of_stage in passes], run)
        for name in ("first", "second"):
            tape.restart("forward")
            schedule.step()
            step.peaks[f"{name}.forward_backward"] = steps.live[name] + resident + tape.peak
            gradients = steps.live[name, "gradients"]
            if name in steps.peaks:
                more = resident + tape.live - gradients
                step.peaks[f"{name}.optimizer"] = steps.peaks[name] + more
            tape.live -= gradients
            for stage in schedule.stages:
                stage.has_gradients = run.gradient_casts == "accumulated"
    if is_divided(run) and not has_parts_of_gradients(run):
        step.peaks = {}  # are not known
    step.saved = schedule.saved
    step.flops_forward = Counter({part: m * n for part, n in forward.items()})
    step.flops_backward = Counter({part: m * n for part, n in backward.items()})
    return step


def _stage(of_stage: Passes, run: RunConfig) -> Stage:
    live = of_stage.live
    passes = {
        key: Pass(
            peak - live[key, "before"], live[key, "after"] - live[key, "before"],
            of_stage.results[key],
            of_stage.gradients_of_leaf[key],
        )
        for key, peak in of_stage.peaks.items()
    }  # fmt: skip
    of_each, of_all = (
        Counter({name: n * by for name, n in saved.items() if n})
        for saved, by in ((of_stage.saved, 1), (of_stage.saved_once, run.n_microbatch))
    )
    return Stage(passes, Saved(of_each, of_all), run)
