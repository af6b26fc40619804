"""Parameter counts of `transformers` classes, counted like our own modules.

Classes of the installed package are built on meta from a config. Nothing is downloaded, and no code
of a model page is run.
"""

import logging
import os
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import nn

from modelbudget.architecture.base import Architecture
from modelbudget.common.progress import progress
from modelbudget.common.workers import Bound, Failure, spread
from modelbudget.huggingface.construct import config_object, construct
from modelbudget.measurement.count import count
from modelbudget.measurement.processor import use_one_core
from modelbudget.measurement.reference.config import class_config

log = logging.getLogger(__name__)
TIMEOUT_S = 600
"""Seconds after which counting a class is given up."""


BOUND = Bound(2**32, "counting a class of transformers")


class Witness(NamedTuple):
    """Unique parameters and elements of buffers of a class for one architecture.

    Both are None if the class cannot be that architecture or if counting it `failed`; `refusal`
    is the reason.
    """

    architecture: str
    kind: str
    parameters: int | None
    buffers: int | None
    refusal: str | None = None
    failed: bool = False


def witnesses(wanted: Iterable[tuple[Architecture, str]], n_workers: int) -> list[Witness]:
    """Count the class of each distinct architecture, in several processes.

    If a process crashes or hangs, only its class is lost.
    """
    distinct = list({(a.digest(), kind): (a, kind) for a, kind in wanted}.values())
    n_workers = max(1, min(n_workers, os.cpu_count() or 1, len(distinct) // 8))
    log.info("%d classes, %d processes", len(distinct), n_workers)
    outcomes = spread(_witness_of_pair, distinct, n_workers, TIMEOUT_S, BOUND)
    found = dict(progress(outcomes, len(distinct)))
    return [
        Witness(a.digest(), kind, None, None, f"not counted: {outcome.reason}", failed=True)
        if isinstance(outcome := found[i], Failure)
        else outcome
        for i, (a, kind) in enumerate(distinct)
    ]


def witness(a: Architecture, kind: str) -> Witness:
    """Count the class `kind` with the config of the architecture `a`."""
    try:
        model = build(kind, class_config(kind, a))
    except ValueError as error:
        return Witness(a.digest(), kind, None, None, str(error))
    return Witness(
        a.digest(),
        kind,
        parameters=sum(c.parameters for c in count(model).values()),
        buffers=sum(buffer.numel() for buffer in model.buffers()),
    )


def build(kind: str, config: dict[str, Any]) -> nn.Module:
    """Build the class from a config on meta. Raises ValueError if it rejects the config."""
    with torch.device("meta"):
        return construct(kind, config_object(kind, config))


def _witness_of_pair(pair: tuple[Architecture, str]) -> Witness:
    use_one_core()
    return witness(*pair)
