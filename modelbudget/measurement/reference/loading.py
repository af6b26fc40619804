"""What a class of `transformers` finds missing, unknown or of another shape in a checkpoint.

The class loads the names and shapes on meta, with its own renamings and conversions; no value is
read.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import nn

from modelbudget.common.workers import Bound, Failure, spread
from modelbudget.measurement.reference.class_counts import build

TIMEOUT_S = 60
BOUND = Bound(2**31, "loading names and shapes of a checkpoint")
Shapes = dict[str, tuple[int, ...]]


class Mismatch(NamedTuple):
    """A tensor whose shape in the class is not the stored one; None: it is not there."""

    name: str
    of_class: tuple[int, ...] | None
    stored: tuple[int, ...] | None


class Loading(NamedTuple):
    """The tensors that differ; `refusal` is the reason if the class did not load the names."""

    class_name: str
    mismatches: tuple[Mismatch, ...] = ()
    refusal: str | None = None


def loading(class_name: str, config: dict[str, Any], shapes: Shapes) -> Loading:
    """Let a class load the names and shapes of a checkpoint, in a bounded process."""
    ((_, outcome),) = spread(_load, [(class_name, config, shapes)], 1, TIMEOUT_S, BOUND)
    return Loading(class_name, (), outcome.reason) if isinstance(outcome, Failure) else outcome


def _load(task: tuple[str, dict[str, Any], Shapes]) -> Loading:
    class_name, config, shapes = task
    try:
        # Not public: other versions may not have these functions.
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.modeling_utils import LoadStateDictConfig
        from transformers.utils.logging import disable_progress_bar
    except ImportError as error:
        return Loading(class_name, (), f"needs transformers 5: {error}")
    disable_progress_bar()
    try:
        model: Any = build(class_name, config)
    except ValueError as error:
        return Loading(class_name, (), str(error))
    dtype = torch.get_default_dtype()
    stored = {
        name: torch.empty(shape, device="meta", dtype=dtype) for name, shape in shapes.items()
    }
    conversions: Any = get_model_conversion_mapping(model)
    settings = LoadStateDictConfig(
        device_map={"": "meta"},
        dtype=dtype,
        ignore_mismatched_sizes=True,
        weight_mapping=conversions,
    )
    shared = _shared_names(model)
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    info, _ = type(model)._load_pretrained_model(model, stored, None, settings)
    model._adjust_missing_and_unexpected_keys(info)
    missing = _without_copies(info.missing_keys, shared)
    mismatches = [Mismatch(name, expected.get(name), None) for name in missing]
    mismatches += [Mismatch(name, None, shapes.get(name)) for name in info.unexpected_keys]
    mismatches += [
        Mismatch(name, tuple(of_class), tuple(s)) for name, s, of_class in info.mismatched_keys
    ]
    failed = set(info.conversion_errors or ()) - {mismatch.name for mismatch in mismatches}
    mismatches += [Mismatch(name, expected.get(name), None) for name in failed]
    return Loading(class_name, tuple(sorted(mismatches, key=lambda mismatch: mismatch.name)))


def _shared_names(model: nn.Module) -> list[set[str]]:
    names: dict[int, set[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), set()).add(name)
    return list(names.values())


def _without_copies(missing: Iterable[str], shared: list[set[str]]) -> list[str]:
    """Return the missing names whose parameter is stored under no other name."""
    lost = set(missing)
    stored = {name for names in shared if names - lost for name in names}
    return sorted(lost - stored)
