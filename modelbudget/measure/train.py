"""Steps of training, watched."""

from collections import Counter

import torch
from torch import nn
from torch.nn import functional as F

from modelbudget.measure.count import component_of
from modelbudget.measure.kernels import kernels
from modelbudget.measure.optimizer import Optimizer
from modelbudget.measure.trace import Trace
from modelbudget.modules.core import Core
from modelbudget.modules.layer import Layer
from modelbudget.run import Run

Values = dict[str, dict[str, int]]
"""Quantity → component → value."""

OF_OPTIMIZER = {"optimizer_bytes", "peak_training_bytes"}
"""Quantities that an optimizer must step for; the others need one forward and backward pass."""


def train(model: nn.Module, run: Run, quantities: set[str]) -> Values:
    """Train for two steps, the second of which finds the optimizer's states in memory; or for one
    pass, where no quantity asks for more.

    Which tokens does not matter: sizes are looked at and not values. Bytes and operations by
    component, peaks by phase, `uncounted_calls` by the name of an operation that has no FLOP
    formula.
    """
    switch(model, run)
    model.train()
    trace = Trace(model)
    device = next(model.parameters()).device
    with trace.watching("setup"):
        tokens = torch.zeros(run.batch, run.length, dtype=torch.long, device=device)
        targets = torch.zeros_like(tokens)
        optimizer = Optimizer(model, run)
    values, peak = one_pass(trace, model, run, tokens, targets)
    values["peak_training_bytes"] = peaks = {"first.forward_backward": peak}
    if not quantities & OF_OPTIMIZER:
        return values
    peaks["first.optimizer"] = step(trace, optimizer)
    _, peaks["second.forward_backward"] = one_pass(trace, model, run, tokens, targets)
    peaks["second.optimizer"] = step(trace, optimizer)
    states = optimizer.states()
    values["optimizer_bytes"] = by_component(model, lambda p: states.get(p, []))
    return values


def two_steps(model: nn.Module, run: Run) -> None:
    """The same, unwatched, for those who look at the machine instead."""
    switch(model, run)
    model.train()
    optimizer = Optimizer(model, run)
    device = next(model.parameters()).device
    tokens = torch.zeros(run.batch, run.length, dtype=torch.long, device=device)
    targets = torch.zeros_like(tokens)
    for _ in range(2):
        with kernels(run.kernels, run.attention):
            loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
            loss.backward()
        optimizer.step()


def switch(model: nn.Module, run: Run) -> None:
    """Set the dropout and the recomputation that the modules have built in, at any rate: sizes do
    not depend on it.
    """
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.1 * run.dropout
        elif isinstance(module, Layer):
            module.recompute = run.recompute == "full"
        elif isinstance(module, Core):
            module.recompute = run.recompute == "selective"


def one_pass(trace: Trace, model: nn.Module, run: Run, tokens, targets) -> tuple[Values, int]:
    """Forward, loss and backward: what they held and computed, and their peak."""
    with kernels(run.kernels, run.attention), trace.watching("forward"):
        logits = model(tokens)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        del logits
    saved, peak = trace.saved(), trace.peak
    # Backward may run parts of forward once more.
    with kernels(run.kernels, run.attention), trace.watching("backward"):
        loss.backward()
    values = {
        "gradient_bytes": by_component(model, lambda p: [] if p.grad is None else [p.grad]),
        "saved_bytes": dict(saved),
        "flops_forward": dict(trace.flops["forward"]),
        "flops_backward": dict(trace.flops["backward"]),
        "uncounted_calls": dict(trace.uncounted),
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
