"""Build one layer of each kind and clone its structure for the others.

Constructors take more than half of the time to build a layer of PaLM.
"""

from collections.abc import Callable, Hashable, Iterable
from functools import partial

import torch
from torch import nn


def twins(keys: Iterable[Hashable], construct: Callable[..., nn.Module]) -> nn.ModuleList:
    """Return one module for each key: the first of a key constructed from it, the others cloned."""
    another: dict[Hashable, Callable[[], nn.Module]] = {}
    modules = []
    for key in keys:
        if key in another:
            # Clones have their device: torch need not check each call for a default one.
            with torch._C.DisableTorchFunction():
                modules.append(another[key]())
        else:
            modules.append(construct(key))
            another[key] = twin_of(modules[-1])
    return nn.ModuleList(modules)


def twin_of(module: nn.Module) -> Callable[[], nn.Module]:
    """Return a function that builds a new module with the structure of `module`, uninitialised.

    Each call gives new submodules and new parameters, not yet filled, each with a storage of its
    own on the same device; no state is shared with `module`.

    For modules that hold parameters and submodules once each, and no buffers.
    """
    plain = vars(module).copy()
    # Torch keeps hooks and the like in containers, one of each for every module; most are empty.
    containers = {
        name: value.copy if value else type(value)
        for name, value in plain.items()
        if isinstance(value, dict | set)
    }
    parameters = {
        name: partial(_empty, p.shape, p.dtype, p.device, p.requires_grad)
        for name, p in plain["_parameters"].items()
        if p is not None
    }
    inside = {n: twin_of(m) for n, m in plain["_modules"].items() if m is not None}

    def twin() -> nn.Module:
        state = plain.copy()
        for name, make in containers.items():
            state[name] = make()
        for name, make in parameters.items():
            state["_parameters"][name] = make()
        for name, make in inside.items():
            state["_modules"][name] = make()
        made = object.__new__(type(module))
        object.__setattr__(made, "__dict__", state)
        return made

    return twin


def _empty(shape, dtype, device, requires_grad: bool) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=dtype, device=device), requires_grad)
