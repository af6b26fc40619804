"""A device that a user names, how several share a model, and what torch takes there by default."""

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from modelbudget.api.chosen_model import ChosenModel, Settings, fields_of
from modelbudget.api.class_answers import run_of
from modelbudget.architecture.record import MAX_COUNT
from modelbudget.architecture.run_values import MESH, bytes_of
from modelbudget.catalogue.accelerators import Accelerator, all_accelerators, named_or_sized
from modelbudget.catalogue.memory_margins import Margins, memory_margins
from modelbudget.common.byte_sizes import EXAMPLES, size
from modelbudget.common.errors import InputError
from modelbudget.common.paths import CONFIGS
from modelbudget.common.validation_messages import show
from modelbudget.sweeps.device_defaults import device_defaults, where

WITH_SHARDS = {"data_parallel", "context_parallel", "expert_parallel"}
"""Sizes of a mesh among whose devices `zero` divides parameters and states."""


class ChosenDevice(NamedTuple):
    """Devices of one kind that a user names, and the bytes of each that are to hold no tensors.

    `name` is one of `accelerators`, a file, or of the shipped configs/accelerators.yaml, with or
    without its memory: h100, h100-80gb and rtx-4090 have the bytes that their driver reports. Or it
    is a size: 24GB has 24 · 10⁹ bytes, 24GiB 24 · 2³⁰. `reserve`: None for that of the data file.
    """

    name: str
    devices: int = 1
    reserve: str | int | None = None
    accelerators: str | Path | None = None

    def accelerator(self) -> Accelerator:
        """Return the accelerator. Raises InputError with all names."""
        file = self.accelerators
        known = all_accelerators(Path(file) if file is not None else CONFIGS / "accelerators.yaml")
        try:
            return named_or_sized(self.name, known)
        except ValueError as error:
            whose = f"{file}: " if file is not None else ""
            raise InputError([f"`accelerator={self.name}`: {whose}{error}"]) from None

    def accelerator_with(self, model: ChosenModel, fields: Mapping[str, Any]) -> Accelerator:
        """Return the accelerator on which a model's parts that are no language model take room.

        Their weights have the dtype of the run with these fields.
        """
        device = self.accelerator()
        if not model.base.left_out:
            return device
        return device.with_occupied(model.base.left_out * bytes_of(model.with_run(fields)[1].dtype))

    def margins_on(self, device: Accelerator) -> Margins:
        """Return the margins of an accelerator. Raises InputError if the reserve is no size."""
        n_bytes = size(self.reserve) if isinstance(self.reserve, str) else self.reserve
        if isinstance(self.reserve, str) and (n_bytes is None or n_bytes > MAX_COUNT):
            no_size = f"`reserve={show(self.reserve)}`: no size in bytes; allowed: {EXAMPLES}"
            raise InputError([no_size])
        return memory_margins().on(device.platform, n_bytes)

    def options(self) -> dict[str, Any]:
        """Return what a command gives with the name."""
        return {"devices": self.devices, "reserve": self.reserve, "accelerators": self.accelerators}


def sharing(devices: int, training: bool, chosen: Mapping[str, Any]) -> dict[str, int]:
    """Return the settings by which several devices share a model, if `chosen` has no others.

    On the devices that chosen sizes of the mesh leave: in training shards of `zero: 3`, in
    inference shares of `tensor_parallel`. Raises InputError if these do not divide the devices.
    """
    if devices == 1:
        return {}
    left = "data_parallel" if training else "tensor_parallel"
    of_mesh = {name: chosen.get(name) for name in MESH}
    sizes = {name: n for name, n in of_mesh.items() if type(n) is int and n > 1}
    n_left, left_over = divmod(devices, prod(sizes.values()))
    if left_over:
        by = ", ".join(f"{name} = {size}" for name, size in sizes.items())
        multiple = f"a multiple of {prod(sizes.values())} ({by})"
        raise InputError([f"`devices={devices}`: allowed: {multiple}"])
    if n_left > 1 and left not in chosen:
        sizes = {left: n_left, **sizes}
    is_sharded = training and not sizes.keys().isdisjoint(WITH_SHARDS)
    return {"zero": 3, **sizes} if is_sharded else sizes


def n_sharing(shared: Mapping[str, int]) -> int:
    """Return how many devices share a model by such settings."""
    return prod(size for name, size in shared.items() if name in MESH)


def settings_on(
    device: Accelerator, model: ChosenModel, settings: Settings, training: bool
) -> dict[str, Any]:
    """Return settings with the precision, kernel and optimizer that torch takes on a device.

    Of those that nobody has set, where the default is not that of CUDA from 8.0 on.
    """
    fields = fields_of(settings)
    if (platform := where(device, training)) == "cuda":
        return fields
    base = model.base
    is_set = {*base.fields, *base.derive, *model.chosen, *fields}
    of_cuda = device_defaults(base.family)
    for name, default in device_defaults(base.family, platform).items():
        architecture, run = run_of(model, fields)
        values = vars(architecture) | vars(run)
        is_default = name not in is_set and getattr(run, name) == of_cuda[name](values)
        if is_default and (value := default(values)) != getattr(run, name):
            fields[name] = value
    return fields
