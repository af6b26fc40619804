"""Operations without storage, run once for each shape.

An operation on `meta` only works out the sizes of its results, which for many takes torch a long
way through Python. Layers are alike, so the first one is run and the others replay its sizes.
"""

from functools import partial

import torch


class Replay:
    """Runs an operation; on `meta`, where the very same was run before, replays its results."""

    def __init__(self):
        self._known: dict[tuple, tuple[type, list] | None] = {}

    def __call__(self, func, args: tuple, kwargs: dict):
        try:
            key = (func, _key(args), _key(tuple(kwargs.items())))
        except _HasStorageError:
            return func(*args, **kwargs)
        if key not in self._known:
            out = func(*args, **kwargs)
            recipe = None if func._schema.is_mutable else _recipe(args, out)
            self._known[key] = recipe and (type(out), recipe)
            return out
        known = self._known[key]
        if known is None:
            return func(*args, **kwargs)
        kind, recipe = known
        results = [make() for make in recipe]
        # One tensor alone and a list of one are not the same to those who asked.
        return kind(results) if issubclass(kind, tuple | list) else results[0]


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


def _recipe(args: tuple, out) -> list | None:
    """How to make each result anew; None where one shares a storage, or is not a plain tensor."""
    results = out if isinstance(out, tuple | list) else (out,)
    if not all(isinstance(result, torch.Tensor) and result.is_meta for result in results):
        return None
    storages = [tensor.untyped_storage() for tensor in (*results, *_tensors(args))]
    if len({storage._cdata for storage in storages[: len(results)]}) < len(results):
        return None
    taken = {storage._cdata for storage in storages[len(results) :]}
    recipe = []
    for result, storage in zip(results, storages, strict=False):
        make = partial(
            torch.empty_strided, result.shape, result.stride(), dtype=result.dtype, device="meta"
        )
        if storage._cdata in taken or make().untyped_storage().nbytes() != storage.nbytes():
            return None
        recipe.append(make)
    return recipe


def _tensors(value):
    """The tensors among the arguments of an operation."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for one in value:
            yield from _tensors(one)
