"""Act 5: what single changes save of the memory of a training step."""

from operator import itemgetter
from urllib.parse import urlencode

import polars as pl

from modelbudget.catalogue.accelerators import Accelerator
from modelbudget.components.groups import MEMORY
from modelbudget.report.calculator_choices import CHOICES_OF_RUN, OF_RUN, plain
from modelbudget.report.chart_specs import variable_of_group
from modelbudget.report.charts.devices import at_peak
from modelbudget.report.charts.format import count, percent, si_bytes, signed_percent
from modelbudget.report.page_results import SweepResult
from modelbudget.report.predicted_rows import parts_of_model, predicted_parts
from modelbudget.report.recipe import device_lines, placed, recipe
from modelbudget.report.section import Page, Section
from modelbudget.sweeps.derive import named_architecture

ALONE, EIGHT_BIT = "8-bit states of AdamW", {"optimizer": "adamw-8bit"}
"""A change that no package here measures: AdamW of bitsandbytes."""
PEAK = "peak_training_bytes"
OTHERS = ("llama-3.2-1b", "mistral-7b-v0.1", "qwen-3-32b", "llama-3-70b")
"""Models that a reader can choose as well."""
NOT_SETTINGS = ("point", "label", "base", "architecture", "transformers", "run")
OF_CALCULATOR = (*OF_RUN, *CHOICES_OF_RUN)
"""Settings that the calculator has."""


def _contents(page: Page) -> list[dict]:
    """Return the bars of the first sweep that lists changes of one run of one model."""
    sweep = next(filter(is_of_changes, page.sweeps), None)
    if sweep is None:
        return []
    page.drawn[sweep.name] = "what-to-do"
    points, parts = sweep.points.to_dicts(), at_peak(sweep.comparison)
    first, lines, model = points[0], device_lines(), sweep.summary["base"]
    peaks = {point["label"]: int(parts.filter(point=point["point"])["peak"][0]) for point in points}
    alone = predicted_parts(sweep.points, EIGHT_BIT)
    bars = [
        _bar(point["label"], parts.filter(point=point["point"]), peaks[first["label"]])
        | {"address": _address(model, point, first) if page.is_of_all else None}
        for point in points
    ]
    if alone.height:
        worst = alone.filter(pl.col("peak") == pl.col("worst"))
        peaks[ALONE] = int(worst["peak"][0])
        bars.append(_bar(f"{ALONE}, predicted", worst, peaks[first["label"]]) | {"address": None})
    most = max(*peaks.values(), lines[-1].bytes)
    used = parts["group"].unique()
    models = [_other(page, name, sweep.points) for name in OTHERS] if page.is_of_all else []
    if models:
        page.acts["what-to-do"] = {
            "models": [other for other in models if other],
            "devices": [(line.name, line.bytes) for line in lines],
        }
    return [
        {
            "id": "what-to-do",
            "short": "What to do",
            "title": _title(peaks, lines),
            "finding": _finding(peaks),
            "states": [(name, variable_of_group(name)) for name in MEMORY if name in used],
            "bars": [_placed(bar, most) for bar in bars],
            "models": [page.catalogue[model].label, *(other["label"] for other in models if other)],
            "devices": [
                {"x": f"{100 * line.bytes / most:.2f}",
                 "text": f"{line.name}, {si_bytes(line.bytes)}",
                 "anchor": "end" if line.bytes > most / 2 else "start"}
                for line in lines
            ],
            "run": recipe(page.catalogue[model].label, first),
            "sequences": count(first["batch"] * first["data_parallel"]),
            "sweep": {"name": sweep.name, "title": sweep.summary["title"]},
        }
    ]  # fmt: skip


def _other(page: Page, name: str, points: pl.DataFrame) -> dict | None:
    """Return what the script shows of another model with the same changes, all predicted."""
    base = page.catalogue[name]
    parts = parts_of_model(points, named_architecture(base))
    if parts.is_empty():
        return None
    rows = [row for row in points.to_dicts() if row["point"] in parts["point"]]
    labels = {row["point"]: row["label"] for row in rows} | {rows[0]["point"]: base.label}
    peak_of = dict(parts.select("point", "peak").rows())
    peaks = {label: peak_of[point] for point, label in labels.items()}
    run = recipe(base.label, rows[0])
    return {
        "label": base.label,
        "title": _title(peaks, device_lines()),
        "finding": _finding(peaks),
        "whose": f"{run}. Predicted, the bytes of one device at its peak; temporary is all that is "
        "neither parameters, states, gradients, activations nor logits.",
        "bars": [
            (labels[row["point"]], _address(name, row, rows[0]), [
                (group, variable_of_group(group), value)
                for group, value in parts.filter(point=row["point"]).select("group", "value").rows()
            ])
            for row in rows
        ],
    }  # fmt: skip


def is_of_changes(sweep: SweepResult) -> bool:
    """Whether all points are one model with the same sequences in a step, divided or not."""
    points, parts = sweep.points, at_peak(sweep.comparison)
    if parts.is_empty() or not sweep.summary["base"] or sweep.summary["axes"]:
        return False
    step = points.select("architecture", "length", n=pl.col("batch") * pl.col("data_parallel"))
    return step.n_unique() == 1 < parts["point"].n_unique() == points.height


def _bar(label: str, parts: pl.DataFrame, first: int) -> dict:
    peak = parts["peak"][0]
    return {
        "label": label,
        "text": si_bytes(peak),
        "exact": f"{count(peak)} bytes",
        "saved": "" if peak == first else signed_percent((peak - first) / first),
        "parts": parts.select("group", "value").rows(),
    }


def _placed(bar: dict, most: int) -> dict:
    """Return a bar with its pieces in percent of the most bytes."""
    pieces = [
        {
            "class": variable_of_group(group),
            "bytes": value,
            "title": f"{group}: {count(value)} bytes",
        }
        for group, value in bar["parts"]
    ]
    return bar | {"pieces": placed(pieces, most)}


def _address(model: str, point: dict, first: dict) -> str | None:
    """Return the address of the calculator with this run; None if it lacks one of the settings."""
    unchanged = {name for name in point if point[name] == first[name]}
    if not {*point} - unchanged - {*NOT_SETTINGS} <= {*OF_CALCULATOR}:
        return None
    settings = {f"A.{name}": plain(point[name]) for name in OF_CALCULATOR}
    return f"#what-if?{urlencode({'A': model, 'B': model} | settings | {'for': PEAK})}"


def _title(peaks: dict[str, int], lines: list[Accelerator]) -> str:
    (label, whole), *changes = peaks.items()
    fits = [(sum(peak <= line.bytes for _, peak in changes), line) for line in reversed(lines)]
    texts = [
        f"{n or 'none'} bring{'s' * (n < 2)} it below {si_bytes(line.bytes)}" for n, line in fits
    ]
    return (
        f"A step of {label} takes {si_bytes(whole)} at its peak; of {len(changes)} changes, "
        f"{' and '.join(texts)}"
    )


def _finding(peaks: dict[str, int]) -> str:
    """Name the single change that saves most, and the smallest peak."""
    (_, whole), *changes = peaks.items()
    single = [change for change in changes if " and " not in change[0]]
    best, least = (min(candidates, key=itemgetter(1)) for candidates in (single, changes))
    text = (
        f"Of single changes {best[0]} saves most: {percent(1 - best[1] / whole)}, to "
        f"{si_bytes(best[1])}."
    )
    return f"{text} Least of all takes {least[0]}: {si_bytes(least[1])}." if best != least else text


SECTION = Section(50, _contents)
