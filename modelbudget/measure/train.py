"""Steps of training, watched."""

from collections import Counter
from collections.abc import Iterator

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
"""Quantities that an optimizer must step for, as those of an allocator are; the others need one
forward and backward pass."""


def train(model: nn.Module, run: RunConfig, quantities: set[str]) -> Values:
    """Train for two steps, the second of which finds the optimizer's states in memory; or for one
    pass, where no quantity asks for more.

    Which tokens does not matter: sizes are looked at and not values. Bytes and operations by
    component, peaks by phase, `unsupported_ops` by the name of an operation that has no FLOP
    formula. Where a quantity asks for it, what a CUDA device's allocator would make of the tensors.
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
    """Peaks by phase as quantities."""
    return {
        f"peak_{name}_bytes": {phase: getattr(peak, name) for phase, peak in peaks.items()}
        for name in Layout._fields
    }


def two_steps(model: nn.Module, run: RunConfig) -> Iterator[str]:
    """The same, unwatched, for those who look at the machine instead: the name of each phase, as
    soon as it has run.
    """
    switch(model, run)
    model.train()
    optimizer = Optimizer(model, run)
    tokens, targets = texts(model, run)
    for name in ("first", "second"):
        with backend(run.backend, run.attention_kernel):
            # No name for the logits: they are freed before the backward pass.
            F.cross_entropy(logits_of(model, tokens).flatten(0, 1), targets.flatten()).backward()
        yield f"{name}.forward_backward"
        optimizer.step()
        yield f"{name}.optimizer"


def texts(model: nn.Module, run: RunConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """What is read, and what should come next."""
    device = next(model.parameters()).device
    tokens = torch.zeros(run.batch, run.length, dtype=torch.long, device=device)
    return tokens, torch.zeros_like(tokens)


def switch(model: nn.Module, run: RunConfig) -> None:
    """Set the dropout and the recomputation that the modules have built in, at any rate: sizes do
    not depend on it.
    """
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.1 * run.dropout
        elif isinstance(module, Layer):
            module.recompute = run.recompute == "full"
        elif isinstance(module, ScaledDotProductAttention):
            module.recompute = run.recompute == "selective"


def one_pass(trace: Trace, model: nn.Module, run: RunConfig, tokens, targets) -> tuple[Values, int]:
    """Forward, loss and backward: what they held and computed, and their peak."""
    with backend(run.backend, run.attention_kernel), trace.watching("forward"):
        logits = logits_of(model, tokens)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        del logits
    saved, peak = trace.saved(), trace.peak
    # Backward may run parts of forward once more.
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
    """The peak of a step of the optimizer, after which the gradients are gone."""
    with trace.watching("optimizer"):
        optimizer.step()
    return trace.peak


def by_component(model: nn.Module, tensors) -> dict[str, int]:
    """Bytes of the tensors that belong to each parameter; zero is said, too."""
    found: Counter[str] = Counter()
    for path, parameter in model.named_parameters():
        n_bytes = sum(tensor.untyped_storage().nbytes() for tensor in tensors(parameter))
        found[component_of(path)] += n_bytes
    return dict(found)
