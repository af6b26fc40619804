"""Training steps, with the loss as their run computes it, and traces of them."""

from collections.abc import Callable, Iterator, Set
from itertools import chain
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional as F

from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import target_tokens
from modelbudget.architecture.terms import component_of
from modelbudget.measurement.build import input_of
from modelbudget.measurement.measured import Values
from modelbudget.measurement.step import transformers_step
from modelbudget.measurement.step.module_settings import arrange
from modelbudget.measurement.step.operations_of_step import (
    is_transformers_class,
    logits_of,
    loss_and_outputs,
    operations,
    operations_of_device,
    takes_targets,
)
from modelbudget.measurement.step.torch_optimizer import (
    MODEL,
    Optimizer,
    PartOptimizer,
    gradients,
    import_library,
    make_optimizer,
    why_not_measured,
)
from modelbudget.measurement.trace.bytes_at_peak import GRADIENTS, STATES, at_peak
from modelbudget.measurement.trace.module_trace import Trace
from modelbudget.modules import chunked_loss, fused_linear_loss, in_place_loss, megatron_linear
from modelbudget.modules.decoder import DecoderModel
from modelbudget.modules.encoder import EncoderLayer
from modelbudget.modules.encoder_decoder import StackLayer
from modelbudget.modules.layer import Layer
from modelbudget.modules.scaled_dot_product import ScaledDotProductAttention
from modelbudget.sweeps.quantity_names import OF_ALLOCATOR

NO_TARGET = -100
"""The label that torch's cross-entropy ignores."""


def forward(
    model: nn.Module,
    run: RunConfig,
    tokens: torch.Tensor,
    labels: torch.Tensor,
    mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, Any]:
    """Return the loss, and what the run keeps of the outputs through the backward pass.

    Classes of `transformers` compute their loss from the labels themselves, and so does a user's
    own module whose `forward` takes them.
    """
    if is_transformers_class(model):
        return transformers_step.loss_of(model, tokens, labels, mask), None
    if takes_targets(model):
        loss, outputs = loss_and_outputs(model, tokens, labels)
        return loss, outputs if run.outputs == "kept" else None
    if getattr(model, "head", True) is None:
        raise ValueError("lm_head = false: a model without logits has no loss")
    if isinstance(model, DecoderModel) and model.mtp:
        return _of_all_tokens(model, run, tokens, labels), None
    if run.loss_chunks > 1:
        return chunked_loss.loss_of(cast(DecoderModel, model), run, tokens, labels), None
    if run.loss_kernel == "fused_linear":
        return fused_linear_loss.loss_of(model, tokens, labels), None
    # A model that shifts the labels computes its loss itself, and holds the states until then. The
    # head saves them, too, unless it reads a cast of them.
    casts = run.autocast != "none"
    if run.targets == "shifted" and casts and isinstance(model, DecoderModel):
        states = model.states(tokens)
        logits = model.head(states)
    elif run.target_length:  # the decoder reads the labels; else the source
        logits = model(tokens, labels)
    else:
        logits = logits_of(model(tokens))
    return loss_of(logits, labels, run), logits if run.outputs == "kept" else None


def _of_all_tokens(
    model: DecoderModel, run: RunConfig, tokens: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    """Add up the losses of all tokens that a model predicts, the next and those further ahead.

    DeepSeek-AI 2024 (DeepSeek-V3), eq. 25, with a weight of 1.
    """
    logits = model.logits_ahead(tokens)
    loss, *losses_ahead = (
        loss_of(of_token, labels.roll(-n, 1) if n else labels, run)
        for n, of_token in enumerate(logits)
    )
    return sum(losses_ahead, start=loss)


def loss_of(logits: torch.Tensor, labels: torch.Tensor, run: RunConfig) -> torch.Tensor:
    """Compute the mean cross-entropy of logits (batch, length, n_vocab) and labels (batch, length).

    Labels are the targets, or the input tokens, of which a shifted copy is the targets.
    """
    if run.loss_kernel == "in_place":
        return in_place_loss.loss_of(logits, labels, run.loss_dtype == "float32")
    if run.loss_dtype == "float32":
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if run.targets == "given":
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    padded = F.pad(labels, (0, 1), value=NO_TARGET)
    shifted = padded[:, 1:].contiguous()
    summed = F.cross_entropy(logits.flatten(0, 1), shifted.flatten(), reduction="sum")
    return summed / labels.numel()


Pass = Callable[[], tuple[Values, int]]
"""Runs forward and backward; returns their bytes and FLOPs, and the peak in bytes."""
MakePass = Callable[[Trace, nn.Module, RunConfig], Pass]

OF_PASSES = ("flops_forward", "flops_backward")
OF_FORWARD = frozenset({"activation_bytes", "flops_forward"})
"""Quantities that need a forward pass and the loss."""
OF_PEAKS = {"peak_training_bytes", "bytes_at_peak"}
"""Quantities that, like those of an allocator, need a step with the states of an earlier one."""
OF_OPTIMIZER = {"optimizer_bytes", *OF_PEAKS}
"""Quantities that, like those of an allocator, need a step of the optimizer; the others need only a
forward and a backward pass.
"""


def train(
    model: nn.Module,
    run: RunConfig,
    quantities: Set[str],
    trace: Trace | None = None,
    make_pass: MakePass | None = None,
) -> Values:
    """Trace two training steps, or as little of one as the quantities need.

    In the second step the optimizer states are resident; the first has made all of them. The values
    of tokens do not matter. A `trace` that is passed in has the allocations of all phases
    afterwards. `make_pass` makes the texts and returns the function that runs and traces forward
    and backward.

    Returns bytes and FLOPs by component, peaks by phase, and `unsupported_ops` by name of the
    operations without a FLOP formula.
    """
    switch(model, run)
    model.train()
    steps = bool(quantities & (OF_OPTIMIZER | OF_ALLOCATOR))
    if steps:
        import_library(run)
    elif why_not_measured(run):
        run = run.model_copy(update={"optimizer": "sgd"})  # its gradients are those of any
    trace = trace or Trace(model)
    trace.of_backend(run.backend)
    if make_pass is None and quantities <= OF_FORWARD:
        return _forward_alone(trace, model, run)
    with trace.watching("setup"):
        run_pass = (make_pass or whole_model)(trace, model, run)
        optimizer = make_optimizer(model, run)
    values, peaks = {}, {}
    for name in ("first", "second") if quantities & (OF_PEAKS | OF_ALLOCATOR) else ("first",):
        results, peaks[f"{name}.forward_backward"] = run_pass()
        trace.mark(GRADIENTS, (gradient for p in model.parameters() for gradient in gradients(p)))
        trace.ends[f"{name}.forward_backward"] = len(trace.changes)
        values = values or results | {"peak_training_bytes": peaks}
        if not steps:
            return values
        peaks[f"{name}.optimizer"] = step(trace, optimizer)
        trace.mark(STATES, chain.from_iterable(optimizer.states().values()))
        trace.ends[f"{name}.optimizer"] = len(trace.changes)
    values["optimizer_bytes"] = _states(model, optimizer, trace)
    if "bytes_at_peak" in quantities:
        values["bytes_at_peak"] = at_peak(trace.changes, trace.marks)
    if quantities & OF_ALLOCATOR:
        values["peak_requested_bytes"] = peaks
    return values


def _forward_alone(trace: Trace, model: nn.Module, run: RunConfig) -> Values:
    saved = []
    with operations(model, run), trace.watching("forward"):
        for of_microbatch in microbatches(model, run):
            loss, outputs = _part_of_loss(model, run, *of_microbatch)
            saved.append(dict(trace.saved()))
            del loss, outputs
    return {
        "activation_bytes": saved[0],
        "flops_forward": dict(trace.flops["forward"]),
        # What a device needs for this pass.
        "peak_training_bytes": {"first.forward": trace.peak},
    }


def _states(model: nn.Module, optimizer: Optimizer | PartOptimizer, trace: Trace) -> dict[str, int]:
    """Return bytes of the optimizer states by component; those of a part belong to the model."""
    states = optimizer.states()
    if isinstance(optimizer, PartOptimizer):
        return {MODEL: sum(trace.held(states[optimizer.numbers]))}
    return by_component(model, trace, lambda p: states.get(p, []))


def two_steps(model: nn.Module, run: RunConfig) -> Iterator[str]:
    """Run two training steps without a trace, for measurements of the machine.

    Yields the name of each phase after it has run.
    """
    switch(model, run)
    model.train()
    optimizer = make_optimizer(model, run)
    of_step = microbatches(model, run)
    for name in ("first", "second"):
        for of_microbatch in of_step:
            _forward_backward(model, run, *of_microbatch)
        yield f"{name}.forward_backward"
        optimizer.step()
        yield f"{name}.optimizer"


def _forward_backward(model: nn.Module, run: RunConfig, *texts: torch.Tensor) -> None:
    """Loss and outputs are freed at the end, as after a pass that is traced."""
    with operations_of_device(model, run):
        loss, _outputs = _part_of_loss(model, run, *texts)
    with operations_of_device(model, run, is_forward=False):
        loss.backward()


def _part_of_loss(
    model: nn.Module, run: RunConfig, *texts: torch.Tensor
) -> tuple[torch.Tensor, Any]:
    """Return the part that a microbatch has of the mean loss of its batch, and its outputs."""
    loss, outputs = forward(model, run, *texts)
    if not loss.requires_grad:
        raise ValueError("adapter or trained: the loss reaches nothing that is trained")
    return loss / run.n_microbatch if run.n_microbatch > 1 else loss, outputs


def texts(model: nn.Module, run: RunConfig) -> tuple[torch.Tensor, ...]:
    """Return input tokens (batch, length) and target tokens (batch, target length), or labels.

    With padding also the mask of a class, which is 0 where a token is hidden (batch, length).
    """
    tokens = input_of(model, run.batch, run.length)
    targets = transformers_step.labels_of(model, tokens, target_tokens(run))
    return tokens, targets, *((torch.ones_like(tokens),) if run.padding else ())


def microbatches(model: nn.Module, run: RunConfig) -> list[tuple[torch.Tensor, ...]]:
    one_microbatch = run.model_copy(update={"batch": run.batch // run.n_microbatch})
    return [texts(model, one_microbatch) for _ in range(run.n_microbatch)]


def switch(model: nn.Module, run: RunConfig) -> None:
    """Set dropout, activation checkpointing and `arrange` of the modules.

    The probability of dropout does not affect sizes. Classes of `transformers` have theirs in the
    config.
    """
    if is_transformers_class(model):
        transformers_step.checkpoint(model, run)
        return
    arrange(model, run)
    megatron_linear.arrange(model, run)
    rate = 0.1 * run.dropout
    for module in model.modules():
        if isinstance(module, Layer):
            module.recompute = run.recompute in ("full", "selective_op")
            module.keeps_results = run.recompute == "selective_op"
            module.dropout.p = rate * (run.dropout_in != "attention")
        elif isinstance(module, EncoderLayer | StackLayer):
            module.recompute = run.recompute == "full"
        elif isinstance(module, ScaledDotProductAttention):
            module.recompute = run.recompute == "selective"
            module.dropout.p = rate
        elif isinstance(module, DecoderModel):
            module.dropout.p = rate * (run.dropout_in == "model")


def whole_model(trace: Trace, model: nn.Module, run: RunConfig) -> Pass:
    """Return the forward and backward passes of all microbatches, whose gradients are added up.

    Bytes are those of the first pass.
    """
    of_step = microbatches(model, run)

    def all_passes() -> tuple[Values, int]:
        passes = [one_pass(trace, model, run, *of_microbatch) for of_microbatch in of_step]
        flops = {name: dict(trace.flops[name.removeprefix("flops_")]) for name in OF_PASSES}
        return passes[0][0] | flops, max(peak for _, peak in passes)

    return all_passes


def one_pass(
    trace: Trace,
    model: nn.Module,
    run: RunConfig,
    *texts: torch.Tensor,
    wrapped: nn.Module | None = None,
) -> tuple[Values, int]:
    """Trace forward, loss and backward; return their bytes and FLOPs, and the peak in bytes.

    `wrapped`: the module that is called, if it is not the model itself.
    """
    with operations(model, run), trace.watching("forward"):
        loss, _outputs = _part_of_loss(wrapped or model, run, *texts)
    saved, peak = dict(trace.saved()), trace.peak
    # Backward may recompute parts of forward.
    with operations(model, run, caches=False), trace.watching("backward"):
        loss.backward()
    return of_pass(trace, model, saved), max(peak, trace.peak)


def of_pass(trace: Trace, model: nn.Module, saved: dict[str, int]) -> Values:
    """Return bytes and FLOPs of a pass that has been traced; `saved`: bytes by component."""
    return {
        "gradient_bytes": by_component(model, trace, gradients),
        "activation_bytes": saved,
        "flops_forward": dict(trace.flops["forward"]),
        "flops_backward": dict(trace.flops["backward"]),
        "unsupported_ops": dict(trace.uncounted),
    }


def step(trace: Trace, optimizer: Optimizer | PartOptimizer) -> int:
    """Return the peak bytes of a step of the optimizer, which frees the gradients at its end."""
    with trace.watching("optimizer"):
        optimizer.step()
    return trace.peak


def by_component(model: nn.Module, trace: Trace, tensors) -> dict[str, int]:
    """Return bytes of the tensors of each parameter, by component; zeros are included."""
    parameters = [(component_of(path), p) for path, p in model.named_parameters()]
    n_bytes_of = dict.fromkeys((component for component, _ in parameters), 0)
    pairs = [(component, tensor) for component, p in parameters for tensor in tensors(p)]
    sizes = trace.held([tensor for _, tensor in pairs])
    for (component, _), n_bytes in zip(pairs, sizes, strict=True):
        n_bytes_of[component] += n_bytes
    return n_bytes_of
