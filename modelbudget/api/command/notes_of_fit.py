"""Notes below the answer of `modelbudget MODEL --fit ACCELERATOR`."""

from contextlib import suppress
from typing import Any

from modelbudget.api.fitting import Fit
from modelbudget.api.model import Model
from modelbudget.common.errors import InputError
from modelbudget.sweeps.device_defaults import why_math

SERVED = "fp8-channel", "awq", "gptq-4bit"
"""Weights that an engine may have, the most bits first."""
GGUF = "Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q3_K_M", "Q2_K"
"""Formats of llama.cpp's files, the most bits first."""


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


def served_by_llama_cpp(
    model: Model, name: str, settings: dict[str, Any], fits: list[Fit],
    reserve: str | None, accelerators: str | None,
) -> list[str]:  # fmt: skip
    """Return the file of most bits that llama.cpp has room for, where inference does not fit a Mac.

    As a command that answers.
    """
    is_mac = any(
        of.purpose == "inference" and not of.fits and of.accelerator.platform == "mps"
        for of in fits
    )
    for gguf in GGUF if is_mac and settings.get("weights", "dtype") == "dtype" else ():
        with suppress(InputError):
            found = model.serve(name, settings, 1, reserve, accelerators, gguf=gguf)
            if found.requests >= settings.get("batch", 1):
                how = f"--serve {name} --file gguf --format {gguf}"
                return [f"inference: fits llama.cpp with fewer bits: {how}"]
    return []


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
