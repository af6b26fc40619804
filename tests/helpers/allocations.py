"""Every allocation of a step in order: of a program, and of a trace of its torch module on meta.

In inference, of prefill and of one token.
"""

from unittest.mock import patch

from modelbudget.components.decoder import decoder_program as decoder
from modelbudget.measurement.build import build
from modelbudget.measurement.parallel.rank import ShardedStepTrace, of_rank
from modelbudget.measurement.step.module_settings import arrange
from modelbudget.measurement.step.train import train
from modelbudget.measurement.trace.inference import infer
from modelbudget.measurement.trace.step_trace import StepTrace
from modelbudget.modules.initialise import uninitialised
from modelbudget.quantities.inference_step import Inference, inference
from modelbudget.quantities.training_step import training_step
from modelbudget.sweeps.quantity_names import OF_INFERENCE


def traced(a, run, model=None, without=()) -> list[tuple[int, int]]:
    """Return bytes and live bytes of each allocation of a forward and backward pass.

    `without`: names of operations that are left out.
    """
    if model is None:
        with uninitialised():
            model = build(a, "meta", run.dtype)
    traces = []

    def make(model):
        traces.append(StepTrace(model))
        return traces[-1]

    with patch("modelbudget.measurement.step.train.Trace", make):  # after the modules are arranged
        train(model, run, {"gradient_bytes"})
    return _from_embedding(traces[0], without)


def traced_of_rank(a, run) -> list[tuple[int, int]]:
    """Return bytes and live bytes of each allocation of a pass of one of several devices."""
    traces = []

    def make(model):
        traces.append(ShardedStepTrace(model))
        return traces[-1]

    with patch("modelbudget.measurement.parallel.rank.ShardedTrace", make):
        of_rank(a, run, {"gradient_bytes"})
    return _from_embedding(traces[-1], place=1)


def _from_embedding(trace: StepTrace, without=(), place=0) -> list[tuple[int, int]]:
    """Return what is listed from the first operation, or (1) component, of the embedding on."""
    listed, live, sizes = [], 0, {}
    for number, (key, n_bytes) in enumerate(trace.changes):
        live += (n_bytes or 0) - sizes.pop(key, 0)
        if n_bytes:
            sizes[key] = n_bytes
            operation = trace.operation(trace.operation_at(number))
            if operation.name not in without:
                listed.append((operation, n_bytes, live))
    first = next(i for i, (of, *_) in enumerate(listed) if "embedding" in of[place])
    return [(n_bytes, live) for _, n_bytes, live in listed[first:]]


def traced_inference(a, run) -> tuple[dict, list[tuple[int, int]]]:
    """Return the quantities of inference, and bytes and live bytes of each allocation."""
    with uninitialised():
        model = build(a, "meta", run.dtype)
    arrange(model, run)  # before the trace counts what is resident
    trace = StepTrace(model)
    return infer(model, run, OF_INFERENCE, trace), _from_embedding(trace)


def programmed_inference(a, run) -> tuple[Inference, list[tuple[int, int]]]:
    """Return the same of a program."""
    step = inference(decoder.program, a, run, lists_allocations=True)
    listed = [x for phase in ("prefill", "decode") for x in step.allocations[phase] if x.n_bytes]
    return step, [(x.n_bytes, x.live) for x in listed]


def programmed(a, run, program=decoder.program) -> list[tuple[int, int]]:
    """Return the same of a program, from the first row of an embedding on."""
    step = training_step(program, a, run, lists_allocations=True, n_steps=0)
    listed = [x for x in step.allocations["first.forward_backward"] if x.n_bytes]
    of_rows = ("embedding", "rows_of_share")  # of the vocabulary, or of a part of it
    first = next(i for i, x in enumerate(listed) if x.operation in of_rows)
    return [(x.n_bytes, x.live) for x in listed[first:]]


def first_difference(programmed: list, traced: list) -> str:
    """Describe where two lists differ first; empty if they are equal."""
    for i, (mine, other) in enumerate(zip(programmed, traced, strict=False)):
        if mine != other:
            return f"allocation {i}: {mine} against {other}"
    if len(programmed) != len(traced):
        return f"{len(programmed)} allocations against {len(traced)}"
    return ""
