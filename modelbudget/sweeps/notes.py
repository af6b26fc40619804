"""Notes on the config.json files of a sweep: settings that its numbers do not show."""

from collections.abc import Iterable

from modelbudget.catalogue.named_models import Base
from modelbudget.sweeps.quantity_names import OF_INFERENCE, OF_PARAMETERS, OF_PROCESS, OF_RUN
from modelbudget.sweeps.sweep_file import Sweep

TRAINING = OF_RUN - OF_INFERENCE | {"resident_peak_bytes"}
ABOUT = {
    "all": OF_PARAMETERS | OF_RUN | OF_PROCESS,
    "bytes": OF_RUN | OF_PROCESS | {"parameter_bytes"},
    "training": TRAINING,
    "inference": OF_INFERENCE,
    "serving": {"request_bytes"},
}
"""Quantities of each topic of a note."""


def notes(sweep: Sweep, bases: Iterable[Base]) -> list[str]:
    """Return a line for each note that concerns a quantity or a run of the sweep."""
    measured = set(sweep.measure.quantities)
    in_points = {name for point in sweep.points for name in point}
    chosen = {*sweep.fixed, *sweep.axes(), *sweep.derive, *in_points}
    return [
        f"{base.name}: {note.text}"
        for base in bases
        for note in base.notes
        if ABOUT[note.about] & measured and note.settles not in chosen
    ]
