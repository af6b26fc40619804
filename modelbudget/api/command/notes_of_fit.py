"""Notes below the answer of `modelbudget MODEL --fit ACCELERATOR`."""

from contextlib import suppress
from typing import Any

from modelbudget.api.fitting import Fit
from modelbudget.api.model import Model
from modelbudget.common.errors import InputError
from modelbudget.sweeps.device_defaults import why_math

SERVED = "fp8-channel", "awq", "gptq-4bit"
"""Weights that an engine may have, the most bits first."""


def below_capability_8(model: Model, fits: list[Fit], settings: dict[str, Any]) -> list[str]:
    """Return why a device's precision and attention kernel are other than those of newer ones."""
    lines = []
    for fit in fits:
        run, name = fit.run, fit.accelerator.name
        if fit.accelerator.has_flash:
            continue
        architecture, newer = model.with_run(settings)
        if run.dtype != newer.dtype:
            lines.append(f"{name}: dtype {run.dtype}, since its tensor cores have no bfloat16")
        elif "bfloat16" in (run.dtype, run.autocast):
            lines.append(f"{name}: its tensor cores have no bfloat16; allowed: float16")
        if run.attention_kernel == "flash":
            use = "torch has no FlashAttention there; at most: --set attention_kernel=math"
            lines.append(f"{name}: {use}")
        elif run.attention_kernel != newer.attention_kernel:
            why = why_math(architecture, run, has_flash=False) or "not flash: torch has none there"
            lines.append(f"{name}: attention_kernel {run.attention_kernel}, {why}")
    return [*dict.fromkeys(lines)]


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
