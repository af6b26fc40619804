"""Run settings that nobody set, as a device has them: precision, kernel, optimizer.

`derive.settled` reads them, and through it everything that resolves the fields of a point: sweeps,
the command, Python, `fit`, `solve`, readings of GPUs, the page.
"""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from itertools import chain
from typing import Any, Literal

from pydantic import Field

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.constraint import Constraint, first_mistake
from modelbudget.architecture.run_adapter import BITSANDBYTES
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_constraints import run_constraints
from modelbudget.catalogue.accelerators import Accelerator
from modelbudget.common.expressions import LazyValues
from modelbudget.common.paths import CONFIGS
from modelbudget.common.strict import Strict, shipped

KERNEL = "attention_kernel"
DECIDED = {
    "dtype": "bfloat16; float32 with autocast or backend: cpu",
    "foreach": "true; false with fused, tensor_parallel alone, or backend: cpu",
    KERNEL: "flash, else efficient, else math: the first that torch runs and that has a formula",
}
"""The fields that have such defaults, and what these are."""


Device = Literal["cuda", "below_8", "mps_training", "mps_inference", "xla"]
"""Where torch chooses: CUDA of compute capability 8.0 or more, and below; MPS, by purpose; TPUs."""


def where(accelerator: Accelerator, training: bool) -> Device:
    """Return how an accelerator is called where torch chooses kernels."""
    if accelerator.platform == "mps":
        return "mps_training" if training else "mps_inference"
    if accelerator.platform == "xla":
        return "xla"
    return "cuda" if accelerator.has_flash else "below_8"


class Refused(Strict):
    """A condition on fields under which torch does not run a kernel, and its reason."""

    when: str
    why: str


class Kernel(Strict):
    """One kernel of `F.scaled_dot_product_attention`.

    `source` has torch's conditions; `refused` are those, and gaps of our formulas, that no
    constraint of a run has; `refused_on` are those of other devices alone.
    """

    kernel: Literal["flash", "efficient", "math"]
    refused: list[Refused] = Field([])
    refused_on: dict[Device, list[Refused]] = Field({})
    source: str


class Kernels(Strict):
    """The kernels of a device in the order in which torch tries them."""

    source: str
    checked: str
    device: str
    cpu: str
    mps: str
    xla: str
    kernels: list[Kernel] = Field(min_length=1)


kernels = shipped(CONFIGS / "attention_kernels.yaml", Kernels)


class DeviceDefault:
    """The value of a run setting of which nothing is set, read from others like an expression.

    The first of `values` under which no constraint among `checks` finds a mistake.
    """

    text = "the default of the device (configs/attention_kernels.yaml), unless it is set"

    def __init__(self, name: str, checks: Mapping[Any, Iterable[Constraint]]):
        self.name, self.checks = name, checks
        read = (check.holds.names for check in chain.from_iterable(checks.values()))
        self.names = frozenset(chain.from_iterable(read)) - {name}

    def __call__(self, values: Mapping[str, Any]) -> Any:
        """Return the value; the field's own default where none is allowed."""
        for value, checks in self.checks.items():
            of_run = LazyValues(values.__getitem__, {self.name: value})
            with suppress(ValueError):  # where none can be evaluated, which the record reports
                if all(check.holds(of_run) for check in checks):
                    return value
        return RunConfig.model_fields[self.name].default


@cache
def device_defaults(
    family: type[Architecture], device: Device = "cuda"
) -> dict[str, DeviceDefault]:
    """Return, by the name of the run setting, what it is on a device if nothing is set.

    Below 8.0 tensor cores have no bfloat16; on MPS and XLA torch's optimizers take one tensor at a
    time (torch/utils/_foreach_utils.py).
    """
    on_gpu = Constraint("backend == 'gpu'", "")
    half = Constraint(
        f"autocast == 'none' or adapter != 'none' and weights in '{BITSANDBYTES}'", ""
    )
    dtype = "float16" if device == "below_8" else "bfloat16"
    foreach = {device in ("cuda", "below_8"): [on_gpu, *_constraints(family, "foreach")]}
    return {
        "dtype": DeviceDefault("dtype", {dtype: [on_gpu, half]}),
        "foreach": DeviceDefault("foreach", foreach),
        KERNEL: DeviceDefault(KERNEL, _kernel_checks(family, device)),
    }


@cache
def _kernel_checks(family: type[Architecture], device: Device) -> dict[str, list[Constraint]]:
    """Return what must hold for each kernel with scores out of memory, in torch's order.

    Of a model without formula torch decides for each call: it is traced with the first of these.
    """
    if "n_head" not in family.model_fields:
        return {}
    always = _constraints(family, KERNEL)
    refused = refused_kernels(family, device).items()
    return {kernel: [*always, *checks] for kernel, checks in refused}


def refused_kernels(
    family: type[Architecture], device: Device = "cuda"
) -> dict[str, list[Constraint]]:
    """Return what must hold for each of these kernels beside the constraints of every run."""
    by_kernel = refused_on(family, device)
    for kernel in kernels().kernels[:-1] if family.has_formula else []:
        by_kernel[kernel.kernel] += _of_family(family, kernel.refused)
    return by_kernel


def refused_on(family: type[Architecture], device: Device) -> dict[str, list[Constraint]]:
    """Return what must hold for each of these kernels on this device and not on CUDA from 8.0."""
    return {
        kernel.kernel: _of_family(family, kernel.refused_on.get(device, []))
        for kernel in kernels().kernels[:-1]
    }


def _of_family(family: type[Architecture], refused: list[Refused]) -> list[Constraint]:
    fields = family.model_fields.keys() | RunConfig.model_fields.keys()
    constraints = [Constraint(f"not ({of.when})", of.why) for of in refused]
    return [constraint for constraint in constraints if constraint.names <= fields]


def _constraints(family: type[Architecture], name: str) -> list[Constraint]:
    """Return the constraints of a family's runs that read a field."""
    constraints = (*RunConfig.all_constraints(), *run_constraints(family))
    return [
        constraint
        for constraint in constraints
        if isinstance(constraint, Constraint) and name in constraint.holds.names
    ]


def why_math(architecture: Architecture, run: RunConfig, device: Device = "cuda") -> str | None:
    """Return why the default has the scores of attention in memory; None if it does not."""
    family = type(architecture)
    checks = _kernel_checks(family, device)
    if not checks:
        return None
    of_formulas = run_constraints(family)
    kernels_by_reason: dict[str, list[str]] = {}
    for kernel, constraints in checks.items():
        values = vars(architecture) | vars(run) | {KERNEL: kernel}
        mistake = first_mistake(constraints, values)
        if mistake is None:
            return None
        by_torch = first_mistake(
            (constraint for constraint in constraints if constraint not in of_formulas), values
        )
        reason = _reason(by_torch) if by_torch else f"{_reason(mistake)} (no formula)"
        kernels_by_reason.setdefault(reason, []).append(kernel)
    return "; ".join(f"not {' or '.join(of)}: {why}" for why, of in kernels_by_reason.items())


def where_not_flash(architecture: Architecture, run: RunConfig) -> str | None:
    """Return where a run with FlashAttention has another kernel; None if nowhere.

    FlashAttention takes no mask.
    """
    window = getattr(architecture, "window", 0)
    if not 0 < window < run.length:
        return None
    hidden = f"window = {window:,}, of length = {run.length:,}, masks scores"
    return f"and memory-efficient attention in layers where {hidden}"


def mask_of_heads(architecture: Architecture, run: RunConfig) -> str | None:
    """Return that each head has a mask of all scores in memory; None if none has.

    Of sinks and of positions that add to scores, which kernels elsewhere read without a mask.
    """
    fields, length = vars(architecture), run.length
    position = fields.get("position")
    adds = f"position = {position}" if position in ("alibi", "buckets") else ""
    reason = "sinks = true" if fields.get("sinks") else adds
    if not reason or "n_head" not in fields:
        return None
    without = "; FlashAttention's own packages and engines compute it in the kernel: no formula"
    mask = f"{fields['n_head']:,} × {length:,} × {length:,} numbers a sequence"
    return f"with a mask in memory, {mask}: {reason}{'' if position == 'buckets' else without}"


def _reason(mistake: str) -> str:
    """Return what a message says of a kernel, without the kernel and without what is allowed."""
    return re.sub(f"^{KERNEL} = '\\w+': ", "", mistake).partition("; allowed")[0]
