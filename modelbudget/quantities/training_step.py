"""Two training steps of a program, and a forward pass alone: saved bytes, FLOPs, peaks by phase."""

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass, field
from functools import partial, reduce

from modelbudget.architecture.optimizers import optimizer_named
from modelbudget.architecture.run_adapter import is_partial
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import (
    is_divided,
    is_pipelined,
    is_sharded,
    stored,
    target_tokens,
)
from modelbudget.components import chunked_loss, fused_linear_loss
from modelbudget.components.preference_loss import Preference
from modelbudget.devices import gradient_buckets
from modelbudget.memory.optimizer_states import has_two_temporaries
from modelbudget.operations.autocast import Autocast
from modelbudget.operations.autograd import backward, in_layers
from modelbudget.operations.collectives import WholeGradient
from modelbudget.operations.elementwise import add, without_gradient
from modelbudget.operations.losses import cross_entropy, cross_entropy_in_place
from modelbudget.operations.memory_layout import at_least_float32
from modelbudget.operations.part import NoProgramError, NotComputedError
from modelbudget.operations.tape import BYTES, Active, Storage, Tape, Tensor, empty, running_on
from modelbudget.operations.vocabulary_share import cross_entropy_of_share
from modelbudget.quantities.depth import OfPhases
from modelbudget.quantities.optimizer_step import OptimizerStep
from modelbudget.quantities.saved_tensors import saved_by_component
from modelbudget.quantities.tape_of_run import (
    finish,
    kept_of,
    make_model,
    parameters_of,
    tape_of,
)

PHASES = (
    "first.forward_backward",
    "first.optimizer",
    "second.forward_backward",
    "second.optimizer",
)


@dataclass
class TrainingStep(OfPhases):
    """What a training step needs. Counts, bytes and FLOPs are by component, peaks by phase."""

    parameters: Counter[str] = field(default_factory=Counter)
    parameter_bytes: Counter[str] = field(default_factory=Counter)
    gradient_bytes: Counter[str] = field(default_factory=Counter)
    optimizer_bytes: Counter[str] = field(default_factory=Counter)
    trained: Counter[str] = field(default_factory=Counter)
    saved: Counter[str] = field(default_factory=Counter)
    flops_forward: Counter[str] = field(default_factory=Counter)
    flops_backward: Counter[str] = field(default_factory=Counter)


def training_step(
    program,
    a,
    run: RunConfig,
    lists_allocations: bool = False,
    n_steps: int = 2,
    preference: Preference | None = None,
) -> TrainingStep:
    """Run training steps of a program; without any, one forward and backward pass.

    In the second step the states of the optimizer are resident. `preference`: the loss of a
    trainer in place of the run's. Raises NoProgramError for a part or a setting that has no
    program.
    """
    check_devices(a, run)
    check_heads(a, run)
    run = of_microbatch(of_own_tokens(run))
    if run.weights != "dtype" and not is_partial(run):
        raise NoProgramError(f"weights: {run.weights} are frozen; adapter: lora trains others")
    with running_on(tape_of(run, lists_allocations)) as tape:
        model = make_model(tape, program, a, run)
        if tape.adapter is not None:
            tape.adapter.check_forward()
        step, trained = _declared(tape, run)
        accumulates = run.gradient_casts == "accumulated"
        numbers = sum(p.numel() * p.storage.times for p in trained)
        # Declared in the order in which training allocates them.
        tokens = empty((run.batch, run.length, *a.shape_of_token), "int64")
        targets = empty((run.batch, target_tokens(run)), "int64")
        _waiting = [empty((run.n_microbatch - 1, *x.shape), x.dtype) for x in (tokens, targets)]
        buffer = empty((numbers,), "float32") if accumulates else None
        keep = gradient_buckets.make(run, trained)
        tape.accumulates_gradients = accumulates
        optimizer = OptimizerStep(a, stored(run), trained, buffer)
        tape.update = optimizer.update if run.optimizer_in_backward else keep
        before, n_kept = tape.live, optimizer.n_bytes_of_states()
        tape.restart("forward")
        _forward_backward(tape, step, model, run, (tokens, targets), preference)
        finish(step, tape, "first.forward_backward")
        step.gradient_bytes = gradients_of(trained, accumulates)
        again = gradients_again(trained)
        for number, name in enumerate(("first", "second")[:n_steps]):
            keeps_more = tape.without_values or run.gathered_states == "again"
            if number and (tape.update is not None or keeps_more):
                tape.restart("forward")
                _forward_backward(tape, step, model, run, (tokens, targets), preference)
                finish(step, tape, "second.forward_backward")
            elif number:  # the same, over the states of the optimizer
                step.peaks[PHASES[2]] = step.peaks[PHASES[0]] + (tape.live - before)
                tape.restart("backward")
                again(trained)
            tape.restart("optimizer")
            optimizer.run()
            step.optimizer_bytes = optimizer.bytes_by_component()
            if optimizer.is_known:
                finish(step, tape, f"{name}.optimizer")
        for p in trained:
            p.grad = None
        if Active.zero is int:
            kept = [x.storage.n_bytes for x in tape.without_values]
            more = optimizer.n_bytes_of_states() - n_kept + sum(kept)
            step.remainder = tape.live - before - more
    if n_steps and is_divided(run) and not has_parts_of_gradients(run):
        step.peaks, step.allocations = {}, {}  # are not known
    return step


def has_parts_of_gradients(run: RunConfig) -> bool:
    """Return whether an optimizer needs its own tensors alone where devices divide matrices.

    It divides gradients that are whole, or sums those of which each device has a term, into copies;
    AdamW's own two are as large. Gradients of shards and of a buffer are divided before.
    """
    copies = has_two_temporaries(run) and not run.fused
    return bool(copies or is_sharded(run) or run.gradient_casts == "accumulated")


def _declared(tape: Tape, run: RunConfig) -> tuple[TrainingStep, list[Tensor]]:
    """Return the parameters of a model that has been made, and those that are trained."""
    trained = [kept_of(tape, p) for p in tape.parameters if p.needs_gradient]
    if optimizer_named(run.optimizer).updates_in == "backward":
        raise NoProgramError(f"optimizer: {run.optimizer} updates in the backward pass")
    if not trained:
        raise NotComputedError(f"trained: {run.trained}, which no part is")
    return TrainingStep(*parameters_of(tape)), trained


def declared(program, a, run: RunConfig) -> TrainingStep:
    """Return parameters, gradients and states of a program that is not run: each has a gradient.

    The numbers of trained parameters are known of this alone.
    """
    check_devices(a, run)
    with running_on(tape_of(run)) as tape:
        make_model(tape, program, a, run)
        step, trained = _declared(tape, run)
        optimizer = OptimizerStep(a, stored(run), trained, None)
        for p in trained:
            step.trained[p.name] += p.numel() * p.storage.times
            p.grad = empty(p.shape, p.dtype)
        step.gradient_bytes = gradients_of(trained, accumulates=False)
        optimizer.run()
        step.optimizer_bytes = optimizer.bytes_by_component()
    return step


def of_own_tokens(run: RunConfig) -> RunConfig:
    """Return the run of the tokens that a device has of each sequence."""
    length = run.length // run.context_parallel
    return run.model_copy(update={"length": length}) if run.context_parallel > 1 else run


def of_microbatch(run: RunConfig) -> RunConfig:
    """Return the run of one of the parts of a batch whose gradients are added up."""
    return run.model_copy(update={"batch": run.batch // run.n_microbatch})


def check_devices(a, run: RunConfig) -> None:
    """Raise NoProgramError for what is not known of devices that share a model.

    Replicas that add up their gradients in place need what one device needs.
    """
    for name in ("tensor_parallel", "context_parallel", "expert_parallel"):
        if getattr(run, name) > 1 and name not in a.switches_of_run:
            raise NoProgramError(f"{name}: {getattr(run, name)} of the family {a.name()}")
    if is_pipelined(run):
        raise NoProgramError(f"pipeline_schedule: {run.pipeline_schedule}")
    if is_sharded(run) and run.optimizer_in_backward:
        raise NoProgramError(f"zero: {run.zero} with optimizer_in_backward: true")
    if run.gradient_accumulation_fusion and run.autocast != "none":
        raise NoProgramError("gradient_accumulation_fusion: true with autocast")


def check_heads(a, run: RunConfig) -> None:
    if is_divided(run) and 1 < a.n_kv_head < run.tensor_parallel:
        raise NoProgramError(f"n_kv_head: {a.n_kv_head} with tensor_parallel: copies of heads")


def gradients_of(trained: list[Tensor], accumulates: bool) -> Counter[str]:
    """Return the bytes of gradients by component: of the float32 buffer, if they accumulate."""
    n_bytes: Counter[str] = Counter()
    for p in trained:
        if accumulates or p.grad is not None:
            of = p.grad if isinstance(p.grad, WholeGradient) else p
            of_one = BYTES["float32"] * p.numel() if accumulates else of.storage.n_bytes
            n_bytes[p.name] += of_one * p.storage.times
    return n_bytes


def gradients_again(trained: list[Tensor]) -> Callable[[list[Tensor]], None]:
    """Return what allocates the gradients again that there are, with the storages they share."""
    layouts = [
        (i, gradient, id(gradient.storage), gradient.storage.n_bytes)
        for i, gradient in enumerate(p.grad and _stored_in(p.grad.storage, p.grad) for p in trained)
        if gradient is not None
    ]
    for _, gradient, *_ in layouts:
        del gradient.storage

    def allocate(trained: list[Tensor]) -> None:
        storages: dict[int, Storage] = {}
        parameters = in_layers(trained[i] for i, *_ in layouts)
        for p, (_, gradient, storage, n_bytes) in zip(parameters, layouts, strict=True):
            if storage not in storages:
                storages[storage] = Storage(n_bytes)
            p.grad = _stored_in(storages[storage], gradient)

    return allocate


def _stored_in(storage: Storage, gradient: Tensor) -> Tensor:
    """Return a gradient of the same layout in a storage."""
    if not isinstance(gradient, WholeGradient):  # a copy takes five times as long
        return Tensor(gradient.shape, gradient.strides, gradient.dtype, storage)
    gradient = copy(gradient)
    gradient.storage = storage
    return gradient


def _forward_backward(tape: Tape, step: TrainingStep, model, run, texts, preference) -> None:
    """Run the passes of a step: from the second microbatch on, all are over the gradients."""
    for counter in tape.flops.values():
        counter.clear()
    _of_microbatch(tape, step, model, run, texts, preference)
    step.flops_forward, step.flops_backward = (
        Counter({name: n * run.n_microbatch for name, n in tape.flops[phase].items()})
        for phase in ("forward", "backward")
    )
    if run.n_microbatch > 1:
        _of_microbatch(tape, step, model, run, texts, preference)


def _of_microbatch(tape: Tape, step: TrainingStep, model, run, texts, preference) -> None:
    tape.autocast = None if run.autocast == "none" else Autocast(run.autocast)
    if preference is None:
        loss, _outputs = loss_of_pass(model, run, *texts)
    else:
        loss = preference.loss(model, *texts)
    tape.autocast = None
    if run.n_microbatch > 1:
        loss = loss / 1.0
    if loss.node is None:
        raise NotComputedError("adapter or trained: the loss reaches nothing that is trained")
    step.saved = saved_by_component(loss.node, tape.parameters)
    backward((loss, empty((), loss.dtype)))
    while tape.leaves:
        free_leaf(tape.leaves.pop())


def free_leaf(leaf: Tensor) -> None:
    """Free a tensor that requires a gradient and is no parameter, after its backward pass."""
    leaf.grad = leaf.node = None  # each holds the other


def loss_of_pass(model, run, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the loss, and the logits if the caller keeps them."""
    if getattr(model, "logits_ahead", None):
        if is_sharded(run):
            raise NoProgramError(f"zero: {run.zero} with n_mtp_layer")
        return _of_all_tokens(model, run, tokens, targets), None
    if (run.loss_chunks > 1 or run.loss_kernel == "fused_linear") and not hasattr(model, "states"):
        raise NoProgramError("loss_chunks or loss_kernel: of a model without states")
    if run.loss_chunks > 1:
        return chunked_loss.program(model, run, tokens, targets), None
    if run.loss_kernel == "fused_linear":
        return fused_linear_loss.program(model, tokens, targets), None
    holds_states = run.targets == "shifted" and run.autocast != "none"
    if holds_states and hasattr(model, "states"):
        states = model.states(tokens)  # a class holds them as its last hidden states
        logits = model.head(states)
    elif run.target_length:  # the decoder reads the labels; else the source
        logits = model(tokens, targets)
    else:
        logits = model(tokens)
    return loss_of(logits, run, targets), logits if run.outputs == "kept" else None


def _of_all_tokens(model, run, tokens: Tensor, labels: Tensor) -> Tensor:
    """Add up the losses of all tokens that a model predicts, the next and those further ahead."""
    loss, *losses_ahead = (
        loss_of(logits, run, without_gradient(labels) if number else labels)
        for number, logits in enumerate(model.logits_ahead(tokens))
    )
    return reduce(add, losses_ahead, loss)


def loss_of(logits: Tensor, run, labels: Tensor) -> Tensor:
    if run.loss_kernel == "in_place":
        return cross_entropy_in_place(logits, labels, run.loss_dtype == "float32")
    if run.loss_dtype == "float32":
        logits = logits.to(at_least_float32(logits.dtype))
    loss = cross_entropy
    if is_divided(run):
        loss = partial(cross_entropy_of_share, is_mean=run.targets == "given")
    if run.targets == "given":
        return loss(logits.flatten(0, 1), labels.flatten(0, 1))
    batch, length = labels.shape
    padded = empty((batch, length + 1), "int64")
    shifted_once = padded.narrow(1, length, is_first=False)
    shifted = shifted_once if batch == 1 else empty((batch, length), "int64")
    total = loss(logits.flatten(0, 1), shifted.flatten(0, 1))
    return total / 1.0


PHASE = "forward"
MODEL = "model"


def pass_alone(
    program, a, run: RunConfig, leaves_graph: bool, preference: Preference | None
) -> TrainingStep:
    """Return the peak of a pass without the parameters, and what it leaves (`saved`).

    The tokens and their mask are in the first and not in the second. It ends with the
    log-probabilities of a `preference`; without one, with the states that a head would read.
    Raises NoProgramError for a part or a setting without a program.
    """
    check_devices(a, run)
    if is_sharded(run):
        raise NoProgramError(f"zero: {run.zero} in a pass alone")
    step = TrainingStep()
    with running_on(tape_of(run)) as tape:
        model = make_model(tape, program, a, run)
        tape.live = tape.live - sum(p.storage.n_bytes * p.storage.times for p in tape.parameters)
        before = tape.live
        tokens, mask = (empty((run.batch, run.length), "int64") for _ in range(2))
        inputs = tape.live - before
        tape.restart(PHASE)
        tape.autocast = None if run.autocast == "none" else Autocast(run.autocast)
        with nullcontext() if leaves_graph else tape.without_graph():
            if preference is not None:
                _left = preference.log_probabilities(model, tokens, mask)
            elif hasattr(model, "states"):
                _left = model.states(tokens)
            else:
                raise NoProgramError(f"{a.name()}: states without logits")
        finish(step, tape, PHASE)
        step.saved[MODEL] = tape.live - inputs
    return step
