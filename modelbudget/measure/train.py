"""Traces of training steps."""

from collections import Counter
from collections.abc import Iterator, Set

import torch
from torch import nn
from torch.nn import functional as F

from modelbudget.architecture.run_config import RunConfig
from modelbudget.measure.backend import backend
from modelbudget.measure.count import component_of
from modelbudget.measure.foreign import logits_of
from modelbudget.measure.optimizer import Optimizer
from modelbudget.measure.trace import Trace
from modelbudget.memory import caching_allocator
from modelbudget.memory.caching_allocator import Layout
from modelbudget.modules.attention_core import ScaledDotProductAttention
from modelbudget.modules.layer import Layer
from modelbudget.sweep.sweep_file import OF_ALLOCATOR

Values = dict[str, dict[str, int]]
"""Quantity → component → value."""

OF_OPTIMIZER = {"optimizer_bytes", "peak_training_bytes"}
"""Quantities that, like those of an allocator, need a step of the optimizer; the others need only a
forward and a backward pass.
"""


def train(model: nn.Module, run: RunConfig, quantities: Set[str]) -> Values:
    """Trace two training steps, or one forward and backward pass if no quantity needs more.

    In the second step the optimizer states are resident. The values of tokens do not matter.

    Returns bytes and FLOPs by component, peaks by phase, `unsupported_ops` by name of the
    operations without a FLOP formula, and the peaks of a simulated CUDA allocator if needed.
    """
    switch(model, run)
    model.train()
    trace = Trace(model)
    with trace.watching("setup"):
        tokens, targets = texts(model, run)
        optimizer = Optimizer(model, run)
    values, peaks, ends = {}, {}, {}
    for name in ("first", "second"):
        found, peaks[f"{name}.forward_backward"] = one_pass(trace, model, run, tokens, targets)
        ends[f"{name}.forward_backward"] = len(trace.changes)
        values = values or found | {"peak_training_bytes": peaks}
        if not quantities & (OF_OPTIMIZER | OF_ALLOCATOR):
            return values
        peaks[f"{name}.optimizer"] = step(trace, optimizer)
        ends[f"{name}.optimizer"] = len(trace.changes)
    states = optimizer.states()
    values["optimizer_bytes"] = by_component(model, lambda p: states.get(p, []))
    if quantities & OF_ALLOCATOR:
        values |= of_layouts(caching_allocator.peaks(trace.changes, ends))
    return values


def of_layouts(peaks: dict[str, Layout]) -> Values:
    """Return peaks of the allocator by quantity and phase."""
    return {
        f"peak_{name}_bytes": {phase: getattr(peak, name) for phase, peak in peaks.items()}
        for name in Layout._fields
    }


def two_steps(model: nn.Module, run: RunConfig) -> Iterator[str]:
    """Run two training steps without a trace, for measurements of the machine.

    Yields the name of each phase after it has run.
    """
    switch(model, run)
    model.train()
    optimizer = Optimizer(model, run)
    tokens, targets = texts(model, run)
    for name in ("first", "second"):
        with backend(run.backend, run.attention_kernel):
            # The logits have no name, so that they are freed before the backward pass.
            F.cross_entropy(logits_of(model, tokens).flatten(0, 1), targets.flatten()).backward()
        yield f"{name}.forward_backward"
        optimizer.step()
        yield f"{name}.optimizer"


def texts(model: nn.Module, run: RunConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """Return input tokens and target tokens, each (batch, length)."""
    device = next(model.parameters()).device
    tokens = torch.zeros(run.batch, run.length, dtype=torch.long, device=device)
    return tokens, torch.zeros_like(tokens)


def switch(model: nn.Module, run: RunConfig) -> None:
    """Set dropout and activation checkpointing of the modules.

    The probability of dropout does not affect sizes.
    """
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.1 * run.dropout
        elif isinstance(module, Layer):
            module.recompute = run.recompute == "full"
        elif isinstance(module, ScaledDotProductAttention):
            module.recompute = run.recompute == "selective"


def one_pass(trace: Trace, model: nn.Module, run: RunConfig, tokens, targets) -> tuple[Values, int]:
    """Trace forward, loss and backward; return their bytes and FLOPs, and the peak in bytes."""
    with backend(run.backend, run.attention_kernel), trace.watching("forward"):
        logits = logits_of(model, tokens)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        del logits
    saved, peak = trace.saved(), trace.peak
    # Backward may recompute parts of forward.
    with backend(run.backend, run.attention_kernel), trace.watching("backward"):
        loss.backward()
    values = {
        "gradient_bytes": by_component(model, lambda p: [] if p.grad is None else [p.grad]),
        "activation_bytes": dict(saved),
        "flops_forward": dict(trace.flops["forward"]),
        "flops_backward": dict(trace.flops["backward"]),
        "unsupported_ops": dict(trace.uncounted),
    }
    return values, max(peak, trace.peak)


def step(trace: Trace, optimizer: Optimizer) -> int:
    """Return the peak bytes of a step of the optimizer, which frees the gradients at its end."""
    with trace.watching("optimizer"):
        optimizer.step()
    return trace.peak


def by_component(model: nn.Module, tensors) -> dict[str, int]:
    """Return bytes of the tensors of each parameter, by component; zeros are included."""
    found: Counter[str] = Counter()
    for path, parameter in model.named_parameters():
        n_bytes = sum(tensor.untyped_storage().nbytes() for tensor in tensors(parameter))
        found[component_of(path)] += n_bytes
    return dict(found)
