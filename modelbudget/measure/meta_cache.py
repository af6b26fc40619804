"""Operations without storage, run once for each shape.

An operation on `meta` only works out the sizes of its results, which for many takes torch a long
way through Python. Layers are alike, so the first one is run and the others replay its sizes.
"""

from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Any

import torch


class Replay:
    """Runs an operation; on `meta`, where the very same was run before, replays its results."""

    def __init__(self):
        self._known: dict[tuple, Callable[[tuple], Any] | None] = {}

    def __call__(self, key: tuple | None, func, args: tuple, kwargs: dict):
        """Results of the operation, whose key is that of `key_of`."""
        if key is None:
            return func(*args, **kwargs)
        inputs = (*args, *kwargs.values())
        if key not in self._known:
            before = _key(inputs), _storages(inputs)
            out = func(*args, **kwargs)
            if not func._schema.is_mutable:
                self._known[key] = _maker(inputs, out)
            elif before == (_key(inputs), _storages(inputs)):
                # It changed values, of which meta has none.
                place = next((i for i, value in enumerate(inputs) if value is out), None)
                self._known[key] = None if place is None else itemgetter(place)
            else:
                self._known[key] = None
            return out
        known = self._known[key]
        return func(*args, **kwargs) if known is None else known(inputs)


def key_of(func, args: tuple, kwargs: dict) -> tuple | None:
    """What the sizes of an operation's results follow from; None where a tensor has storage."""
    try:
        return func, _key(args), _key(tuple(kwargs.items()))
    except _HasStorageError:
        return None


class _HasStorageError(Exception):
    """An argument is not on `meta`: its values may matter."""


def _key(value):
    """What the sizes of results follow from."""
    if isinstance(value, torch.Tensor):
        if not value.is_meta:
            raise _HasStorageError
        return value.shape, value.stride(), value.dtype
    if isinstance(value, tuple | list):
        return tuple(map(_key, value))
    return type(value), value


def _maker(inputs: tuple, out) -> Callable[[tuple], Any] | None:
    """Makes the same results again; None where one shares a storage, or is not a plain tensor."""
    results = out if isinstance(out, tuple | list) else (out,)
    tensors = [result for result in results if result is not None]
    if not all(isinstance(tensor, torch.Tensor) and tensor.is_meta for tensor in tensors):
        return None
    storages = _storages(tensors)
    if len({*storages, *_storages(inputs)}) < len(storages) + len(set(_storages(inputs))):
        return None
    makers = [_maker_of_one(result) for result in results]
    if None in makers:
        return None
    # One tensor and a list of one are different results. Nothing here may keep `out` alive.
    kind = type(out) if isinstance(out, tuple | list) else itemgetter(0)
    return partial(_made, kind, makers)


def _made(kind: Callable[[list], Any], makers: list, _):
    return kind([make() for make in makers])


def _maker_of_one(result: torch.Tensor | None) -> Callable[[], torch.Tensor | None] | None:
    """None where its storage holds more than it shows."""
    if result is None:
        return type(None)
    make = partial(
        torch.empty_strided, result.shape, result.stride(), dtype=result.dtype, device="meta"
    )
    same = make().untyped_storage().nbytes() == result.untyped_storage().nbytes()
    return make if same else None


def _storages(value) -> list[int]:
    """The storage of each tensor in a value."""
    return [tensor.untyped_storage()._cdata for tensor in _tensors(value)]


def _tensors(value):
    """The tensors among the arguments of an operation."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for one in value:
            yield from _tensors(one)
