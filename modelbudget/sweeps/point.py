"""One point of a sweep."""

from collections.abc import Mapping
from typing import NamedTuple

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_config import RunConfig
from modelbudget.sweeps.sweep_file import Value


class Point(NamedTuple):
    """One point of a sweep: its architecture, and its run settings.

    `transformers` is the class that is the same model, if there is one, and `config` has the keys
    of the config.json of its base, as JSON, if the class is built from them. `axes` are its values
    on the axes of the sweep file, which a table of points does not tell.
    """

    point: str
    label: str
    base: str
    architecture: Architecture
    run: RunConfig
    transformers: str | None
    config: str | None = None
    axes: Mapping[str, Value] = {}

    @property
    def model(self) -> tuple[Architecture, RunConfig]:
        return self.architecture, self.run
