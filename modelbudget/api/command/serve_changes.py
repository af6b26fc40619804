"""What would make one request fit, where `modelbudget MODEL --serve ACCELERATOR` serves none."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from modelbudget.api.command.notes_of_fit import GGUF, SERVED
from modelbudget.api.command.option_words import repeated
from modelbudget.api.serving import Serving
from modelbudget.catalogue.quantised_copies import FILE_FORMAT
from modelbudget.common.errors import InputError

TIMES_DEVICES = (2, 4, 8, 16, 32, 64)
UTILISATION = (95, 98)
"""Percent of a device's memory that an engine may take where nothing else runs there."""
SMALLER_PASS = {"batched_tokens": 2048, "sampled_requests": 64}
HOST_LAYERS = range(1, 1024)


class ServingChange(NamedTuple):
    """Settings, a number of devices, or the format of a file that llama.cpp serves."""

    settings: Mapping[str, Any] = {}
    devices: int | None = None
    gguf: str | None = None

    @property
    def words(self) -> str:
        """The options of a command that make the change."""
        file = self.gguf and "gguf"
        return repeated(self.settings, devices=self.devices, file=file, format=self.gguf).strip()


Serve = Callable[[ServingChange], Serving]
"""What serves the same model on the same accelerator, but for a change. Raises InputError."""


def what_helps(serving: Serving, serve: Serve) -> list[str]:
    """Return the options with each of which alone a request fits.

    Of each kind of change the least: the most bits, the fewest devices or layers on the host.
    """
    is_llama = serving.run.cache_layout == "cells"
    kinds = _of_llama_cpp(serving, serve) if is_llama else _of_engine(serving)
    first = (
        next(filter(partial(_fits, serve), changes), None) for changes in (*kinds, _shorter(serve))
    )
    return [change.words for change in first if change]


def _of_engine(serving: Serving) -> Iterator[Iterable[ServingChange]]:
    """Yield the changes of each kind, the least first."""
    run, devices = serving.run, serving.devices
    if serving.accelerator.platform == "mps":
        yield [ServingChange(gguf=FILE_FORMAT)]
        return
    yield (ServingChange({"utilisation": n}) for n in UTILISATION if n > run.utilisation)
    yield [ServingChange(SMALLER_PASS)]
    if run.cache_dtype == "dtype":
        yield [ServingChange({"cache_dtype": "fp8"})]
    if run.weights == "dtype":
        yield (ServingChange({"weights": name}) for name in SERVED)
    if serving.replicas > 1:
        yield [ServingChange({"data_parallel": serving.replicas, "expert_parallel": devices})]
    more = [n * devices for n in TIMES_DEVICES]
    yield [
        *(ServingChange(devices=n) for n in more),
        *(ServingChange({"expert_parallel": n}, devices=n) for n in more),
    ]


def _of_llama_cpp(serving: Serving, serve: Serve) -> Iterator[Iterable[ServingChange]]:
    """Yield the changes of each kind of what llama.cpp serves, the least first."""
    if serving.run.cache_dtype == "dtype":
        yield [ServingChange({"cache_dtype": "q8_0"})]
    if not serving.file:
        yield (ServingChange(gguf=name) for name in GGUF)
    elif serving.file in GGUF:
        yield (ServingChange(gguf=name) for name in GGUF[GGUF.index(serving.file) + 1 :])
    for name in ("host_layers", "host_expert_layers"):
        has_room = partial(_fits, serve, where_refused=True)  # more layers than there are
        changes = [ServingChange({name: n}) for n in HOST_LAYERS]
        yield changes[bisect_left(changes, True, key=has_room) :][:1]
    if serving.file and serving.accelerator.platform != "mps":
        yield (ServingChange(devices=n * serving.devices) for n in TIMES_DEVICES[:3])


def _fits(serve: Serve, change: ServingChange, where_refused: bool = False) -> bool:
    """Return whether a request fits with a change."""
    with suppress(InputError):
        return serve(change).fits
    return where_refused


def _shorter(serve: Serve) -> Iterator[ServingChange]:
    """Yield the largest length of one request, if there is any."""
    if longest := serve(ServingChange({"batch": 1})).of_device.largest_length:
        yield ServingChange({"length": longest})
