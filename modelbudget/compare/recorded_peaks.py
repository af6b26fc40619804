"""Peaks that torch's allocator recorded on GPUs, next to what is predicted of the same runs."""

from collections.abc import Collection
from typing import Any, NamedTuple

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.optimizers import optimizer_named
from modelbudget.architecture.run_config import RunConfig
from modelbudget.catalogue.implementations import TRANSFORMERS, implementations
from modelbudget.catalogue.named_models import Base, Catalogue
from modelbudget.common.files import read_json
from modelbudget.common.paths import CONFIGS
from modelbudget.predict.prediction_or_reason import predicted
from modelbudget.sweeps.derive import resolved

READINGS = CONFIGS / "gpu_recordings.json"
"""Recorded by benchmarks/once/record_cuda.py; added: `device`, where it is no H100, and the reason
of a run whose peaks are others, `differs`."""
TRAINING, INFERENCE = ("training", "classes", "peft", "trainer"), "inference"
"""Steps of our modules, of classes of transformers, of these with adapters of PEFT, and of these by
transformers' Trainer; and prompts of our modules."""
COUNT = "step"
"""The state of an optimizer that counts the steps of a tensor."""
OF_CUDNN = 8
"""Bytes of a layer's random state that cuDNN's attention saves less than FlashAttention."""
OF_TRAINER = 32
"""At most these bytes are scalars of Trainer: the norm of gradients, the number of tokens."""


class Peaks(NamedTuple):
    """A recorded run: requested and predicted bytes by phase, and the reason if they differ."""

    label: str
    settings: dict[str, Any]
    requested: dict[str, int]
    predicted: dict[str, int]
    not_counted: dict[str, Collection[int]]
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
        """Whether the device's peak of a phase is the prediction, but for what has a known size."""
        return self.predicted[phase] - self.requested[phase] in self.not_counted[phase]


def recorded() -> dict[str, Any]:
    return read_json(READINGS)


def peaks(row: dict, section: str, catalogue: Catalogue) -> Peaks:
    """Return a run of a section, predicted. A prompt has the phase `prefill` alone."""
    base = catalogue[row["base"]]
    a, run = run_of(base, row, of_class=section in TRAINING[1:])
    quantity = "peak_training_bytes" if section in TRAINING else "peak_inference_bytes"
    of_phases = {name: term.total for name, term in predicted(quantity, a, run).items()}
    names = of_phases.keys() & row["peaks"].keys() if section in TRAINING else ("prefill",)
    return Peaks(
        base.label,
        row["settings"],
        {name: row["peaks"][name][0] for name in names},
        {name: of_phases[name] for name in names},
        {name: _not_counted(row, a, run, name, section) for name in names},
        row.get("differs", ""),
    )


def run_of(base: Base, row: dict, of_class: bool) -> tuple[Architecture, RunConfig]:
    """Return the architecture and the run of a reading; of a class with its settings."""
    fields = implementations()[TRANSFORMERS].of_class(base.transformers) if of_class else {}
    return resolved(base, dict(fields) | row["settings"])


def _not_counted(row: dict, a: Any, run: RunConfig, phase: str, section: str) -> Collection[int]:
    """Return what a prediction may have more than the device, in bytes.

    AdamW's and Adafactor's count of steps of each tensor, unless a fused kernel reads it; and the
    random state of memory-efficient attention, of which only some is live at a peak. These are in
    the host's memory. cuDNN's attention, which a prediction takes for FlashAttention, saves less;
    Trainer has scalars of its own.
    """
    states = [state for part in optimizer_named(run.optimizer).parts for state in part.states]
    has_counts = phase not in ("first.forward_backward", "prefill") and not run.fused
    has_counts &= any(state.name == COUNT for state in states)
    counts = 4 * row["trained_tensors"] if has_counts else 0
    by_kernel = {"efficient": 16, "flash": OF_CUDNN if row.get("cudnn") else 0}
    of_layers = by_kernel.get(run.attention_kernel, 0) * getattr(a, "n_layer", 0)
    is_saved = phase.endswith("forward_backward") or run.attention_kernel == "efficient"
    either = {counts, counts + of_layers} if is_saved and phase != "prefill" else {counts}
    if section != "trainer":
        return either
    return {most - scalar for most in either for scalar in range(OF_TRAINER)}
