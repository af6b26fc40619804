"""Values of predictions, frozen in `tests/golden/frozen_values.json.xz`."""

import json
import lzma
from pathlib import Path
from typing import Any, NamedTuple

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.record import Record
from modelbudget.architecture.run_config import RunConfig
from modelbudget.families import families
from modelbudget.predict.formula import formula

PATH = Path(__file__).parents[1] / "golden" / "frozen_values.json.xz"
QUANTITIES = (
    "parameters", "parameter_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes",
    "flops_forward", "flops_backward", "peak_training_bytes", "cache_bytes", "flops_decode",
    "peak_inference_bytes",
)  # fmt: skip
Values = dict[str, dict[str, int]]
"""By quantity and component, or phase; components of 0 are left out."""


class Case(NamedTuple):
    architecture: Architecture
    run: RunConfig
    values: Values


def values_of(a: Architecture, run: RunConfig, quantities) -> Values:
    """Return the predicted values of the quantities that are known."""
    values: Values = {}
    for quantity in quantities:
        terms, holds = formula(type(a), quantity, a, run)
        if holds:
            values[quantity] = {name: term.total for name, term in terms.items() if term.total}
    return values


def write(cases: list[Case]) -> None:
    rows = [[a.name(), _changed(a), _changed(run), values] for a, run, values in cases]
    text = "\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    PATH.write_bytes(lzma.compress(text.encode(), preset=9))


def read() -> list[Case]:
    return [_case(*json.loads(line)) for line in lzma.decompress(PATH.read_bytes()).splitlines()]


def _case(family: str, fields: dict, of_run: dict, values: Values) -> Case:
    return Case(families()[family](**fields), RunConfig(**of_run), values)


def _changed(record: Record) -> dict[str, Any]:
    return record.model_dump(exclude_defaults=True)
