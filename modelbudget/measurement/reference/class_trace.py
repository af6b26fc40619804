"""Memory and compute of `transformers` classes, traced like our own modules.

Importing this module does not import transformers, which takes seconds: what traces does.
"""

import math
import os
from collections.abc import Callable, Iterator, Sequence, Set
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple, cast

from torch import nn

from modelbudget.architecture.run_config import RunConfig
from modelbudget.common.progress import progress
from modelbudget.common.workers import Bound, Failure, read_ahead, spread
from modelbudget.measurement.build import build_class
from modelbudget.measurement.count import by_quantity
from modelbudget.measurement.measured import Values
from modelbudget.measurement.one_model import look
from modelbudget.measurement.process.device import use_one_core
from modelbudget.measurement.reference.class_run import LIMIT, ClassRun
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
    values |= by_quantity(counts, OF_PARAMETERS - missing.keys())
    wanted = {quantity: values[quantity] for quantity in values if quantity in quantities}
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


def begin_traces(
    runs: Sequence[ClassRun], n_workers: int, timeout_s: float, cpu_bytes: int
) -> Callable[[], Iterator[tuple[int, Traced | Failure]]]:
    """Begin to trace classes in other processes; return what yields each run's number and trace.

    These processes import transformers, while this one does something else. One traces all runs of
    a class, those with `backend: cpu` whose tensors fit `cpu_bytes` again on the CPU. If it crashes
    or takes longer than `timeout_s`, each of these runs is repeated alone.
    """
    import_compiler()  # before they are forked
    bound = Bound(cpu_bytes + OBJECTS_BYTES, "a class of transformers")
    work = partial(_trace_runs, cpu_bytes=cpu_bytes)

    def started(groups: Sequence[list[int]]) -> Iterator[tuple[int, Any]]:
        tasks = [[runs[i] for i in group] for group in groups]
        workers = max(1, min(n_workers, os.cpu_count() or 1, len(tasks)))
        return spread(work, tasks, workers, timeout_s, bound)

    groups = _by_class(runs)
    outcomes = read_ahead(started(groups))

    def finished() -> Iterator[tuple[int, Traced | Failure]]:
        alone: list[list[int]] = []
        for number, outcome in progress(outcomes, len(groups)):
            if isinstance(outcome, Failure):
                alone += [[i] for i in groups[number]]
            else:
                yield from zip(groups[number], outcome, strict=True)
        if alone:
            for number, outcome in progress(started(alone), len(alone)):
                (i,) = alone[number]
                yield i, outcome if isinstance(outcome, Failure) else outcome[0]

    return finished


def _by_class(runs: Sequence[ClassRun]) -> list[list[int]]:
    """Group the numbers of runs by class and config, in ascending length."""

    def place(i: int) -> str:
        return f"{runs[i].class_name} {runs[i].config}"

    ordered = sorted(range(len(runs)), key=lambda i: (place(i), runs[i].run.length))
    return [list(numbers) for _, numbers in groupby(ordered, place)]


def _trace_runs(runs: list[ClassRun], cpu_bytes: int) -> list[Traced]:
    """Trace a class in all its runs. If one has too many operations, so have longer sequences."""
    use_one_core()
    traces: list[Traced] = []
    too_many: dict[str, str] = {}
    for of_class in runs:
        quantities = of_class.quantities
        traced = _trace(of_class._replace(quantities=quantities - too_many.keys()), cpu_bytes)
        lost = {quantity: too_many[quantity] for quantity in quantities & too_many.keys()}
        traces.append(traced._replace(missing=traced.missing | lost))
        loops = TooManyOperationsError.__name__
        too_many |= {q: why for q, why in traced.missing.items() if why.startswith(loops)}
    return traces


def _trace(of_class: ClassRun, cpu_bytes: int) -> Traced:
    """Trace a class in a run on meta, or on a CPU if that is the backend and there is room."""
    quantities = of_class.quantities
    try:
        with uninitialised():
            traced = trace_class(*of_class, limit=LIMIT)
        needed = [peak for name, values in traced.values.items() if name.startswith("peak")
                  for peak in values.values()]  # fmt: skip
        if of_class.run.backend == "cpu" and needed and max(needed) <= cpu_bytes:
            on_cpu = of_class._replace(quantities=quantities - traced.missing.keys())
            cpu = trace_class(*on_cpu, "cpu")
            return cpu._replace(missing=traced.missing | cpu.missing)
    except ValueError as error:
        refused_all = dict.fromkeys(quantities, str(error))
        return Traced(of_class.class_name, None, None, "meta", {}, refused_all)
    return traced
