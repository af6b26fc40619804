"""Peaks that torch's allocator recorded on an H100, next to what is predicted of the same runs."""

import json
from typing import Any, NamedTuple

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_config import RunConfig
from modelbudget.catalogue.implementations import TRANSFORMERS, implementations
from modelbudget.catalogue.named_models import Base, Catalogue
from modelbudget.common.paths import CONFIGS
from modelbudget.predict.prediction_or_reason import predicted
from modelbudget.sweeps.derive import resolved

READINGS = CONFIGS / "h100_readings.json"
"""Recorded by benchmarks/once/record_cuda.py; the reason of a run whose peaks are others,
`differs`, was added."""
TRAINING, INFERENCE = ("training", "classes", "peft"), "inference"
"""Steps of our modules, of classes of transformers, and of these with adapters of PEFT; and
prompts of our modules."""


class Peaks(NamedTuple):
    """A recorded run: requested and predicted bytes by phase, and the reason if they differ."""

    label: str
    settings: dict[str, Any]
    requested: dict[str, int]
    predicted: dict[str, int]
    on_host: dict[str, list[int]]
    reason: str

    @property
    def phase(self) -> str:
        """The phase with the highest peak."""
        return max(self.requested, key=self.requested.__getitem__)

    @property
    def ratio(self) -> float:
        """Predicted / requested at the highest peak."""
        return self.predicted[self.phase] / self.requested[self.phase]

    def is_equal(self, phase: str) -> bool:
        """Whether the device's peak of a phase is the prediction, but for bytes on the host."""
        return self.predicted[phase] - self.requested[phase] in self.on_host[phase]


def recorded() -> dict[str, Any]:
    """Return all readings."""
    return json.loads(READINGS.read_text(encoding="utf-8"))


def peaks(row: dict, section: str, catalogue: Catalogue) -> Peaks:
    """Return a run of a section, predicted. A prompt has the phase `prefill` alone."""
    base = catalogue[row["base"]]
    a, run = run_of(base, row, of_class=section in TRAINING[1:])
    quantity = "peak_training_bytes" if section in TRAINING else "peak_inference_bytes"
    of_phases = {name: term.total for name, term in predicted(quantity, a, run).items()}
    names = row["peaks"] if section in TRAINING else ("prefill",)
    return Peaks(
        base.label,
        row["settings"],
        {name: row["peaks"][name][0] for name in names},
        {name: of_phases[name] for name in names},
        {name: _on_host(row, a, run, name) for name in names},
        row.get("differs", ""),
    )


def run_of(base: Base, row: dict, of_class: bool) -> tuple[Architecture, RunConfig]:
    """Return the architecture and the run of a reading; of a class with its settings."""
    fields = implementations()[TRANSFORMERS].of_class(base.transformers) if of_class else {}
    return resolved(base, dict(fields) | row["settings"])


def _on_host(row: dict, a: Any, run: RunConfig, phase: str) -> list[int]:
    """Return bytes that predictions have in the device's memory, and torch in the host's.

    AdamW's and Adafactor's count of steps of each tensor, unless a fused kernel reads it; and the
    random state of memory-efficient attention, of which only some is live at a peak.
    """
    has_counts = phase not in ("first.forward_backward", "prefill")
    has_counts &= run.optimizer.startswith("ada") and not run.fused
    counts = 4 * row["trained_tensors"] if has_counts else 0
    is_efficient = phase != "prefill" and run.attention_kernel == "efficient"
    return [counts, counts + 16 * getattr(a, "n_layer", 0)] if is_efficient else [counts]
