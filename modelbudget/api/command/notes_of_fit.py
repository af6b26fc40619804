"""Notes below the answer of `modelbudget MODEL --fit ACCELERATOR`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from modelbudget.api.chosen_device import ChosenDevice
from modelbudget.api.class_answers import run_of
from modelbudget.api.command.option_words import repeated
from modelbudget.api.fitting import Fit
from modelbudget.api.model import Model
from modelbudget.architecture.constraint import first_mistake
from modelbudget.architecture.run_adapter import BITSANDBYTES
from modelbudget.common.errors import InputError
from modelbudget.sweeps.device_defaults import refused_on, where, why_math

if TYPE_CHECKING:
    from modelbudget.api.trainers import Trained

SERVED = "fp8-channel", "awq", "gptq-4bit"
"""Weights that an engine may have, the most bits first."""
GGUF = "Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q3_K_M", "Q2_K"
"""Formats of llama.cpp's files, the most bits first."""


OF_METAL = "Metal's kernel, without scores in memory either: read from torch's source, not on a Mac"

OF_XLA = (
    "torch_xla compiles the step and XLA plans its memory, which is not known here: the peak is "
    "that of torch's operations one by one; weights, gradients, optimizer states and cache are as "
    "listed"
)


OF_BITSANDBYTES = {
    "mps": "bitsandbytes has kernels for Metal (macOS 26, torch 2.10 to 2.12), elsewhere "
    "operations of torch, which need more for each product; neither was run here",
    "xla": "bitsandbytes lists no TPU among its devices",
}
"""Platform → what bitsandbytes has there for its formats: its source at 95f9af3,
backends/mps/ops.py and `supported_torch_devices`.
"""


def other_than_cuda(
    model: Model, fits: Sequence[Fit | Trained], settings: dict[str, Any]
) -> list[str]:
    """Return why a device's settings are other than those of CUDA, capability 8.0 or more."""
    lines = []
    for fit in fits:
        if fit.accelerator is None:
            continue
        run, name = fit.run, fit.accelerator.name
        device = where(fit.accelerator, fit.purpose == "training")
        if device == "cuda":
            continue
        architecture, on_cuda = run_of(model, settings)
        kernel = f"{name}: attention_kernel {run.attention_kernel}"
        if run.dtype != on_cuda.dtype:
            lines.append(f"{name}: dtype {run.dtype}, since its tensor cores have no bfloat16")
        elif device == "below_8" and "bfloat16" in (run.dtype, run.autocast):
            lines.append(f"{name}: its tensor cores have no bfloat16; allowed: float16")
        conditions = refused_on(type(architecture), device).get(run.attention_kernel, [])
        if refused := first_mistake(conditions, vars(architecture) | vars(run)):
            lines.append(f"{name}: {refused}; at most: --set attention_kernel=math")
        elif run.attention_kernel != on_cuda.attention_kernel:
            why = why_math(architecture, run, device) or "not flash: torch has none there"
            lines.append(f"{kernel}, {why}")
        elif device == "mps_inference" and run.attention_kernel in ("flash", "efficient"):
            lines.append(f"{kernel} in {fit.purpose} stands for {OF_METAL}")
        if device == "xla":
            lines.append(f"{name}: {OF_XLA}")
        if fit.purpose == "training" and run.foreach != on_cuda.foreach:
            lines.append(f"{name}: foreach false, torch's default there")
        if (platform := fit.accelerator.platform) not in OF_BITSANDBYTES:
            continue
        if run.weights in BITSANDBYTES.split():
            lines.append(f"{name}: weights {run.weights}: {OF_BITSANDBYTES[platform]}")
        # Its optimizers of 32 bits are operations of torch there (backends/default/ops.py).
        has_kernels = run.optimizer.startswith("paged-") or run.optimizer.endswith("-8bit")
        if has_kernels and fit.purpose == "training":
            allowed = "adamw, or another without 8-bit or paged states"
            lines.append(f"{name}: optimizer {run.optimizer}: no kernels there; allowed: {allowed}")
    return [*dict.fromkeys(lines)]


def served_by_engine(
    model: Model, fits: list[Fit], device: ChosenDevice, settings: dict[str, Any]
) -> list[str]:
    """Return how an engine has room where inference does not fit, if it has any.

    With the same weights, since it reads a long prompt in parts, or with fewer bits if none are
    set: on several devices, or of llama.cpp on a Mac.
    """
    fit = next((fit for fit in fits if fit.purpose == "inference" and not fit.fits), None)
    chosen = settings.get("weights", "dtype")
    is_mac = fit is not None and fit.accelerator.platform == "mps"
    if fit is None or (is_mac and chosen != "dtype"):
        return []
    engine, formats = ("llama.cpp", [*GGUF]) if is_mac else ("an engine", [chosen])
    released = model.base.released_weights
    if fit.devices > 1 and chosen == "dtype" and not is_mac:
        formats += [released, *SERVED] if released else SERVED
    for weights in formats:
        as_set = is_mac or (weights == chosen and not released)
        run = settings if as_set else {**settings, "weights": weights}
        gguf = weights if is_mac else None
        with suppress(InputError):
            serving = model.serve(device.name, run, **device.options(), gguf=gguf)
            if serving.requests >= settings.get("batch", 1):
                by = ", which reads a prompt in parts" if weights == chosen else " with fewer bits"
                file = {"file": "gguf", "format": gguf} if gguf else {}
                words = repeated(run, serve=device.name, **file, **device.options())
                return [f"inference: fits {engine}{by}:{words}"]
    return []
