"""The tensor for which a device had no room, by the size that torch's message has."""

from collections.abc import Iterator
from functools import lru_cache
from itertools import chain, compress
from typing import Any, NamedTuple

from modelbudget.api.breakdown import FORMULA
from modelbudget.api.explained import Line, gib
from modelbudget.api.log_context import LogContext, Reading
from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_config import RunConfig
from modelbudget.common.errors import InputError
from modelbudget.memory.caching_allocator import segment
from modelbudget.operations.part import NoProgramError
from modelbudget.operations.tape import Allocation
from modelbudget.quantities.training_step import PHASES, training_step

TRIED, ALLOCATED, PEAK = "tried", "allocated", "peak_training_bytes"
MOST_LAYERS = 500
"""Of a model whose allocations are listed, which are some hundred a layer."""


class Request(NamedTuple):
    """A tensor of a training step: what allocates it, its bytes, and those live before."""

    name: str
    n_bytes: int
    live: int


def tried(reading: Reading) -> Line:
    """Name the operation that allocates a tensor of this size; the message has its segment."""
    requests = _requests(reading)
    if requests is None:
        return reading.of_itself(TRIED, "", "asked")
    if not requests:
        largest = gib(max(request.n_bytes for request in _of_context(reading.context)))
        text = f"no tensor of the step, of {_whose(reading.context)}; the largest: {largest}"
        return reading.of_itself(TRIED, text, "unexplained")
    nearest = _nearest(reading, requests)
    others = {request.name for request in requests} - {nearest.name}
    text = f"{nearest.name}: {gib(nearest.n_bytes)}, of {_whose(reading.context)}"
    return reading.of_itself(TRIED, f"{text}; as large: {len(others)} others" if others else text,
                             "exact")  # fmt: skip


def _whose(context: LogContext) -> str:
    """Return whose implementation the step is of."""
    assert context.model is not None
    return context.model.predictions([PEAK], _settings(context)).whose


def _settings(context: LogContext) -> dict[str, Any]:
    return {name: of for name, of in context.chosen.items() if name in RunConfig.model_fields}


def allocated(reading: Reading) -> Line:
    """Compare what torch had allocated with what is live before the tensor that was tried."""
    number = reading.context.of(TRIED)
    requests = _requests(reading._replace(number=number)) if number else None
    if not requests:
        return reading.read()
    nearest = _nearest(reading, requests)
    return reading.judged(ALLOCATED, (f"live before {nearest.name}", nearest.live))


def _nearest(reading: Reading, requests: list[Request]) -> Request:
    """Return the request before which as many bytes are live as are allocated, else the first."""
    if (number := reading.context.of(ALLOCATED)) is None:
        return requests[0]
    return min(requests, key=lambda request: abs(request.live - number.n_bytes))


def _requests(reading: Reading) -> list[Request] | None:
    """Return the tensors of a step for which torch would say this size; None if it is not known."""
    context, number = reading.context, reading.number
    settings = "`batch=…` and `length=…`: of the step, and `implementation=transformers` of a class"
    if context.model is None:
        context.ask(f"`model=NAME`, {settings}")
    elif not {"batch", "length"} <= context.chosen.keys():
        context.ask(settings)
    else:
        try:
            requests = _of_context(context)
            sizes = (abs(segment(request.n_bytes) - number.n_bytes) for request in requests)
            is_as_large = (size <= number.rounding for size in sizes)
            return [*compress(requests, is_as_large)]
        except (NoProgramError, InputError) as error:
            context.ask(f"a run with a formula: {error}")
    return None


def _of_context(context: LogContext) -> tuple[Request, ...]:
    """Return the tensors of the step that a user describes. Raises NoProgramError, InputError."""
    assert context.model is not None
    predictions = context.model.predictions([PEAK], _settings(context))
    if predictions[PEAK].source != FORMULA:
        raise NoProgramError(f"{predictions.whose} is traced")
    return _of_step(*context.model.with_run(predictions.run))


@lru_cache(maxsize=4)
def _of_step(a: Architecture, run: RunConfig) -> tuple[Request, ...]:
    if getattr(a, "n_layer", 0) > MOST_LAYERS:
        raise NoProgramError(f"more than {MOST_LAYERS} layers")
    step = training_step(type(a).program(), a, run, lists_allocations=True)
    requests = [*chain.from_iterable(map(_of_phase, step.allocations.values()))]
    if PHASES[2] not in step.allocations:  # the first pass again, over the optimizer's states
        states = sum(step.optimizer_bytes.values())
        requests += _of_phase(step.allocations[PHASES[0]], states)
    return tuple(requests)


def _of_phase(allocations: list[Allocation], more: int = 0) -> Iterator[Request]:
    for x in allocations:
        is_update = x.phase == "optimizer"
        name = "the optimizer's step" if is_update else f"{x.component} {x.operation}, {x.phase}"
        yield Request(name, x.n_bytes, x.live - x.n_bytes + more)
