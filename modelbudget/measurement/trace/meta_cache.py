"""Cache of operations on meta, by the shapes of their arguments.

An operation on meta only computes the shapes of its results, in many cases through slow Python code
of torch. Layers and models repeat the same operations: those of the first run, those of the others
are replayed.
"""

from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import torch

META = torch.device("meta")
MOST_SHARED = 20_000
_shared: dict[tuple, "_Known"] = {}
"""What torch's own operations gave in earlier traces of this process, at most MOST_SHARED."""


class Replay:
    """Runs an operation, or replays its results if the same one has run on meta before.

    `cost(func, args, kwargs, out)` is a count of the caller's, such as FLOPs. It depends on shapes
    only, so it is replayed too: also for other callers with the same `cost`.
    """

    def __init__(self, cost: Callable[..., int | None]):
        self._cost = cost
        self._known: dict[tuple, _Known] = {}

    def __call__(self, func, args: tuple, kwargs: dict) -> tuple[Any, int | None]:
        """Return the results of the operation and its cost."""
        inputs = (*args, *kwargs.values()) if kwargs else args
        try:
            # OpOverload computes its hash in Python, and lives as long as torch does.
            key = id(func), tuple(kwargs), _key(inputs)
        except _HasStorageError:
            out = func(*args, **kwargs)
            return out, self._cost(func, args, kwargs, out)
        known = self._known.get(key)
        if known is None:
            # Operations of others may end with their library, and their arguments with a group.
            is_shared = func.namespace == "aten"
            of_all = (self._cost, key)
            known = _shared.get(of_all) if is_shared else None
            if known is None:
                out, make = _run(func, args, kwargs, inputs)
                known = self._known[key] = _Known(make, self._cost(func, args, kwargs, out))
                if is_shared:
                    if len(_shared) >= MOST_SHARED:
                        _shared.clear()
                    _shared[of_all] = known
                return out, known.cost
            self._known[key] = known
        if known.make is None:
            return func(*args, **kwargs), known.cost
        return known.make(inputs), known.cost


class _Known(NamedTuple):
    """An operation that has run: a function that creates its results, if possible, and its cost."""

    make: Callable[[tuple], Any] | None
    cost: int | None


def _run(func, args: tuple, kwargs: dict, inputs: tuple) -> tuple[Any, Callable | None]:
    """Run an operation; return its results and, if possible, a function that creates them again."""
    if not func._schema.is_mutable:
        out = func(*args, **kwargs)
        return out, _maker(inputs, out)
    before = _key(inputs), _storages(inputs)
    out = func(*args, **kwargs)
    place = next((i for i, value in enumerate(inputs) if value is out), None)
    if before != (_key(inputs), _storages(inputs)):
        return out, None
    # In-place: only values change, which meta does not have. Of lists torch returns nothing.
    if out is None:
        return out, lambda _: None
    return out, None if place is None else itemgetter(place)


class _HasStorageError(Exception):
    """An argument is not on meta, so its values may matter."""


def _key(values: tuple | list) -> tuple:
    """Return what determines the shapes of an operation's results."""
    parts: list[tuple] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            if not value.is_meta:
                raise _HasStorageError
            parts.append((value.shape, value.stride(), value.dtype))
        elif isinstance(value, tuple | list):
            parts.append(_key(value))
        else:
            parts.append((type(value), value))
    return tuple(parts)


def _maker(inputs: tuple, out) -> Callable[[tuple], Any] | None:
    """Return a function that creates equal results; None if one shares storage or is a subclass."""
    results = out if isinstance(out, tuple | list) else (out,)
    tensors = [result for result in results if result is not None]
    if not all(isinstance(tensor, torch.Tensor) and tensor.is_meta for tensor in tensors):
        return None
    storages = _storages(tensors)
    if len({*storages, *_storages(inputs)}) < len(storages) + len(set(_storages(inputs))):
        return None
    makers = [make for result in results if (make := _maker_of_tensor(result))]
    if len(makers) < len(results):
        return None
    # Preserve the output type: a tensor is not a list of one. Nothing here may keep `out` alive.
    if isinstance(out, tuple | list):
        container: Callable[[list], Any] = type(out)
        return lambda _: container([make() for make in makers])
    (only,) = makers
    return lambda _: only()


def _maker_of_tensor(result: torch.Tensor | None) -> Callable[[], torch.Tensor | None] | None:
    """Return a function that creates an equal tensor; None if its storage is larger than it."""
    if result is None:
        return type(None)
    make = partial(
        torch.empty_strided, result.shape, result.stride(), dtype=result.dtype, device=META
    )
    same = make().untyped_storage().nbytes() == result.untyped_storage().nbytes()
    return make if same else None


def _storages(value) -> list[int]:
    """Return the storage of each tensor in a value."""
    return [tensor.untyped_storage()._cdata for tensor in _tensors(value)]


def _tensors(value):
    """Yield the tensors among the arguments of an operation."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors(item)
