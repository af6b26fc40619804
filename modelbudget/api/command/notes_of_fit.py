"""Notes below the answer of `modelbudget MODEL --fit ACCELERATOR`."""

from contextlib import suppress
from typing import Any

from modelbudget.api.fitting import Fit
from modelbudget.api.model import Model
from modelbudget.common.errors import InputError

SERVED = "fp8-channel", "awq", "gptq-4bit"
"""Weights that an engine may have, the most bits first."""


def without_flash(fits: list[Fit]) -> list[str]:
    """Return that torch does not run the attention kernel of the answer on this device."""
    asked = {fit.accelerator.name for fit in fits if fit.run.attention_kernel == "flash"
             and not fit.accelerator.has_flash}  # fmt: skip
    use = "torch has no FlashAttention there; at most: --set attention_kernel=math"
    return [f"{name}: {use}" for name in asked]


def served_in_fewer_bits(
    model: Model, name: str | None, settings: dict[str, Any], devices: int,
    reserve: str | None, accelerators: str | None,
) -> list[str]:  # fmt: skip
    """Return with which weights an engine on several devices has room for the run, if with any."""
    if settings.get("weights", "dtype") != "dtype":
        return []
    released = model.base.model and model.base.model.released_weights
    for weights in filter(None, (released, *SERVED)):
        with suppress(InputError):
            run = {**settings, "weights": weights}
            serving = model.serve(name or "", run, devices, reserve, accelerators)
            if serving.requests >= settings.get("batch", 1):
                how = f"--serve {name} --devices {devices} --weights {weights}"
                return [f"inference: fits an engine with fewer bits: {how}"]
    return []
