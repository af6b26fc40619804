"""Published readings of fine-tuning against predicted bytes of tensors, and their differences."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field

from modelbudget.catalogue.implementations import OURS, implementations
from modelbudget.catalogue.named_models import Base
from modelbudget.common.paths import CONFIGS
from modelbudget.common.strict import Strict, read_strict
from modelbudget.predict.largest_that_fits import needed
from modelbudget.sweeps.derive import resolved

Fields = dict[str, bool | int | str]


class Reading(Strict):
    """Bytes that somebody read, and the fields of the run that are its own."""

    name: str
    bytes: int = Field(gt=0)
    run: Fields
    differs: str = ""


class Source(Strict):
    """Readings of one model from one place, with the fields that all runs have."""

    source: str = Field(min_length=1)
    base: str
    implementation: str
    run: Fields
    readings: list[Reading] = Field(min_length=1)
    steps: list[list[str]] = Field([])


class SourcesFile(Strict):
    """The file."""

    sources: list[Source] = Field(min_length=1)


class Compared(NamedTuple):
    """A reading and the prediction of the same run, in bytes."""

    reading: Reading
    predicted: int

    @property
    def ratio(self) -> float:
        return self.reading.bytes / self.predicted


@cache
def sources(path: Path = CONFIGS / "fine_tuning_readings.yaml") -> list[Source]:
    """Read the file. Raises InputError."""
    return read_strict(path, SourcesFile, Source, Reading).sources


def compared(source: Source, bases: Mapping[str, Base]) -> dict[str, Compared]:
    """Predict all readings of a source, by name."""
    base = bases[source.base]
    of_class: dict[str, Any] = {}
    if source.implementation != OURS:  # as its class computes; adapters are around our modules
        of_class = dict(implementations()[source.implementation].of_class(base.transformers))
    by_name = {}
    for reading in source.readings:
        pair = resolved(base, {**of_class, **source.run, **reading.run})
        n_bytes = needed(pair, "training")
        assert n_bytes is not None  # of runs that have a program
        by_name[reading.name] = Compared(reading, n_bytes)
    return by_name


def steps(source: Source, by_name: Mapping[str, Compared]) -> list[tuple[int, int]]:
    """Return the differences of the pairs of a source: as they were read, and as predicted."""
    return [
        (
            by_name[second].reading.bytes - by_name[first].reading.bytes,
            by_name[second].predicted - by_name[first].predicted,
        )
        for first, second in source.steps
    ]
