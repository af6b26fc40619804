"""Where the timeline of a backward pass and its trace differ."""

from modelbudget.architecture.run_config import RunConfig
from modelbudget.components.decoder.decoder_training_peaks import timelines
from modelbudget.measurement.build import build
from modelbudget.measurement.step.loss_of_step import forward
from modelbudget.measurement.step.torch_optimizer import Optimizer
from modelbudget.measurement.step.train import operations, switch, texts
from modelbudget.measurement.trace.module_trace import Trace
from modelbudget.memory.timeline import first_difference
from modelbudget.memory.training_peak import backward_timeline
from modelbudget.modules.initialise import uninitialised


def why(a, run: RunConfig) -> str | None:
    """The first operation of backward whose live bytes the trace does not have, if there is one."""
    live, levels = backward_levels(a, run)
    return first_difference(live, backward_timeline(timelines(a, run), run), levels)


def backward_levels(a, run: RunConfig) -> tuple[int, list[int]]:
    """Live bytes when backward begins, and after each of its allocations and frees."""
    with uninitialised():
        model = build(a, "meta", run.dtype)
    switch(model, run)
    model.train()
    trace = Trace(model)
    with trace.watching("setup"):
        tokens, targets = texts(model, run)
        optimizer = Optimizer(model, run)  # may have a buffer of gradients
    with operations(model, run), trace.watching("forward"):
        loss, _outputs = forward(model, run, tokens, targets)
    start, before = len(trace.changes), trace.live
    with operations(model, run, caches=False), trace.watching("backward"):
        loss.backward()
    del optimizer
    sizes, live, levels = dict(c for c in trace.changes[:start] if c[1] is not None), before, []
    for key, n_bytes in trace.changes[start:]:
        live += n_bytes if n_bytes is not None else -sizes[key]
        sizes |= {} if n_bytes is None else {key: n_bytes}
        levels.append(live)
    return before, levels
