"""Memory and compute of `transformers` classes, traced like our own modules.

Importing this module does not import transformers, which takes seconds: what traces does.
"""

import math
import os
from collections.abc import Callable, Iterator, Sequence, Set
from functools import partial
from typing import Any, NamedTuple, cast

from torch import nn

from modelbudget.architecture.run_config import RunConfig
from modelbudget.common.progress import progress
from modelbudget.common.workers import Bound, Failure, spread
from modelbudget.measurement.build import build_class
from modelbudget.measurement.measured import Values
from modelbudget.measurement.one_model import look
from modelbudget.measurement.process.device import use_one_core
from modelbudget.measurement.reference.class_run import LIMIT
from modelbudget.measurement.step.transformers_step import REPLACED
from modelbudget.measurement.trace.module_trace import TooManyOperationsError, import_compiler
from modelbudget.modules.initialise import uninitialised
from modelbudget.sweeps.not_with_quantised_weights import refused
from modelbudget.sweeps.quantity_names import OF_PARAMETERS


class Traced(NamedTuple):
    """Quantities of a class in a run.

    `values` are by quantity, and by component of the class or by phase; `missing` has the reason
    for each quantity that was not measured. `attention` is the implementation that the class has
    used, `replaced` names what was replaced in torch and in the package, and `method` is the
    device.
    """

    class_name: str
    attention: str | None
    replaced: str | None
    method: str
    values: Values
    missing: dict[str, str]


def trace_class(
    class_name: str,
    config: dict[str, Any],
    run: RunConfig,
    quantities: Set[str],
    device: str = "meta",
    limit: float = math.inf,
) -> Traced:
    """Trace training and inference of a class in a run, with the config's keys.

    `quantities` are of `OF_PARAMETERS`, `OF_TRAINING` and `OF_INFERENCE`. What runs more than
    `limit` operations in one phase is missing, and what quantised weights leave undefined: the
    class has none. Raises ValueError if the class rejects its config or cannot have the run's
    dropout.
    """
    from modelbudget.huggingface.construct import config_object

    model = build_class(class_name, config_object(class_name, config), run, device)
    missing = refused(None, run, quantities)
    counts, values, _ = look(model, run, quantities - missing.keys(), missing, limit)
    for quantity in OF_PARAMETERS - missing.keys():
        values[quantity] = {
            name: getattr(of_component, quantity) for name, of_component in counts.items()
        }
    wanted = {
        quantity: of_component
        for quantity, of_component in values.items()
        if quantity in quantities
    }
    return Traced(class_name, attention_of(model), replaced(run), device, wanted, missing)


def attention_of(model: nn.Module) -> str:
    """Return the attention implementation of a class: `sdpa`, or `eager` if it has no other."""
    config = cast(Any, model).config
    return config.get_text_config(decoder=True)._attn_implementation


def replaced(run: RunConfig) -> str:
    """Name the functions that are replaced for a run."""
    functions = [f"scaled_dot_product_attention ({run.attention_kernel}, {run.backend})"]
    if run.backend == "gpu":
        functions += ["rms_norm (gpu)", "dropout (gpu)"]
    if run.autocast != "none":
        functions += [f"autocast ({run.autocast})"]
    return "; ".join([*functions, *REPLACED])


OBJECTS_BYTES = 2**32
"""Bytes that a process may take in addition to the tensors of a CPU."""


class Wanted(NamedTuple):
    """One class in several runs, shortest sequence first, with the quantities of each."""

    class_name: str
    config: dict[str, Any]
    runs: list[tuple[RunConfig, frozenset[str]]]


def trace_all(
    wanted: Sequence[Wanted], n_workers: int, timeout_s: float, cpu_bytes: int
) -> list[list[Traced | Failure]]:
    """Trace each class in each of its runs; results are in the order of the runs.

    Runs with `backend: cpu` whose tensors fit `cpu_bytes` are repeated on the CPU. If a process
    crashes or takes longer than `timeout_s`, each run of its class is repeated alone.
    """
    return begin_traces(wanted, n_workers, timeout_s, cpu_bytes)()


def begin_traces(
    wanted: Sequence[Wanted], n_workers: int, timeout_s: float, cpu_bytes: int
) -> Callable[[], list[list[Traced | Failure]]]:
    """Begin to trace as `trace_all` does, in other processes; return what waits for the results.

    These processes import transformers, while this one does something else.
    """
    import_compiler()  # before they are forked
    bound = Bound(cpu_bytes + OBJECTS_BYTES, "a class of transformers")
    work = partial(_trace_runs, cpu_bytes=cpu_bytes)

    def started(tasks: Sequence[Wanted]) -> Iterator[tuple[int, Any]]:
        workers = max(1, min(n_workers, os.cpu_count() or 1, len(tasks)))
        return spread(work, tasks, workers, timeout_s, bound)

    outcomes = started(wanted)

    def finished() -> list[list[Traced | Failure]]:
        traces = dict(progress(outcomes, len(wanted)))
        failed = [i for i, outcome in traces.items() if isinstance(outcome, Failure)]
        alone = [wanted[i]._replace(runs=[run]) for i in failed for run in wanted[i].runs]
        repeated = dict(progress(started(alone), len(alone))) if alone else {}
        results = iter(repeated[i] for i in range(len(alone)))
        for i in failed:
            each = [next(results) for _ in wanted[i].runs]
            traces[i] = [class_ if isinstance(class_, Failure) else class_[0] for class_ in each]
        return [traces[i] for i in range(len(wanted))]

    return finished


def _trace_runs(wanted: Wanted, cpu_bytes: int) -> list[Traced]:
    """Trace a class in all its runs. If one has too many operations, so have longer sequences."""
    use_one_core()
    traces: list[Traced] = []
    too_many: dict[str, str] = {}
    for run, quantities in wanted.runs:
        traced = _trace(wanted, run, quantities - too_many.keys(), cpu_bytes)
        lost = {quantity: too_many[quantity] for quantity in quantities & too_many.keys()}
        traces.append(traced._replace(missing=traced.missing | lost))
        loops = TooManyOperationsError.__name__
        too_many |= {q: why for q, why in traced.missing.items() if why.startswith(loops)}
    return traces


def _trace(wanted: Wanted, run: RunConfig, quantities: frozenset[str], cpu_bytes: int) -> Traced:
    """Trace a class in a run on meta, or on a CPU if that is the backend and there is room."""
    class_name, config = wanted.class_name, wanted.config
    try:
        with uninitialised():
            traced = trace_class(class_name, config, run, quantities, limit=LIMIT)
        needed = [peak for name, values in traced.values.items() if name.startswith("peak")
                  for peak in values.values()]  # fmt: skip
        if run.backend == "cpu" and needed and max(needed) <= cpu_bytes:
            cpu = trace_class(class_name, config, run, quantities - traced.missing.keys(), "cpu")
            return cpu._replace(missing=traced.missing | cpu.missing)
    except ValueError as error:
        return Traced(class_name, None, None, "meta", {}, dict.fromkeys(quantities, str(error)))
    return traced
