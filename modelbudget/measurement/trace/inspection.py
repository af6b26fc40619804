"""Inspection of the modules of many models on meta; a model that cannot be built fails alone."""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from modelbudget.architecture.base import Architecture
from modelbudget.common.workers import Bound, Failure, spread
from modelbudget.measurement.build import build
from modelbudget.measurement.process.processor import use_one_core
from modelbudget.modules.initialise import uninitialised

BOUND = Bound(2**32, "a module tree")


def inspect(
    look: Callable[[nn.Module], Any], models: dict[str, tuple[Architecture, int]], n_workers: int
) -> dict[str, Any]:
    """Return `look(module)` of each model by name; see `of_architectures`."""
    return of_architectures(partial(_inspect, look), models, n_workers)


def of_architectures(
    work: Callable[[Architecture], Any], models: dict[str, tuple[Architecture, int]], n_workers: int
) -> dict[str, Any]:
    """Return `work(architecture)` of each model by name.

    `models` has an architecture and a time limit in seconds for each name. If `work` raises, ends
    its process or takes longer, the result is {"failure": the reason}.
    """
    n_workers = max(1, min(n_workers, os.cpu_count() or 1, len(models) // 8))
    by_name = {}
    with uninitialised():
        for timeout_s in {timeout_s for _, timeout_s in models.values()}:
            names = [name for name, (_, allowed) in models.items() if allowed == timeout_s]
            architectures = [models[name][0] for name in names]
            outcomes = spread(work, architectures, n_workers, timeout_s, BOUND)
            for number, outcome in outcomes:
                has_failed = isinstance(outcome, Failure)
                by_name[names[number]] = {"failure": outcome.reason} if has_failed else outcome
    return {name: by_name[name] for name in models}


def _inspect(look: Callable[[nn.Module], Any], architecture: Architecture) -> Any:
    use_one_core()
    return look(build(architecture, "meta", "float32"))
