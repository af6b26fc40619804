"""What a reader of the calculator can change, and the quantities that it has."""

from types import SimpleNamespace
from typing import Any

from modelbudget.architecture.run_config import RunConfig
from modelbudget.common.files import load_yaml
from modelbudget.common.paths import CONFIGS

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


def plain(value):
    """Return a value as scripts have it: a switch as 1 or 0."""
    return int(value) if isinstance(value, bool) else value
