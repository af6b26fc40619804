"""Parameter counts of `transformers` classes, counted like our own modules.

Classes of the installed package are built on meta from a config. Nothing is downloaded, and no code
of a model page is run.
"""

import logging
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import nn

from modelbudget.common.progress import progress
from modelbudget.common.workers import Bound, Failure, spread
from modelbudget.huggingface.construct import config_object, construct
from modelbudget.huggingface.offline import transformers
from modelbudget.measurement.count import count
from modelbudget.measurement.process.device import use_one_core
from modelbudget.measurement.trace.module_trace import import_compiler
from modelbudget.modules.initialise import uninitialised

log = logging.getLogger(__name__)
TIMEOUT_S = 600
"""Seconds after which counting a class is given up."""


BOUND = Bound(2**32, "counting a class of transformers")


class Witness(NamedTuple):
    """Unique parameters and elements of buffers of a class.

    Both are None if the class rejects its config or if counting it `failed`; `refusal` is the
    reason.
    """

    class_name: str
    parameters: int | None
    buffers: int | None
    refusal: str | None = None
    failed: bool = False


def witnesses(wanted: Sequence[tuple[str, dict[str, Any]]], n_workers: int) -> list[Witness]:
    """Count each class with its config, in several processes; results are in the order given.

    If a process crashes or hangs, only its class is lost.
    """
    n_workers = max(1, min(n_workers, os.cpu_count() or 1, len(wanted) // 8))
    if n_workers > 1:  # import once, before workers are forked
        import_compiler()
        for class_name in {class_name for class_name, _ in wanted}:
            with suppress(Exception):  # counting it gives the reason
                getattr(transformers, class_name)
    log.info("%d classes, %d processes", len(wanted), n_workers)
    outcomes = spread(_witness_of_pair, wanted, n_workers, TIMEOUT_S, BOUND)
    by_number = dict(progress(outcomes, len(wanted)))
    return [
        Witness(class_name, None, None, f"not counted: {outcome.reason}", failed=True)
        if isinstance(outcome := by_number[i], Failure)
        else outcome
        for i, (class_name, _) in enumerate(wanted)
    ]


def witness(class_name: str, config: dict[str, Any]) -> Witness:
    """Count the class `class_name` with the keys of a config."""
    try:
        with uninitialised():
            model = build(class_name, config)
    except ValueError as error:
        return Witness(class_name, None, None, str(error))
    return Witness(
        class_name,
        parameters=sum(c.parameters for c in count(model).values()),
        buffers=sum(buffer.numel() for buffer in model.buffers()),
    )


def build(class_name: str, config: dict[str, Any]) -> nn.Module:
    """Build the class from a config on meta. Raises ValueError if it rejects the config."""
    with torch.device("meta"):
        return construct(class_name, config_object(class_name, config))


def _witness_of_pair(pair: tuple[str, dict[str, Any]]) -> Witness:
    use_one_core()
    return witness(*pair)


LOADING_S = 60
BOUND_OF_LOADING = Bound(2**31, "loading names and shapes of a checkpoint")
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
    ((_, outcome),) = spread(_load, [(class_name, config, shapes)], 1, LOADING_S, BOUND_OF_LOADING)
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
    """Return the names of each parameter."""
    names: dict[int, set[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), set()).add(name)
    return list(names.values())


def _without_copies(missing: Iterable[str], shared: list[set[str]]) -> list[str]:
    """Return the missing names whose parameter is stored under no other name."""
    lost = set(missing)
    stored = {name for names in shared if names - lost for name in names}
    return sorted(lost - stored)
