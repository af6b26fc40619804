"""Training steps of one device of a pipeline: passes that are run once, and their order.

Each pass of a stage is run on a tape, for a microbatch. What the schedule adds is what lives
between passes (`devices/pipeline_schedules.py`). Passes are of any depth, and so is their sum.
"""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from modelbudget.architecture.run_adapter import is_partial
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import (
    INDEX,
    is_divided,
    is_interleaved,
    is_sharded,
    parts_of_length,
    stage_index,
)
from modelbudget.devices.pipeline_schedules import Key, Pass, Saved, Schedule, Stage
from modelbudget.operations.autograd import backward, make_leaf
from modelbudget.operations.part import NoProgramError
from modelbudget.operations.tape import (
    BYTES,
    Allocation,
    Tape,
    Tensor,
    empty,
    running_on,
)
from modelbudget.quantities.depth import of_any_depth
from modelbudget.quantities.optimizer_step import OptimizerStep
from modelbudget.quantities.saved_tensors import saved_by_component
from modelbudget.quantities.tape_of_run import make_model, peak_of, tape_of
from modelbudget.quantities.training_step import (
    TrainingStep,
    check_devices,
    check_heads,
    gradients_again,
    gradients_of,
    has_parts_of_gradients,
    kept_of,
    loss_of,
    of_optimizer,
    of_own_tokens,
)

NAMES = {
    "F": "forward",
    "B": "backward",
    "G": "perform_reduce_grad",
    "U": "unshard",
    "W": "wait_for_unshard",
    "R": "reshard",
}
PASSES, PASSES_IN_ORDER, PASSES_OF_SHARDS = "FFBB", "FFBBFB", "FFBBFBG"
PASSES_OF_INTERLEAVED_SHARDS = "UWFFBBFBGRUWFRUWBFRUWBR"
"""Passes of a stage, so that each kind is among them (`Stage.key`)."""


OF_ONE = {"outputs": "freed", "pipeline_schedule": "none"}
"""Settings of a microbatch: schedules keep outputs."""


class Layers(NamedTuple):
    """A stage as a model of its own."""

    architecture: Any
    is_first: bool
    is_last: bool

    def of_depth(self, n_layer) -> "Layers":
        return self._replace(architecture=self.architecture.model_copy(update={"n_layer": n_layer}))


@dataclass
class Device:
    """What a device runs, by the number of the stage and the pass; bytes live before and after."""

    peaks: dict[Any, Any] = field(default_factory=dict)
    allocations: dict[Any, list[Allocation]] = field(default_factory=dict)
    live: Counter[Any] = field(default_factory=Counter)
    results: Counter[Key] = field(default_factory=Counter)
    saved: Counter[tuple[int, str]] = field(default_factory=Counter)
    saved_once: Counter[tuple[int, str]] = field(default_factory=Counter)
    parameters: Counter[str] = field(default_factory=Counter)
    parameter_bytes: Counter[str] = field(default_factory=Counter)
    gradient_bytes: Counter[str] = field(default_factory=Counter)
    optimizer_bytes: Counter[str] = field(default_factory=Counter)
    flops_forward: Counter[str] = field(default_factory=Counter)
    flops_backward: Counter[str] = field(default_factory=Counter)

    def record(self, tape: Tape, key: Any, before: Any, result: Tensor | None = None) -> None:
        """Keep what a pass has allocated, unless one like it has been kept."""
        if key not in self.peaks:
            assert tape.allocations is not None
            self.peaks[key], self.allocations[key] = peak_of(tape), tape.allocations
            self.live[key, "before"], self.live[key, "after"] = before, tape.live
            self.results[key] = 0 if result is None else result.storage.n_bytes


def pipelined_step(program: Callable, a, run: RunConfig) -> TrainingStep:
    """Return what two training steps of a device need. Raises NoProgramError."""
    check_heads(a, run)
    if is_partial(run):
        raise NoProgramError(f"adapter: {run.adapter} with stages")
    if is_sharded(run) and run.gathered_states == "again":
        raise NoProgramError(f"zero: {run.zero} with gathered_states: again, of stages")
    run = of_own_tokens(run)
    stages = stages_of(a, run)
    deepest = max(stages, key=lambda stage: stage.architecture.n_dense_layer)
    one = run.model_copy(update=OF_ONE | {"batch": run.batch // run.n_microbatch})

    check_devices(one)

    def of_depth(layers) -> Device:
        shallow = tuple(stage.of_depth(layers.n_layer) for stage in stages)
        return _device(program, shallow, _order_of(run), one)

    return _in_order(of_any_depth(of_depth, deepest.architecture), a, stages, one, run)


def stages_of(a, run: RunConfig) -> list[Layers]:
    """Return the stages of a device, the first of all first."""
    n_stage = run.pipeline_parallel * run.virtual_stages
    indices = range(stage_index(run), n_stage, run.pipeline_parallel)
    return [Layers(_layers_of(a, i, n_stage), i == 0, i == n_stage - 1) for i in indices]


def _layers_of(a, index: int, n_stage: int):
    """Return the consecutive layers of a stage; a tied matrix is on both ends, each its own."""
    n_layer, n_dense = a.n_layer // n_stage, a.n_dense_layer
    start = index * n_layer
    layers = {
        "n_layer": n_layer,
        "n_dense_layer": min(n_layer, max(0, n_dense - start)),
        "mixers": _from(a.mixers, start),
        "mlps": _from(a.mlps, max(0, start - n_dense)),
    }
    return a.model_copy(update=layers | {"tied": False})


def _from(pattern: str, start: int) -> str:
    names = pattern.split()
    start %= len(names)
    return " ".join(names[start:] + names[:start])


def _device(program: Callable, stages: tuple[Layers, ...], passes: str, run: RunConfig) -> Device:
    """Run the passes of each stage, and two steps of the optimizer of all of them."""
    device, gradients = Device(), []
    for turn, stage in enumerate(stages):
        gradients.append(_run_passes(device, turn, program, stage, passes, run))
    _declare(device, program, stages, run)
    accumulates = run.gradient_casts == "accumulated"
    with running_on(tape_of(run, lists_allocations=True)) as tape:
        models, trained = [], []
        for stage in stages:
            tape.parameters = []
            models.append(_make(tape, program, stage, run))
            trained.append([kept_of(tape, p) for p in tape.parameters if p.needs_gradient])
        every = [p for of_stage in trained for p in of_stage]
        numbers = sum(p.numel() for p in every)
        buffer = empty((numbers,), "float32") if accumulates else None
        optimizer = OptimizerStep(stages[0].architecture, of_optimizer(run), every, buffer)
        for name in ("first", "second"):
            device.live[name] = tape.live
            for of_stage, allocate in zip(trained, gradients, strict=True):
                allocate(of_stage)
            device.live[name, "gradients"] = tape.live - device.live[name]
            device.gradient_bytes = gradients_of(every, accumulates)
            tape.restart("optimizer")
            optimizer.run()
            device.optimizer_bytes = optimizer.bytes_by_component()
            if optimizer.is_known:
                device.record(tape, (name,), 0)
    return device


def _declare(device: Device, program: Callable, stages: tuple[Layers, ...], run: RunConfig) -> None:
    """Count parameters: those of a packed matrix one by one, unless it is divided as one."""
    if not (is_sharded(run) or is_divided(run)):
        run = run.model_copy(update={"projections": "separate", "gate_and_up": "separate"})
    with running_on(tape_of(run, lists_allocations=False)) as tape:
        for stage in stages:
            tape.parameters = []
            _make(tape, program, stage, run)
            for p in tape.parameters:
                device.parameters[p.name] += p.numel()
                device.parameter_bytes[p.name] += kept_of(tape, p).storage.n_bytes


def _make(tape: Tape, program: Callable, stage: Layers, run: RunConfig) -> Callable:
    ends = {"is_first": stage.is_first, "is_last": stage.is_last}
    return make_model(tape, partial(program, **ends), stage.architecture, run)


def _run_passes(
    device: Device, turn: int, program: Callable, stage: Layers, letters: str, run: RunConfig
) -> Callable[[list[Tensor]], None]:
    """Run the passes of a stage; return what allocates its gradients again."""
    shape = run.batch, run.length // parts_of_length(run), stage.architecture.d_model
    order = Stage({}, Saved(Counter(), Counter()), run)
    passes: deque[tuple[Tensor, Tensor, Tensor | None]] = deque()
    with running_on(tape_of(run, lists_allocations=True)) as tape:
        model = _make(tape, program, stage, run)
        trained = [kept_of(tape, p) for p in tape.parameters if p.needs_gradient]
        if tape.sharded is not None:
            tape.sharded.accumulate_gradients()
        tape.accumulates_gradients = run.gradient_casts == "accumulated"
        tokens, targets = (empty((run.batch, run.length), "int64") for _ in range(2))
        gradient_of_states = empty(shape)
        inputs = [tokens if stage.is_first else make_leaf(empty(shape)) for _ in range(8)]
        unread = iter(inputs)  # all are live to the end, as a stage's buffers are
        seen: set[str] = set()
        for letter in letters:
            name, result = NAMES[letter], None
            key, is_new = (turn, *order.key(name)), name not in seen
            seen.add(name)
            tape.restart("forward")
            before = tape.live
            if name == "forward":
                x, loss = next(unread), None
                result = output = model(x)
                if stage.is_last:
                    device.record(tape, key, before, output)
                    tape.restart("forward")
                    before, key = tape.live, (turn, *order.key("loss"))
                    result = loss = loss_of(output, run, targets)
                if is_new:
                    _keep_saved(device, turn, tape, result, tokens, targets)
                passes.append((x, output, loss))
            elif name == "backward":
                x, output, loss = passes.popleft()
                if loss is None:
                    backward((output, gradient_of_states))
                else:
                    backward((loss, empty((), loss.dtype)))
                result, x.grad = x.grad, None
                if is_new:
                    device.flops_backward.update(tape.flops["backward"])
            else:
                getattr(tape.sharded, name)()
            device.record(tape, key, before, result)  # torch holds these until then
            x = output = loss = None
            order.done(name)
        return gradients_again(trained)


def _order_of(run: RunConfig) -> str:
    if is_sharded(run):
        return PASSES_OF_INTERLEAVED_SHARDS if is_interleaved(run) else PASSES_OF_SHARDS
    return PASSES_IN_ORDER if run.gathered_states == "again" else PASSES


def _keep_saved(device: Device, turn: int, tape: Tape, root: Tensor, *texts: Tensor) -> None:
    """Keep what a microbatch saves; its tokens and targets are views of those of all."""
    found = saved_by_component(root.node, [*tape.parameters, *texts])
    device.flops_forward.update(tape.flops["forward"])
    for name, n_bytes in saved_by_component(root.node, tape.parameters).items():
        device.saved[turn, name] = found[name]
        device.saved_once[turn, name] = n_bytes - found[name]


def _in_order(
    device: Device, a, stages: list[Layers], one: RunConfig, run: RunConfig
) -> TrainingStep:
    """Let the passes follow each other in two steps. `one`: the run of a microbatch."""
    step = TrainingStep(
        device.parameters, device.parameter_bytes, device.gradient_bytes, device.optimizer_bytes
    )
    m, length = run.n_microbatch, one.length // parts_of_length(run)
    states = BYTES[run.dtype] * one.batch * length * a.d_model
    n_text = sum(stage.is_first + stage.is_last for stage in stages)
    resident = INDEX * run.batch * run.length * n_text
    resident = resident + m * states * (2 * len(stages) - n_text)  # buffers of what is received
    with running_on(Tape()) as tape:
        schedule = Schedule([_stage(device, turn, run) for turn in range(len(stages))], run)
        for name in ("first", "second"):
            tape.restart("forward")
            schedule.step()
            step.peaks[f"{name}.forward_backward"] = device.live[name] + resident + tape.peak
            gradients = device.live[name, "gradients"]
            if (name,) in device.peaks:
                more = resident + tape.live - gradients
                step.peaks[f"{name}.optimizer"] = device.peaks[name,] + more
            tape.live -= gradients
            for stage in schedule.stages:
                stage.has_gradients = run.gradient_casts == "accumulated"
    if is_divided(run) and not has_parts_of_gradients(run):
        step.peaks = {}  # are not known
    step.saved = schedule.saved
    for name in ("flops_forward", "flops_backward"):
        of_one = getattr(device, name)
        setattr(step, name, Counter({part: m * n for part, n in of_one.items()}))
    return step


def _stage(device: Device, turn: int, run: RunConfig) -> Stage:
    passes = {
        key[1:]: Pass(
            peak - device.live[key, "before"],
            device.live[key, "after"] - device.live[key, "before"],
            device.results[key],
        )
        for key, peak in device.peaks.items()
        if key[0] == turn
    }
    of_each, of_all = (
        Counter({name: n * by for (place, name), n in saved.items() if place == turn and n})
        for saved, by in ((device.saved, 1), (device.saved_once, run.n_microbatch))
    )
    return Stage(passes, Saved(of_each, of_all), run)
