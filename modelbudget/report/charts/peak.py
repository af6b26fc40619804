"""Peak memory of training and of inference: its composition by phase, and what it fits on."""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import Any

import polars as pl

from modelbudget.catalogue.accelerators import Accelerator
from modelbudget.common.number_format import percent, si_bytes, times
from modelbudget.components.groups import MEMORY, group_of
from modelbudget.report.charts import theme
from modelbudget.report.charts.bar_chart import stacked_bars
from modelbudget.report.charts.chart_tables import SweepTables, named_ends

STATES = ("parameter_bytes", "optimizer_bytes", "gradient_bytes", "activation_bytes")
PEAK = "peak_training_bytes"
NEEDS = frozenset((*STATES, PEAK))
PARTS: dict[str, Any] = {
    "point": pl.String, "label": pl.String, "phase": pl.String, "group": pl.String,
    "rank": pl.Int64, "value": pl.Int64, "peak": pl.Int64, "worst": pl.Int64,
}  # fmt: skip
"""Columns of parts of peaks."""
Values = dict[str, dict[str, int]]
"""Measured values of a point by quantity and component."""
PHASES = {"forward_backward": "backward", "optimizer": "optimizer"}
"""Phases of the second step, in which the optimizer state is in memory, and their labels."""
MOST_NAMED = 6
"""Up to this number of models are named in a sentence."""


def peak_parts(comparison: pl.DataFrame) -> pl.DataFrame:
    """Return one row for each point × phase × part of the phase's peak.

    Columns: point, label, phase, group, rank (position in the stack), value (bytes), peak (of the
    phase), worst (largest peak of all phases). No gradient exists when the backward pass begins, so
    everything that it needs beyond the saved activations, gradients included, is `temporary`.
    Values are measured. Points with a missing quantity are left out.
    """
    return of_points(comparison, NEEDS, _parts_of)


def of_points(
    comparison: pl.DataFrame,
    needs: Collection[str],
    parts_of: Callable[[Values], Mapping[str, Mapping[str, int]]],
) -> pl.DataFrame:
    """Return the rows of `peak_parts` of each point in which all of `needs` are measured.

    `parts_of` takes a point's values of these quantities, and returns the parts of each phase.
    """
    rows = []
    for (point, label), table in comparison.filter(
        pl.col("quantity").is_in(list(needs)), pl.col("measured").is_not_null()
    ).group_by("point", "label", maintain_order=True):
        values: Values = defaultdict(dict)
        for quantity, component, n in table.select("quantity", "component", "measured").iter_rows():
            values[quantity][component] = n
        phases = parts_of(values) if len(values) == len(needs) else {}
        peaks = {phase: sum(parts.values()) for phase, parts in phases.items()}
        rows += [
            {"point": point, "label": label, "phase": phase, "group": group, "rank": rank,
             "value": parts[group], "peak": peaks[phase], "worst": max(peaks.values())}
            for phase, parts in phases.items()
            for rank, group in enumerate(MEMORY)
            if parts.get(group)
        ]  # fmt: skip
    return pl.DataFrame(rows, PARTS)


def _parts_of(values: Values) -> dict[str, dict[str, int]]:
    parameters, states, gradients, saved = (sum(values[name].values()) for name in STATES)
    of_head = (n for name, n in values["activation_bytes"].items() if group_of(name) == "head")
    logits = sum(of_head)
    always = {"parameters": parameters, "optimizer states": states}
    there = {
        "forward_backward": always | {"activations": saved - logits, "logits and loss": logits},
        "optimizer": always | {"gradients": gradients},
    }
    return {
        phase: parts | {"temporary": values[PEAK][f"second.{phase}"] - sum(parts.values())}
        for phase, parts in there.items()
        if f"second.{phase}" in values[PEAK]  # the optimizer's temporary tensors may not be known
    }


def of_sweep(tables: SweepTables) -> dict[str, theme.Layers]:
    """Draw the peak of each listed model in both phases of training, and in prefill and decode.

    Parts are shares of the larger peak.
    """
    charts = {}
    for name, needs, parts_of, title, finding, phases in KINDS if tables.is_list else ():
        parts = of_points(tables.comparison, needs, parts_of)
        if not parts.is_empty():
            rows = parts.with_columns(total="worst", share=pl.col("value") / pl.col("worst"))
            text = finding(parts, tables.devices)
            charts[name] = stacked_bars(rows, PEAK, title, text, "model's peak", phases)
    return charts


def _deciding(table: pl.DataFrame, devices: list[Accelerator]) -> str:
    """Describe the ends of the peaks, what sets them, the largest parts, and what each fits on."""
    n_models, setting, parts = table["point"].n_unique(), [], []
    for phase, name in (("forward_backward", "backward pass"), ("optimizer", "optimizer step")):
        worst = table.filter(pl.col("phase") == phase, pl.col("peak") == pl.col("worst"))
        if worst.is_empty():
            continue
        labels = worst["label"].unique(maintain_order=True).to_list()
        models = f"all {n_models} models" if len(labels) == n_models > 1 else ", ".join(labels)
        if MOST_NAMED < len(labels) < n_models:
            models = f"{len(labels)} of {n_models} models"
        setting.append(f"the {name} sets it for {models}")
        last = worst.filter(pl.col("label") == labels[-1]).sort("value").row(-1, named=True)
        share = percent(last["value"] / last["worst"])
        parts.append(f"In the {name} of {labels[-1]}, {share} is {last['group']}.")
    return (
        f"The peak is {named_ends(table, 'worst', si_bytes)}; {', '.join(setting)}. "
        f"{' '.join(parts)} Temporary is all other memory of a phase; in the backward pass it "
        f"includes the gradients computed so far. {_smallest_fits(table, devices)}"
    )


def _smallest_fits(table: pl.DataFrame, devices: list[Accelerator]) -> str:
    """Describe the smallest accelerator that each model fits on; of many models, their numbers.

    Devices are sorted.
    """
    models = table.unique("point", keep="first", maintain_order=True)
    rows, largest = models.select("label", "worst").rows(), devices[-1]
    smallest = [next((d for d in devices if d.bytes >= worst), None) for _, worst in rows]
    names = {d: f"{d.name} ({si_bytes(d.bytes)})" for d in devices if d in smallest}
    if len(rows) > 1 and len(names) == 1 and None not in smallest:
        return f"All {len(rows)} models fit on {names.popitem()[1]} or larger."
    if len(rows) <= MOST_NAMED:
        texts = [
            f"{label} fits on {names[device]}" if device
            else f"{label} needs {times(worst / largest.bytes)} {largest.name}"
            for (label, worst), device in zip(rows, smallest, strict=True)
        ]  # fmt: skip
        return "; ".join(texts) + "."
    texts = [f"{name} for {smallest.count(device)}" for device, name in names.items()]
    texts += [f"none for {smallest.count(None)}"] if None in smallest else []
    return f"Of {len(rows)} models, the smallest device that fits is {', '.join(texts)}."


OF_INFERENCE = frozenset({"parameter_bytes", "cache_bytes", "peak_inference_bytes"})
PREFILL_AND_DECODE = {"prefill": "prefill", "decode": "decode"}
"""Components of the peak: all tokens of the prompt at once, and one more token."""


def parts_of_inference(values: Values) -> dict[str, dict[str, int]]:
    """Return the parts of both phases, without any of a point whose cache is not whole at its peak.

    `temporary` is the peak without weights and the cache of the whole prompt.
    """
    weights, cache = (sum(values[name].values()) for name in ("parameter_bytes", "cache_bytes"))
    peaks = values["peak_inference_bytes"]
    if peaks.keys() != PREFILL_AND_DECODE.keys() or min(peaks.values()) < weights + cache:
        return {}
    always = {"parameters": weights, "KV cache": cache}
    return {
        phase: always | {"temporary": peaks[phase] - weights - cache}
        for phase in PREFILL_AND_DECODE
    }


def _shares_of_weights(table: pl.DataFrame, _: list[Accelerator]) -> str:
    """Compare the weights' share of prefill, and the largest cache relative to its weights."""
    prefill = table.filter(pl.col("phase") == "prefill")
    weights = prefill.filter(group="parameters").with_columns(
        share=pl.col("value") / pl.col("peak")
    )
    is_one = weights.height == 1
    shares = percent(weights["share"][0]) if is_one else named_ends(weights, "share", percent)
    text = f"In prefill the weights are {shares} of the peak."
    caches = table.filter(phase="decode", group="KV cache").join(
        weights.select("point", weights="value"), on="point"
    )
    if caches.is_empty():
        return text
    largest = caches.sort(pl.col("value") / pl.col("weights")).row(-1, named=True)
    return (
        f"{text} The largest cache relative to the weights is that of {largest['label']}: "
        f"{percent(largest['value'] / largest['weights'])} of them. Temporary is all other memory: "
        "hidden states and logits."
    )


KINDS = (
    ("peak-parts", NEEDS, _parts_of, "Composition of peak training memory", _deciding, PHASES),
    ("inference-parts", OF_INFERENCE, parts_of_inference, "Peak memory of inference by part",
     _shares_of_weights, PREFILL_AND_DECODE),
)  # fmt: skip
"""Name of a chart, its quantities, function of its parts, title, function of its text, phases."""
