"""Where the timeline of a backward pass and its trace differ."""

from modelbudget.architecture.run_config import RunConfig
from modelbudget.components.decoder.decoder_training_peaks import timelines
from modelbudget.measurement.build import build
from modelbudget.measurement.step.loss_of_step import forward
from modelbudget.measurement.step.torch_optimizer import Optimizer
from modelbudget.measurement.step.train import operations, switch, texts
from modelbudget.measurement.trace.module_trace import Trace
from modelbudget.memory.timeline import Allocation, Timeline, freed_once, within
from modelbudget.memory.training_peak import Model
from modelbudget.modules.initialise import uninitialised


def why(a, run: RunConfig) -> str | None:
    """The first operation of backward whose live bytes the trace does not have, if there is one."""
    live, levels = backward_levels(a, run)
    return first_difference(live, backward_timeline(timelines(a, run), run), levels)


def backward_timeline(model: Model, r) -> Timeline:
    """Return the timeline of the backward pass, layer by layer."""
    found = list(model.head)
    for index in reversed(range(model.n_layer)):
        one = next(one for one in model.layers if one.group.at(index))
        found += within(f"layer {index}", one.backward_pass(r))
        if index == one.group.first:
            found.append(Allocation("freed once", 0, freed_once(one.backward)))
    return [*found, *model.embedding]


def first_difference(before: int, timeline: Timeline, measured: list[int]) -> str | None:
    """Name the first operation of a timeline that a measurement does not confirm, if there is one.

    `measured`: live bytes after each allocation and each free of a trace, in order. Live bytes
    during every operation that allocates and frees must occur there, in order. A trace may have
    more: what only allocates, or only frees, may be several operations.
    """
    live, at = before, 0
    for name, size, freed, *_ in timeline:
        level, live = live + size, live + size - freed
        if size and freed:
            if level not in measured[at:]:
                near = min(measured[at:], key=lambda other: abs(other - level), default=0)
                return f"{name}: {level:,} live bytes by the formula; nearest measured: {near:,}"
            at = measured.index(level, at)
    return None


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
