"""What a reader of the calculator can change, and the quantities that it has."""

from typing import Any

from modelbudget.architecture.run_config import RunConfig
from modelbudget.common.files import load_yaml
from modelbudget.common.paths import CONFIGS
from modelbudget.report.config_translation import OF_FILES

START, START_LENGTH = "llama-3-8b", 8192
"""Model and length of the answer that a reader finds: those of the acts."""
_DATA = load_yaml(CONFIGS / "calculator.yaml")
MAIN, OF_RUN = tuple(_DATA["main"]), tuple(_DATA["sizes_of_run"])
CHOICES_OF_RUN = {
    name: (one["description"], tuple(one["choices"]))
    for name, one in _DATA["choices_of_run"].items()
}
"""Categorical run settings with a description and their choices in the page, the first at first.

With the sizes in OF_RUN these are the run settings that a reader can change; all others have their
defaults, but for those in BROUGHT.
"""
OF_SEVERAL: dict[str, str] = _DATA["of_several"]
"""One device has nothing to share: these settings then have their defaults."""
BROUGHT = {"zero": {1: {"master_weights": True, "gradient_casts": "accumulated"}}}
"""Settings that a choice brings with it: those with which it is known."""
ZERO_OF_STAGES, ZERO_OF_OTHERS = (0, 1), (0, 3)
"""`zero` in the page of stages of published models, and of all other models, without stages.

The formulas of shards in a stage would double the page's; the command line has them.
"""
DESCRIPTIONS: dict[str, str] = _DATA["descriptions"]
QUANTITIES: dict[str, str] = _DATA["quantities"]
PEAKS: dict[str, str] = _DATA["peaks"]
STATES = "states"
PARTS = [name for name in QUANTITIES if name != STATES]
"""Quantities with components, computed one by one."""
OTHERS = {
    "parameter_bytes": ("weights", (*OF_FILES, "fp8-channel", "int4-group", "mxfp4")),
    "optimizer_bytes": ("optimizer", ("adamw-8bit", "adafactor", "muon", "lion")),
}
"""Quantities that the page has with other values of one setting too: of one device, in 16 bits."""
OF_CLASSES = "peak_training_bytes"
"""The quantity that the page has of classes of `transformers` as well."""
OF_INFERENCE = ("cache_bytes", "peak_inference_bytes")
"""Quantities of one device, whatever the number of those that train."""
BY_PROGRAM = "peak_inference_bytes"
"""The quantity that the page has of programs, of published models and others with their words."""
Settings = dict[str, Any]
ALONE: Settings = {name: RunConfig.model_fields[name].default for name in OF_SEVERAL}
"""Settings of a model that one device computes."""
ABSENT = {"n_mtp_layer": 0}
"""Fields that the page does not compute with, and their only value there: each formula would have
its terms for layers twice.
"""
EXCHANGEABLE = "mlps"
"""The categorical field that a reader can change: dense MLPs or experts."""
NEW_EXPERTS = {"n_expert": 8, "n_expert_per_token": 2, "d_expert": "d_ff"}
"""Experts of a model that had none: those of Mixtral, each as wide as the MLP was."""


def plain(value):
    """Return a value as scripts have it: a switch as 1 or 0."""
    return int(value) if isinstance(value, bool) else value
