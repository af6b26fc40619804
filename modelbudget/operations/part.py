"""Parts of a model: a name, parameters, and a function that computes the part.

A part is made by a function that declares its parameters and returns its forward function, as
`__init__` and `forward` of a torch module do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from modelbudget.operations.autograd import make_leaf
from modelbudget.operations.tape import Active, Tensor, empty, stored_in


class Part:
    """A part of a model that can be called. Attributes of its forward function are its own."""

    def __init__(self, path: str, forward: Callable):
        self.path, self.forward = path, forward
        vars(self).update(vars(forward))

    def __call__(self, *args, **kwargs):
        # The arguments are live until the part is done, as in torch's Module.__call__.
        components = Active.tape.components
        components.append(self.path)
        try:
            return self.forward(*args, **kwargs)
        finally:
            components.pop()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{self.path}: no {name}")


def make_part(name: str, make: Callable, *args, **kwargs) -> Part:
    """Make a part: call `make`, which declares parameters under `name` and returns a function."""
    tape = Active.tape
    before, tape.scope = tape.scope, path_of(tape.scope, name)
    n_before = len(tape.parameters)
    try:
        part = Part(tape.scope, make(*args, **kwargs))
    finally:
        tape.scope = before
    if tape.divided is None:
        return part
    return tape.divided.around_part(part, tape.parameters[n_before:])


def make_group(make: Callable[..., Part], *args) -> Part:
    """Make a part that gathers its parameters where several devices have shards of them."""
    tape = Active.tape
    n_before = len(tape.parameters)
    part = make(*args)
    return (
        part if tape.sharded is None else tape.sharded.around_part(part, tape.parameters[n_before:])
    )


def parameter(
    name: str,
    *shape,
    is_trained: bool = True,
    is_adapter: bool = False,
    dtype: str | None = None,
    n_bytes=None,
) -> Tensor:
    """Declare a parameter of the part that is being made; a run may train adapters alone.

    Weights and biases are counted under the name of their part, other parameters under their own.
    `n_bytes`: those of a matrix that is stored in another format than its dtype.
    """
    tape = Active.tape
    component = tape.scope if name in ("weight", "bias") else path_of(tape.scope, name)
    adapter = None if is_adapter else tape.adapter
    is_copied = adapter is not None and adapter.copies(component)
    if is_copied:  # the frozen original stays next to its copy
        original = empty(shape, dtype)
        original.name = component
        tape.parameters.append(original)
        tape.originals[component] = original
    weight = empty(shape, dtype) if n_bytes is None else stored_in(n_bytes, shape)
    weight.name = component
    if is_copied or (is_trained and (adapter is None or adapter.trains(component, name == "bias"))):
        make_leaf(weight)
        weight.storage.is_of_trained_parameter = True
    tape.parameters.append(weight)
    return weight


def path_of(*names: str) -> str:
    return ".".join(name for name in names if name)


class NoProgramError(ValueError):
    """A part of a model, or a setting of a run, has no program."""


class NotComputedError(NoProgramError):
    """Our modules refuse a part or a setting, too, so that nothing measures it."""
