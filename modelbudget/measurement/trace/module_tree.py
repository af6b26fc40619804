"""Module trees: the children of a module, down to the shape of every tensor."""

import math
import os
from collections.abc import Callable
from functools import partial
from itertools import groupby
from typing import Any

from torch import nn

from modelbudget.architecture.base import Architecture
from modelbudget.common.workers import Bound, Failure, spread
from modelbudget.measurement.build import build
from modelbudget.measurement.process.device import use_one_core
from modelbudget.modules.initialise import uninitialised


def tree(model: nn.Module) -> dict:
    """Return a module and its children as plain data, read from torch alone.

    Keys: name (in its parent), kind (class), times (number of equal numbered siblings folded into
    this one), tensors, parameters (of one instance, children included), parts (children). Keys of a
    tensor: name, shape, parameters, shared_with (path of the same tensor if it came before; then
    it has no parameters of its own).
    """
    return _node(model, "", "", {})


def _node(module: nn.Module, name: str, path: str, owners: dict[nn.Parameter, str]) -> dict:
    tensors = [
        _tensor(parameter, key, f"{path}{key}", owners)
        for key, parameter in module._parameters.items()
        if parameter is not None
    ]
    children = module.named_children() if module._modules else ()
    parts = _folded([_node(part, key, f"{path}{key}.", owners) for key, part in children])
    in_tensors = sum(tensor["parameters"] for tensor in tensors)
    return {
        "name": name,
        "kind": type(module).__name__,
        "times": 1,
        "tensors": tensors,
        "parameters": in_tensors + sum(part["times"] * part["parameters"] for part in parts),
        "parts": parts,
    }


def _tensor(parameter: nn.Parameter, name: str, path: str, owners: dict) -> dict:
    """Describe a tensor; the first place where a Parameter is registered owns it."""
    owner = owners.setdefault(parameter, path)
    shape = list(parameter.shape)
    return {
        "name": name,
        "shape": shape,
        "parameters": math.prod(shape) if owner == path else 0,
        "shared_with": None if owner == path else owner,
    }


def _folded(parts: list[dict]) -> list[dict]:
    """Fold consecutive numbered siblings of equal content into one part."""
    runs = [list(run) for _, run in groupby(parts, key=_content)]
    return [
        run[0] | {"name": f"{run[0]['name']} … {run[-1]['name']}", "times": len(run)}
        if len(run) > 1
        else run[0]
        for run in runs
    ]


def _content(part: dict) -> dict:
    """Return a part without its name if that is a number."""
    return part | {"name": ""} if part["name"].isdecimal() else part


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
