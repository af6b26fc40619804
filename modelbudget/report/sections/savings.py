"""Act 5: what single changes save of the memory of a training step."""

from operator import itemgetter
from urllib.parse import urlencode

import polars as pl
from markupsafe import escape

from modelbudget.catalogue.accelerators import Accelerator
from modelbudget.catalogue.named_models import Base
from modelbudget.common.number_format import capitalized, count, percent, si_bytes
from modelbudget.components.groups import MEMORY
from modelbudget.report import tables
from modelbudget.report.calculator_runs import OF_RUN, OPTIONS, plain
from modelbudget.report.charts.devices import at_peak
from modelbudget.report.page_data import PAGE
from modelbudget.report.recipe import device_lines, parts_of_model, predicted_parts, recipe
from modelbudget.report.section import Page, Section
from modelbudget.sweeps.derive import named_architecture

ALONE = "8-bit states of AdamW"
"""A change that no package here measures."""
CHANGES, PEAK = PAGE["changes"], "peak_training_bytes"
UNNAMED_FROM = 10
"""The line of a device has no name where a peak has this many times its memory."""
NOT_SETTINGS = ("point", "label", "base", "architecture", "transformers", "run")
OF_CALCULATOR = (*OF_RUN, *OPTIONS)
"""Settings that the calculator has."""


def _contents(page: Page) -> dict | None:
    """Return the bars of the sweep that lists changes of one run of one model.

    For the script, the same of other models with these changes, all predicted.
    """
    sweep = page.sweep(CHANGES["sweep"])
    if sweep is None or (parts := at_peak(sweep.comparison)).is_empty():
        return None
    page.drawn[sweep.name] = "what-to-do"
    points = sweep.points.to_dicts()
    alone = predicted_parts(sweep.points, CHANGES["predicted"])
    alone = alone.filter(pl.col("peak") == pl.col("worst"))
    act = _of_model(page, page.catalogue[sweep.summary["base"]], points, parts, alone)
    others = []
    for base in map(page.catalogue.__getitem__, CHANGES["models"] if page.is_of_all else ()):
        predicted = parts_of_model(sweep.points, named_architecture(base))
        if predicted.height:
            first, *changes = (row for row in points if row["point"] in predicted["point"])
            rows = [first | {"label": base.label}, *changes]
            others.append(_of_model(page, base, rows, predicted, predicted.clear()))
    if others:
        page.acts["what-to-do"] = [_in_html(other) for other in others]
    used, first = parts["group"].unique(), points[0]
    return act | {
        "states": [name for name in MEMORY if name in used],
        "models": [act["label"], *(other["label"] for other in others)],
        "sequences": count(first["batch"] * first["data_parallel"]),
        "sweep": sweep,
    }


def _in_html(model: dict) -> list[str]:
    """Return title, finding, rows and run of a model as the page has them."""
    rows = tables.environment().get_template("changes.html.j2").render(section=model)
    texts = (model["title"], model["finding"], f"{model['run']}. {CHANGES['whose']}")
    title, finding, run = map(escape, texts)
    return [*map(tables.unbroken, (title, finding, rows, run))]


def _of_model(
    page: Page, base: Base, points: list[dict], parts: pl.DataFrame, alone: pl.DataFrame
) -> dict:
    """Return title, finding and bars of a model: a run, and changes of it.

    `parts` has those of each point's peak; `alone` is empty, or has those of ALONE.
    """
    bars = {point["label"]: parts.filter(point=point["point"]) for point in points}
    bars |= {ALONE: alone} if alone.height else {}
    in_calculator = points if page.is_of_all else ()
    addresses = {of["label"]: _address(base.name, of, points[0]) for of in in_calculator}
    peaks = {label: int(rows["peak"][0]) for label, rows in bars.items()}
    lines, whole = device_lines(), peaks[points[0]["label"]]
    most = max(*peaks.values(), lines[-1].bytes)
    return {
        "label": base.label,
        "title": _title(peaks, lines),
        "finding": _finding(peaks),
        "run": recipe(base.label, points[0]),
        "bars": [
            {
                "label": f"{ALONE}, predicted" if label == ALONE else label,
                "address": addresses.get(label),
                "peak": peak,
                "change": (peak - whole) / whole,
                "parts": dict(bars[label].select("group", "value").rows()),
            }
            for label, peak in peaks.items()
        ],
        "devices": lines,
        "most": most,
        "unnamed_from": UNNAMED_FROM,
    }


def _address(model: str, point: dict, first: dict) -> str | None:
    """Return the address of the calculator with this run; None if it lacks one of the settings."""
    unchanged = {name for name in point if point[name] == first[name]}
    if not {*point} - unchanged - {*NOT_SETTINGS} <= {*OF_CALCULATOR}:
        return None
    settings = {name: plain(point[name]) for name in OF_CALCULATOR}
    return f"#what-if?{urlencode({'model': model} | settings | {'for': PEAK})}"


def _title(peaks: dict[str, int], lines: list[Accelerator]) -> str:
    (label, whole), *changes = peaks.items()
    texts: list[str] = []
    for line in reversed(lines):
        n = sum(peak <= line.bytes for _, peak in changes)
        verb = "" if texts else f" bring{'s' * (n < 2)} it"
        texts.append(f"{n or 'none'}{verb} below the {si_bytes(line.bytes)} of an {line.name}")
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
    if best == least:
        return text
    name, n_bytes = least
    return f"{text} {capitalized(name)} needs least: {si_bytes(n_bytes)}."


SECTION = Section(50, "what-to-do", "What to do", _contents)
