"""Run settings that nobody set, as a CUDA device has them: precision, kernel, optimizer.

A sweep has the defaults of its fields instead: it writes its settings out.
"""

from collections.abc import Iterator
from functools import cache
from typing import Literal

from pydantic import Field

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_constraints import run_mistake
from modelbudget.catalogue.implementations import implementations
from modelbudget.catalogue.models import Base
from modelbudget.common.paths import CONFIGS
from modelbudget.common.strict import Strict, read_strict
from modelbudget.sweeps.derive import expression_of, resolved
from modelbudget.sweeps.sweep_file import Value

DECIDED = ("dtype", "foreach", "attention_kernel")
"""The fields that have such defaults."""


class Kernel(Strict):
    """One kernel of `F.scaled_dot_product_attention`.

    `source` has torch's conditions; `refused` are those, and gaps of our formulas, that no
    constraint of a run has.
    """

    kernel: Literal["flash", "efficient", "math"]
    refused: list[str] = Field([])
    source: str

    def refuses(self, architecture: Architecture) -> bool:
        """Whether a condition holds; those over fields that the family lacks do not."""
        values = vars(architecture)
        conditions = map(expression_of, self.refused)
        return any(one.names <= values.keys() and one(values) for one in conditions)


class Kernels(Strict):
    """The kernels of a device in the order in which torch tries them."""

    source: str
    checked: str
    device: str
    kernels: list[Kernel] = Field(min_length=1)


@cache
def kernels() -> Kernels:
    """Read the kernels of `configs/attention_kernels.yaml`. Raises InputError."""
    return read_strict(CONFIGS / "attention_kernels.yaml", Kernels)


def completed(base: Base, chosen: dict[str, Value]) -> tuple[Architecture, RunConfig]:
    """Return the architecture and the run, with a CUDA device's settings where none are set.

    Chosen fields, those of the base and those of an implementation win. Raises ValueError.
    """
    for kernel, defaults in _defaults(base, chosen):
        try:
            architecture, run = resolved(base, defaults | chosen)
        except ValueError:  # other settings refuse these
            continue
        if run_mistake(architecture, run) is None and not kernel.refuses(architecture):
            return architecture, run
    return resolved(base, chosen)


def _defaults(base: Base, chosen: dict[str, Value]) -> Iterator[tuple[Kernel, dict[str, Value]]]:
    """Yield kernels and settings to try, those that torch prefers first."""
    given = base.fields | chosen
    if given.get("backend", "gpu") != "gpu":
        return
    decided = {*given, *base.derive, *_of_implementation(base, given)}
    dtype = "float32" if given.get("autocast", "none") != "none" else "bfloat16"
    kinds = kernels().kernels
    if "attention_kernel" in decided or "n_head" not in base.family.model_fields:
        kinds = kinds[-1:]
    for foreach in (True, False):
        for kernel in kinds:
            found = {"dtype": dtype, "foreach": foreach, "attention_kernel": kernel.kernel}
            yield kernel, {name: value for name, value in found.items() if name not in decided}


def _of_implementation(base: Base, given: dict[str, Value]) -> dict:
    name = given.get("implementation")
    one = implementations().get(name) if isinstance(name, str) else None
    try:
        return one.of_class(base.transformers) if one else {}
    except ValueError:  # it refuses the class, as `resolved` reports
        return {}
