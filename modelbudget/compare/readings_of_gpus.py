"""Readings of GPUs by others next to what the command predicts of the same runs."""

from typing import Any, NamedTuple

from modelbudget.architecture.terms import of_model
from modelbudget.catalogue.named_models import Base, Catalogue
from modelbudget.catalogue.published_readings import Reading, Readings, Source
from modelbudget.common.byte_sizes import GIB
from modelbudget.predict import prediction_or_reason
from modelbudget.sweeps.derive import FIELDS_OF_RUN, resolved

CLOSE = 0.03
"""Largest relative difference of a prediction that needs no reason."""
PEAK = "peak_training_bytes"


class Row(NamedTuple):
    """One reading and its prediction in GiB; without one it is None, and `refused` says why."""

    source: Source
    model: str
    reading: Reading
    predicted: float | None
    refused: str

    @property
    def ratio(self) -> float | None:
        """Predicted / reported; None without a prediction."""
        return None if self.predicted is None else self.predicted / self.reading.gib

    @property
    def simulator_ratio(self) -> float | None:
        """Simulated by the source's own tool / reported."""
        simulated = self.reading.simulated_gib
        return None if simulated is None else simulated / self.reading.gib

    @property
    def is_close(self) -> bool:
        """Whether the prediction is within `CLOSE` of the reading."""
        return self.ratio is not None and abs(self.ratio - 1) <= CLOSE

    @property
    def reason(self) -> str:
        """Why there is no prediction, or why it differs; empty if it is close."""
        causes = [cause for cause in (self.reading.differs, self.source.differs) if cause]
        return self.refused or ("" if self.is_close else "; ".join(causes))


def rows(readings: Readings, catalogue: Catalogue) -> list[Row]:
    """Predict every reading, in the order of the file."""
    return [
        _row(readings.sources[reading.source], reading, catalogue) for reading in readings.readings
    ]


def _row(source: Source, reading: Reading, catalogue: Catalogue) -> Row:
    label, predicted, refused = reading.base, None, ""
    try:
        base = catalogue[reading.base]
        label = base.label
        predicted = _predicted(base, source.settings | reading.settings) / GIB
    except ValueError as error:
        refused = "; ".join(str(error).splitlines())
    return Row(source, label, reading, predicted, refused)


def _predicted(base: Base, settings: dict[str, Any]) -> float:
    """Return the peak of the device that holds most, in the largest phase. Raises ValueError.

    That is the number of the command and of `--fit`.
    """
    unknown = settings.keys() - base.family.model_fields.keys() - FIELDS_OF_RUN
    if unknown:
        named = ", ".join(f"{name}: {settings[name]}" for name in sorted(unknown))
        raise ValueError(f"no setting yet for {named}")
    runs = (resolved(base, settings | rank) for rank in _ranks(settings))
    return max(of_model(PEAK, prediction_or_reason.predicted(PEAK, *run)) for run in runs)


def _ranks(settings: dict[str, Any]) -> list[dict[str, str]]:
    """Return the settings of the devices that may hold most: stages, unless one was read."""
    if "pipeline_rank" in settings:
        return [{}]
    n_stage = settings.get("pipeline_parallel", 1)
    names = ("first", "middle", "last") if n_stage > 2 else ("first", "last")
    return [{"pipeline_rank": name} for name in names] if n_stage > 1 else [{}]
