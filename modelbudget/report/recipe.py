"""The run of an act in words, the devices whose memory its drawings have as lines, and its bars."""

from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Any

from modelbudget.catalogue.accelerators import Accelerator, accelerators
from modelbudget.common.paths import ACCELERATORS
from modelbudget.report.chart_specs import variable_of_group
from modelbudget.report.charts.format import count

DEVICES = ("RTX 4090", "H100")
OPTIMIZERS = {"adamw": "AdamW", "sgd": "SGD"}
KERNELS = {"flash": "FlashAttention", "efficient": "memory-efficient attention"}


def device_lines() -> list[Accelerator]:
    """Return the devices whose memory is drawn as a line."""
    by_name = {accelerator.name: accelerator for accelerator in accelerators(ACCELERATORS)}
    return [by_name[name] for name in DEVICES]


def recipe(label: str, run: Mapping[str, Any]) -> str:
    """Return model, precision, optimizer, attention, batch and length of a run in one line."""
    update = {"foreach": "all tensors at once", "fused": "fused"}
    how = next((text for name, text in update.items() if run[name]), "one tensor after another")
    n = run["data_parallel"]
    parts = [
        label,
        precision(run),
        f"{OPTIMIZERS.get(run['optimizer'], run['optimizer'])}, {how}",
        KERNELS.get(run["attention_kernel"], f"attention: {run['attention_kernel']}"),
        f"{count(run['batch'])} × {count(run['length'])} tokens"
        + (f" on each of {count(n)} devices" if n > 1 else ""),
    ]
    return " · ".join(parts)


def precision(run: Mapping[str, Any]) -> str:
    """Return the dtype of parameters, gradients and moments in words."""
    if run["master_weights"]:
        return f"{run['dtype']} with float32 master weights"
    if run["autocast"] != "none":
        return f"{run['dtype']}, autocast to {run['autocast']}"
    return f"{run['dtype']} throughout"


def each(n_bytes: int, n: int) -> str:
    """Return bytes a parameter, with one digit after the point or two below one byte."""
    value = n_bytes / n
    return "0" if value < 0.005 else f"{value:.{1 if value >= 1 else 2}f}".removesuffix(".0")


def bar(
    parts: Mapping[str, int], most: int, more: Callable[[int], str] = lambda _: ""
) -> list[dict]:
    """Return the pieces of a bar of bytes by group, with their places in percent of the most bytes.

    `more` follows the bytes in the title of a piece.
    """
    starts = accumulate((100 * n / most for n in parts.values()), initial=0.0)
    return [
        {"class": variable_of_group(group), "title": f"{group}: {count(n)} bytes{more(n)}",
         "x": f"{x:.3f}", "width": f"{100 * n / most:.3f}"}
        for x, (group, n) in zip(starts, parts.items(), strict=False)
    ]  # fmt: skip
