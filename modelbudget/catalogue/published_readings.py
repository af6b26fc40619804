"""Readings of GPU memory that others published: reads `configs/gpu_readings.yaml`."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from modelbudget.common.strict import Strict, read_strict

Settings = dict[str, str | int | bool]


class Source(Strict):
    """Who published readings, by which rule they were taken, and settings of all of them."""

    title: str
    source: str
    rule: str
    simulator: str = ""
    settings: Settings
    differs: str = ""


class Reading(Strict):
    """Memory of one GPU, in GiB, and the settings of model and run under which it was read."""

    base: str
    source: str
    gib: float = Field(gt=0)
    simulated_gib: float | None = Field(None, gt=0)
    settings: Settings
    read_at: str = ""
    variant: str = ""
    differs: str = ""


class Readings(Strict):
    """All readings, with their sources by name."""

    sources: dict[str, Source]
    readings: list[Reading] = Field(min_length=1)

    @model_validator(mode="after")
    def name_sources(self) -> Self:
        """Reject a reading of an unknown source."""
        for i, reading in enumerate(self.readings):
            if reading.source not in self.sources:
                raise ValueError(
                    f"readings[{i}].source = {reading.source!r}: allowed: {', '.join(self.sources)}"
                )
        return self


def gpu_readings(path: Path) -> Readings:
    """Read all readings. Raises InputError."""
    return read_strict(path, Readings, Source, Reading)
