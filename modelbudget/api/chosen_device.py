"""A device that a user names, how several share a model, and what torch takes there by default."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelbudget.architecture.record import MAX_COUNT
from modelbudget.architecture.run_values import bytes_of
from modelbudget.catalogue.accelerators import Accelerator, all_accelerators, named_or_sized
from modelbudget.common.byte_sizes import EXAMPLES, size
from modelbudget.common.errors import InputError
from modelbudget.common.paths import CONFIGS
from modelbudget.common.validation_messages import show

if TYPE_CHECKING:
    from modelbudget.api.chosen_model import ChosenModel, Settings


def reserve_of(reserve: str | int | None) -> int | None:
    """Return a reserve in bytes; None for that of the data file. Raises InputError."""
    if reserve is None or (type(reserve) is int and reserve >= 0):
        return reserve
    n_bytes = size(reserve) if isinstance(reserve, str) else None
    if n_bytes is None or n_bytes > MAX_COUNT:
        raise InputError([f"--reserve {show(reserve)}: no size in bytes; allowed: {EXAMPLES}"])
    return n_bytes


def accelerator(name: str, file: str | Path | None = None, option: str = "--fit") -> Accelerator:
    """Return an accelerator by its name, with or without its memory, or by a size.

    h100, h100-80gb and rtx-4090 have the bytes that their driver reports; 24GB has 24 · 10⁹, 24GiB
    24 · 2³⁰. Names are those of `file`, or of the shipped configs/accelerators.yaml. Raises
    InputError with the option that gave it and all names.
    """
    known = all_accelerators(Path(file) if file is not None else CONFIGS / "accelerators.yaml")
    try:
        return named_or_sized(name, known)
    except ValueError as error:
        whose = f"{file}: " if file is not None else ""
        raise InputError([f"{option} {name}: {whose}{error}"]) from None


def sharing(devices: int, training: bool) -> dict[str, int]:
    """Return the settings by which several devices share a model, if none is chosen.

    In training shards of `zero: 3`; in inference shares of `tensor_parallel`.
    """
    if devices == 1:
        return {}
    return {"zero": 3, "data_parallel": devices} if training else {"tensor_parallel": devices}


def left_out_bytes(model: ChosenModel, chosen: Mapping[str, Any]) -> int:
    """Return the weights, in the run's dtype, of the parts of a file that are no language model."""
    if not model.base.left_out:
        return 0
    return model.base.left_out * bytes_of(model.with_run(chosen)[1].dtype)


def settings_on(
    device: Accelerator, model: ChosenModel, settings: Settings, training: bool
) -> dict[str, Any]:
    """Return settings with the precision, kernel and optimizer that torch takes on a device.

    Of those that nobody has set, where the default is not that of CUDA from 8.0 on.
    """
    from modelbudget.api.chosen_model import fields_of
    from modelbudget.api.class_answers import run_of
    from modelbudget.sweeps.device_defaults import device_defaults, where

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
