"""The run of an act: in words, predicted where no package measures it, and as bars with devices."""

from collections.abc import Mapping
from typing import Any

import polars as pl

from modelbudget.architecture.base import Architecture
from modelbudget.catalogue.accelerators import Accelerator, accelerators
from modelbudget.common.number_format import count
from modelbudget.common.paths import ACCELERATORS
from modelbudget.predict.predict import KEYS, predict
from modelbudget.report.charts.peak import NEEDS, peak_parts

DEVICES = ("RTX 4090", "H100")
OPTIMIZERS = {"adamw": "AdamW", "sgd": "SGD"}
KERNELS = {"flash": "FlashAttention", "efficient": "memory-efficient attention"}

STATES = {
    "parameters": "parameter_bytes",
    "optimizer states": "optimizer_bytes",
    "gradients": "gradient_bytes",
}
"""What is live from step to step."""


def device_lines() -> list[Accelerator]:
    """Return the devices whose memory is drawn as a line."""
    return [device for device in accelerators(ACCELERATORS) if device.name in DEVICES]


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


def predicted_parts(points: pl.DataFrame, settings: Mapping[str, object]) -> pl.DataFrame:
    """Return the parts of the peaks of the first of these points with other settings.

    Columns as those of `peak_parts`; no rows without a formula. The phase of an optimizer whose
    temporary tensors are not known has none.
    """
    point = points.head(1).with_columns(
        **{name: pl.lit(value) for name, value in settings.items()}, run=pl.lit("predicted alone")
    )
    predicted = _predicted(point)
    parts = peak_parts(predicted)
    if parts.is_empty() or "optimizer" in parts["phase"]:
        return parts
    sums = dict(predicted.group_by("quantity").agg(pl.col("predicted").sum()).iter_rows())
    values = {group: sums[name] for group, name in STATES.items()}
    kept = pl.DataFrame(
        {"group": [*values], "value": [*values.values()], "phase": "optimizer",
         "peak": sum(values.values()), "worst": parts["worst"][0]}
    )  # fmt: skip
    return pl.concat([parts, kept], how="diagonal")


def parts_of_model(points: pl.DataFrame, a: Architecture) -> pl.DataFrame:
    """Return the parts of the largest peak of each of these points for another architecture."""
    fields = {name: pl.lit(value, points.schema[name]) for name, value in a.model_dump().items()}
    changed = points.with_columns(**fields, architecture=pl.lit(a.digest()))
    return peak_parts(_predicted(changed)).filter(pl.col("peak") == pl.col("worst"))


def _predicted(points: pl.DataFrame) -> pl.DataFrame:
    """Return what is known of the parts of peaks, as if it were measured."""
    table = predict(points, sorted(NEEDS)).drop_nulls("predicted")
    of_point = points.select(*KEYS, "point", "label")
    return table.join(of_point, on=KEYS).with_columns(measured=pl.col("predicted"))
