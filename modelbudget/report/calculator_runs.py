"""The runs of the calculator: each combination of choices, with sizes as fields of the graph."""

import itertools
from collections.abc import Iterable, Mapping
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

from pydantic import ValidationError

from modelbudget.architecture.arithmetic import positive
from modelbudget.architecture.evaluators import graph
from modelbudget.architecture.run_config import HALF, RunConfig
from modelbudget.families.decoder import Decoder
from modelbudget.report.calculator_choices import ALONE, CHOICES, OF_RUN, OPTIONS, Settings
from modelbudget.sweeps.device_defaults import device_defaults


class Run(NamedTuple):
    """A run with its sizes as fields, and the condition under which its settings are known."""

    settings: SimpleNamespace
    holds: Any = 1


@cache  # all groups of models have the same runs
def run_of(chosen: tuple, of_class: tuple, divided: bool) -> Run | None:
    """Return a run of these choices; None if its settings contradict each other.

    With `divided`, of any number of devices that compute one model together, if that is known with
    the settings of the class.
    """
    choices, devices = dict(chosen), CHOICES.of_several
    shared = {devices[name] for name in ALONE if choices.get(name, ALONE[name]) != ALONE[name]}
    sizes = {"batch", "length", *shared, *(n for n in OF_RUN if devices.get(n) in shared)}
    brought = {}
    for name, settings in CHOICES.brought.items():
        brought |= settings.get(str(choices[name]), {})
    several = choices | brought | dict(of_class) | dict.fromkeys(sizes, 2)
    together = {"tensor_parallel": 2, "sequence_parallel": True}
    if divided and (run := _known(several | together)):
        return Run(_with_sizes(run, sizes.union(together)))
    if run := _known(several):
        return Run(_with_sizes(run, sizes), is_whole() if divided else 1)
    return None


def is_whole():
    """1 where each device has whole matrices, else 0."""
    return 1 - positive(graph.field("tensor_parallel") - 1)


def with_foreach(record, r: SimpleNamespace) -> SimpleNamespace:
    """Return a run whose AdamW updates all tensors at once where that is the default of a GPU."""

    def on(devices: int, in_sequence: bool) -> int:
        shared = {"tensor_parallel": devices, "sequence_parallel": in_sequence}
        default = device_defaults(Decoder)["foreach"]  # pyright: ignore[reportArgumentType]
        return int(default(vars(record) | vars(r) | shared))

    whole, divided = on(1, False), on(2, False)
    of_several = divided + r.sequence_parallel * (on(2, True) - divided)
    foreach = whole + positive(r.tensor_parallel - 1) * (of_several - whole)
    return SimpleNamespace(**vars(r) | {"foreach": foreach})


def alone() -> Settings:
    """Return the choices of a model that one device computes."""
    return {name: value for name, value in ALONE.items() if name in OPTIONS}


def _known(settings: Settings) -> RunConfig | None:
    try:
        return RunConfig.model_validate(settings)
    except ValidationError:
        return None


def _with_sizes(run: RunConfig, sizes: Iterable[str]) -> SimpleNamespace:
    return SimpleNamespace(**vars(run) | {name: graph.field(name) for name in sizes})


def runs(categories: Mapping[str, str], published: bool = False) -> list[Settings]:
    """Return the combinations of the choices of a run: for `published` models, all of the page's.

    Others have no stages. Beside math there is flash, or in float32 efficient; of MLA both.
    """
    has_mla = "mla" in categories["mixers"].split()
    dtypes, kernels, recompute, zeros, *of_stages = OPTIONS.values()
    _, *whole = alone().values()
    stages = [tuple(whole), *(itertools.product(*of_stages) if published else ())]
    return [
        dict(zip(OPTIONS, (dtype, kernel, again, zero, *stage), strict=True))
        for dtype, kernel, again, zero, stage in itertools.product(
            dtypes, kernels, recompute, zeros if published else CHOICES.zero_of_others, stages
        )
        if kernel in ("math", "flash" if dtype in HALF else "efficient", "efficient" * has_mla)
        if stage == stages[0] or zero in CHOICES.zero_of_stages
    ]
