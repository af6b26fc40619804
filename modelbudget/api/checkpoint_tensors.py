"""The tensors of a checkpoint held against the formula, and their names against the class."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

from modelbudget.api.chosen_model import ChosenModel
from modelbudget.api.frames import Frames
from modelbudget.api.predictions import predictions
from modelbudget.architecture.base import Architecture
from modelbudget.architecture.terms import component_of
from modelbudget.components.groups import group_of
from modelbudget.huggingface import checkpoint_files
from modelbudget.huggingface.checkpoint_files import Tensor
from modelbudget.huggingface.components import components_of_class, group_of_class, is_buffer
from modelbudget.predict import prediction_or_reason

if TYPE_CHECKING:
    from pathlib import Path

    from modelbudget.measurement.reference.loading import Loading

Of = dict[str, list[Tensor]]
"""Part of a model → the tensors that belong to it."""


class Part(NamedTuple):
    """One component, or a group where names of tensors say no more.

    `tensors` describes those of the checkpoint: names without numbers of layers, with shapes.
    """

    name: str
    quantity: str
    predicted: int
    stored: int
    tensors: tuple[str, ...]

    @property
    def difference(self) -> int:
        """The checkpoint minus the formula."""
        return self.stored - self.predicted


@dataclass(frozen=True)
class Checkpoint(Frames):
    """Prediction and checkpoint by component; `refusal` is the reason if nothing is compared.

    `dtypes` counts the tensors of each dtype. `left_out` counts tensors that hold no parameters of
    their own: buffers, and copies of the tied embedding. `loading` has the names and shapes that
    differ from those of the model's class in `transformers`; None if they were not compared.
    `n_bytes`: those of all tensors, where they are not those of a dtype.
    """

    model: str
    path: Path
    parts: tuple[Part, ...]
    dtypes: dict[str, int]
    left_out: int
    refusal: str | None = None
    loading: Loading | None = None
    n_bytes: int | None = None

    @property
    def differences(self) -> tuple[Part, ...]:
        """The parts in which the checkpoint differs from the formula."""
        return tuple(part for part in self.parts if part.difference)

    @property
    def agrees(self) -> bool:
        """Whether nothing differs, in number, name or shape."""
        return not self.differences and not (self.loading and self.loading.mismatches)

    def rows(self) -> list[dict]:
        """Return one row for each part."""
        return [
            {
                "model": self.model,
                "part": part.name,
                "quantity": part.quantity,
                "predicted": part.predicted,
                "stored": part.stored,
                "difference": part.difference,
                "tensors": "; ".join(part.tensors),
            }
            for part in self.parts
        ]

    def names(self) -> list[dict]:
        """Return one row for each tensor whose name or shape is not that of the class."""
        return [mismatch._asdict() for mismatch in self.loading.mismatches] if self.loading else []

    def __repr__(self) -> str:
        return f"<{self.path.name} and the formula of {self.model}>"


def compare_checkpoint(model: ChosenModel, path: Path) -> Checkpoint:
    """Hold the tensors of a checkpoint against the formula of its config.json.

    Parameters by component, and names and shapes if `transformers` is installed; only the bytes of
    all tensors if the weights are quantised, or if the shards that an index names are not there.
    Nothing if shards are not there without an index. Raises InputError if a file cannot be read.
    """
    weights = checkpoint_files.read(path)
    dtypes = dict(Counter(tensor.dtype for tensor in weights.tensors or ()))
    if weights.lost:
        return Checkpoint(model.label, path, (), dtypes, 0, weights.lost)
    quantity = "parameters"
    if model.run().weights != "dtype":
        quantity = "file_bytes"
    elif weights.tensors is None:
        quantity = "parameter_bytes"
    if why := prediction_or_reason.why_not(quantity, *model.with_run()):
        return Checkpoint(model.label, path, (), dtypes, 0, why)
    predicted = predictions(model, [quantity])[quantity]
    if quantity != "parameters" or weights.tensors is None:
        whole = Part("all tensors", quantity, predicted.total, weights.total_bytes, ())
        return Checkpoint(model.label, path, (whole,), dtypes, 0)
    parameters = [tensor for tensor in weights.tensors if not is_buffer(component_of(tensor.name))]
    known = {part.name for part in predicted.components}
    stored = _by_part(parameters, known, model.architecture)
    left_out = len(weights.tensors) - sum(map(len, stored.values()))
    expected: Counter[str] = Counter()
    for part in predicted.components:
        expected[part.name if part.name in stored else group_of(part.name)] += part.value
    loading, parts = _loading(model, parameters), parts_of(expected, stored)
    if loading and not loading.refusal and not loading.mismatches:
        parts = _joined(parts)
    return Checkpoint(model.label, path, parts, dtypes, left_out, loading=loading)


def _loading(model: ChosenModel, tensors: list[Tensor]) -> Loading | None:
    """Let the class of the config.json load names and shapes; None without one to build."""
    name, config = model.base.transformers, model.base.config
    if not name or not config or find_spec("transformers") is None or find_spec("torch") is None:
        return None
    from modelbudget.measurement.reference.loading import loading

    return loading(name, json.loads(config), {tensor.name: tensor.shape for tensor in tensors})


def _by_part(tensors: Iterable[Tensor], known: set[str], a: Architecture) -> Of:
    """Return the tensors by part, each parameter once.

    Some checkpoints hold a shared embedding under all of its names: a second embedding of the
    vocabulary is a copy, and so is the head of a tied model.
    """
    by_part: Of = {}
    embeddings: set[tuple[int, ...]] = set()
    copied = ("token embedding", "head") if getattr(a, "tied", False) else ("token embedding",)
    grouped = [(group_of_class(component_of(tensor.name)), tensor) for tensor in tensors]
    for group, tensor in sorted(grouped, key=lambda pair: pair[0] != "token embedding"):
        if group in copied and tensor.shape in embeddings:
            continue
        if group == "token embedding" and tensor.shape[:1] == (getattr(a, "n_vocab", 0),):
            embeddings.add(tensor.shape)
        components = components_of_class(component_of(tensor.name))
        part = next((name for name in components if name in known), group)
        by_part.setdefault(part, []).append(tensor)
    return by_part


def parts_of(expected: Counter[str], stored: Of) -> tuple[Part, ...]:
    """Return the parameters of the parts of both sides, those of the formula first."""
    return tuple(
        Part(name, "parameters", expected[name], sum(part.elements for part in of), describe(of))
        for name in dict.fromkeys((*expected, *stored))
        for of in [stored.get(name, [])]
    )


def _joined(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """Return the parts, those whose differences cancel as one.

    Names of classes do not always say the part. Only where all names and shapes are those of the
    class does that hide no difference.
    """
    differing = [part for part in parts if part.difference]
    if not differing or sum(part.difference for part in differing):
        return parts
    together = Part(
        " + ".join(part.name for part in differing),
        differing[0].quantity,
        sum(part.predicted for part in differing),
        sum(part.stored for part in differing),
        tuple(line for part in differing for line in part.tensors),
    )
    return (*(part for part in parts if not part.difference), together)


def describe(tensors: Iterable[Tensor]) -> tuple[str, ...]:
    """Return one line for each name without numbers of layers: `layers.*.mlp.up 32 × [8, 4]`.

    A tensor whose shape differs from most of its name is listed with its full name.
    """
    by_name: dict[str, list[Tensor]] = {}
    for tensor in tensors:
        pattern = ".".join("*" if step.isdecimal() else step for step in tensor.name.split("."))
        by_name.setdefault(pattern, []).append(tensor)
    lines = []
    for pattern, of in by_name.items():
        usual, n = Counter(tensor.shape for tensor in of).most_common(1)[0]
        lines.append(f"{pattern} {n} × {list(usual)}")
        lines += [f"{tensor.name} {list(tensor.shape)}" for tensor in of if tensor.shape != usual]
    return tuple(lines)
