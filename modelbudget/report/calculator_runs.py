"""The runs of the calculator: each combination of choices, with sizes as fields of the graph."""

import itertools
from collections.abc import Iterable, Mapping
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

from pydantic import ValidationError

from modelbudget.architecture.arithmetic import positive
from modelbudget.architecture.constraint import Constraint
from modelbudget.architecture.evaluators import graph
from modelbudget.architecture.run_config import HALF, RunConfig
from modelbudget.architecture.run_constraints import run_constraints
from modelbudget.architecture.run_values import MASKS
from modelbudget.common.files import load_yaml
from modelbudget.common.paths import CONFIGS
from modelbudget.families.decoder import Decoder
from modelbudget.report.page_functions import SWITCHES, mistakes
from modelbudget.sweeps.device_defaults import device_defaults

Settings = dict[str, Any]
CHOICES = SimpleNamespace(**load_yaml(CONFIGS / "calculator.yaml"))
"""The keys of the file, which explains each."""
OF_RUN: list[str] = CHOICES.sizes_of_run
OPTIONS: dict[str, list] = {name: of["choices"] for name, of in CHOICES.choices_of_run.items()}
"""Choices of categorical run settings, the first at first.

With the sizes these are the run settings that a reader can change; all others have their defaults,
but for those that a choice brings.
"""
STATES = "states"
PARTS = [name for name in CHOICES.quantities if name != STATES]
"""Quantities with components, computed one by one."""
OF_CLASSES, OF_PROGRAMS = "peak_training_bytes", "peak_inference_bytes"
"""The quantity that the page has of classes of `transformers` as well, and the one of programs."""
ALONE: Settings = {name: RunConfig.model_fields[name].default for name in CHOICES.of_several}
"""Settings of a model that one device computes."""
ALONE_CHOICES: Settings = {name: value for name, value in ALONE.items() if name in OPTIONS}
"""Those that are choices."""


def plain(value):
    """Return a value as scripts have it: a switch as 1 or 0."""
    return int(value) if isinstance(value, bool) else value


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
    default, values = device_defaults(Decoder)["foreach"], vars(record) | vars(r)
    switches = sorted({*SWITCHES} & default.names)
    are_fields = [name for name in switches if isinstance(values[name], graph.Expression)]

    def on(known: Settings):
        """Return 1 or 0, by switches that readers can change and that are not known."""
        for name in are_fields:
            if name not in known:
                off, with_it = on(known | {name: False}), on(known | {name: True})
                return off if with_it is off else off + values[name] * (with_it - off)
        return int(default(values | known))

    whole, of_several = on({"tensor_parallel": 1}), on({"tensor_parallel": 2})
    foreach = whole + positive(r.tensor_parallel - 1) * (of_several - whole)
    return SimpleNamespace(**vars(r) | {"foreach": foreach})


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
    _, *whole = ALONE_CHOICES.values()
    stages = [tuple(whole), *(itertools.product(*of_stages) if published else ())]
    return [
        dict(zip(OPTIONS, (dtype, kernel, again, zero, *stage), strict=True))
        for dtype, kernel, again, zero, stage in itertools.product(
            dtypes, kernels, recompute, zeros if published else CHOICES.zero_of_others, stages
        )
        if kernel in ("math", "flash" if dtype in HALF else "efficient", "efficient" * has_mla)
        if stage == stages[0] or zero in CHOICES.zero_of_stages
    ]


def rules() -> dict:
    """Return the function of the messages of every constraint of a decoder and its run.

    With it, `fields` has the fields that each of them reads.
    """
    # A class is hashable even where its instances seem not to be.
    checks = [*Decoder.all_constraints(), *RunConfig.all_constraints(), *run_constraints(Decoder)]
    # Checks that are not expressions are about layers without mixer and MLP; no model here has any.
    constraints = [check for check in checks if isinstance(check, Constraint)]
    absent = [
        Constraint(f"{n} == {value}", f"{n} = {{{n}}}: not computed on this page; allowed: {value}")
        for n, value in CHOICES.absent.items()
    ]
    by_math = Constraint(
        f"attention_kernel == 'math' or position not in {MASKS} and not sinks",
        "attention_kernel = '{attention_kernel}': what position: {position} or sinks add to scores "
        "is computed on this page by math alone; allowed: math",
    )
    upper_bounds = [  # below the limit of exact numbers in a browser
        Constraint(f"{name} <= {rule.le}", f"{name} = {{{name}:,}}: must be at most {rule.le:,}")
        for record, names in ((Decoder, Decoder.numeric()), (RunConfig, OF_RUN))
        for name in names
        for rule in record.model_fields[name].metadata
        if hasattr(rule, "le") and rule.le < graph.EXACT_BELOW
    ]
    every = [*upper_bounds, *absent, by_math, *constraints]
    return {"mistakes": mistakes(every), "fields": [sorted(one.names) for one in every]}
