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
from modelbudget.catalogue.models import Base
from modelbudget.common.mistakes import show
from modelbudget.common.progress import progress
from modelbudget.common.workers import Bound, Failure, spread
from modelbudget.huggingface.classes import translations
from modelbudget.huggingface.offline import transformers
from modelbudget.huggingface.translate import config_of, fields_of
from modelbudget.measure.count import count
from modelbudget.sweep.derive import named_architecture

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
    config = config_of(kind, a)
    try:
        _same_architecture(kind, config, a)
        model = build(kind, config)
    except ValueError as error:
        return Witness(a.digest(), kind, None, None, str(error))
    return Witness(
        a.digest(),
        kind,
        parameters=sum(c.parameters for c in count(model).values()),
        buffers=sum(buffer.numel() for buffer in model.buffers()),
    )


def _same_architecture(kind: str, config: dict[str, Any], a: Architecture) -> None:
    """Raise ValueError if the class with this config differs from the architecture `a`.

    Fields that do not affect parameters may differ (the context length, the width of an MLP that no
    layer has), and so may equivalent spellings.
    """
    fields = fields_of(kind, {"model_type": translations()[kind].model_type} | config)
    there = named_architecture(Base(kind, kind, type(a), fields, {}))
    if _owned(there) == _owned(a):
        return
    mine = a.model_dump()
    differ = {n: value for n, value in there.model_dump().items() if value != mine[n]}
    listed = ", ".join(f"{n} = {show(mine[n])} (there: {show(v)})" for n, v in differ.items())
    raise ValueError(f"{kind} cannot be this architecture: {listed}")


def _owned(a: Architecture) -> dict[str, int]:
    return {name: term.total for name, term in a.parameters(a).items() if term.total}


def build(kind: str, config: dict[str, Any]) -> nn.Module:
    """Build the class from a config on meta. Raises ValueError if it rejects the config."""
    made = getattr(transformers, kind)
    try:
        with torch.device("meta"):
            return made(made.config_class(**config))
    except MemoryError:
        raise
    except Exception as error:  # each class raises its own errors
        reason = " ".join(str(error.__cause__ or error).split())
        raise ValueError(f"{kind} does not accept its config: {reason}") from None


def _witness_of_pair(pair: tuple[Architecture, str]) -> Witness:
    torch.set_num_threads(1)
    return witness(*pair)
