"""Differences of published readings of two prompts, against the cache of the tokens between."""

from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from pydantic import Field

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_config import RunConfig
from modelbudget.catalogue.named_models import Base
from modelbudget.common.paths import CONFIGS
from modelbudget.common.strict import Strict, read_strict
from modelbudget.predict.prediction_or_reason import predicted
from modelbudget.sweeps.derive import resolved

MIB = 2**20
CLOSE = MIB
"""Bytes by which a step may differ: each reading is rounded to 1 MiB."""


class Series(Strict):
    """Readings of one model in MiB by prompt, and why their steps are not those of the cache."""

    base: str
    weights: str
    mb: list[list[int]] = Field(min_length=2)
    differs: str = ""


class StepsFile(Strict):
    """The file: a source and its series."""

    source: str = Field(min_length=1)
    series: list[Series] = Field(min_length=1)


class Step(NamedTuple):
    """The difference of two readings, and the bytes of the cache of the tokens between."""

    series: Series
    prompt: int
    next_prompt: int
    read: int
    predicted: int

    @property
    def is_equal(self) -> bool:
        """Whether both are equal within the rounding of the readings."""
        return abs(self.read - self.predicted) <= CLOSE


@cache
def gpu_steps(path: Path = CONFIGS / "gpu_steps.yaml") -> StepsFile:
    """Read the file. Raises InputError."""
    return read_strict(path, StepsFile, Series)


def steps(file: StepsFile, bases: Mapping[str, Base]) -> list[Step]:
    """Return all steps between neighbouring prompts, in the order of the file."""
    differences = []
    for series in file.series:
        architecture, run = resolved(bases[series.base], {"dtype": "bfloat16"})
        read = {length: mib for length, mib in series.mb}  # noqa: C416
        at = {prompt: _cache(architecture, run, prompt) for prompt in read}
        differences += [
            Step(
                series,
                shorter,
                longer,
                (read[longer] - read[shorter]) * MIB,
                at[longer] - at[shorter],
            )
            for shorter, longer in pairwise(sorted(read))
        ]
    return differences


def _cache(architecture: Architecture, run: RunConfig, prompt: int) -> int:
    there = run.model_copy(update={"length": prompt})
    return sum(term.total for term in predicted("cache_bytes", architecture, there).values())
