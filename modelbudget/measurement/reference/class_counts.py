"""Parameter counts of `transformers` classes, counted like our own modules.

Classes of the installed package are built on meta from a config. Nothing is downloaded, and no code
of a model page is run. Importing this module does not import transformers, which takes seconds:
what counts does.
"""

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from modelbudget.common.progress import progress
from modelbudget.common.workers import Bound, Failure, read_ahead, spread
from modelbudget.measurement.count import count
from modelbudget.measurement.process.device import use_one_core
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
    """Count each class with its config, as `begin_counts`."""
    return begin_counts(wanted, n_workers)()


def begin_counts(
    wanted: Sequence[tuple[str, dict[str, Any]]], n_workers: int
) -> Callable[[], list[Witness]]:
    """Begin to count classes in other processes; return what waits for them, in the order given.

    These processes import transformers, while this one does something else. If one crashes or
    hangs, only its class is lost.
    """
    n_workers = max(1, min(n_workers, os.cpu_count() or 1, len(wanted) // 8))
    log.info("%d classes, %d processes", len(wanted), n_workers)
    outcomes = read_ahead(spread(_witness_of_pair, wanted, n_workers, TIMEOUT_S, BOUND))

    def finished() -> list[Witness]:
        by_number = dict(progress(outcomes, len(wanted)))
        return [
            Witness(class_name, None, None, f"not counted: {outcome.reason}", failed=True)
            if isinstance(outcome := by_number[i], Failure)
            else outcome
            for i, (class_name, _) in enumerate(wanted)
        ]

    return finished


def witness(class_name: str, config: dict[str, Any]) -> Witness:
    """Count the class `class_name` with the keys of a config."""
    try:
        model = build(class_name, config)
    except ValueError as error:
        return Witness(class_name, None, None, str(error))
    return Witness(
        class_name,
        parameters=sum(c.parameters for c in count(model).values()),
        buffers=sum(buffer.numel() for buffer in model.buffers()),
    )


def build(class_name: str, config: dict[str, Any], device: str = "meta") -> nn.Module:
    """Build the class from a config, without values. Raises ValueError if it rejects the config."""
    from modelbudget.huggingface.construct import config_object, construct

    with torch.device(device), uninitialised():
        return construct(class_name, config_object(class_name, config))


def _witness_of_pair(pair: tuple[str, dict[str, Any]]) -> Witness:
    use_one_core()
    return witness(*pair)
