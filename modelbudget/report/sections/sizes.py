"""Act 2: every published plain decoder by size, from the embedding to the MLP."""

import polars as pl

from modelbudget.components.groups import VOCABULARY
from modelbudget.report.charts.format import count, percent, short
from modelbudget.report.results import SweepResult
from modelbudget.report.section import Page, Section
from modelbudget.report.sections.squares import COLUMNS, drawing, measured_groups
from modelbudget.report.specs import variable_of_group

PLAIN: tuple[str, ...] = (*VOCABULARY, "positions", "attention", "MLP", "norms")
"""The groups of a plain decoder, in the order of the stack."""
SQUARES = 540
SCREEN, PHONE = 720, 340
"""Width of the axis in pixels: the least with its contents aside, and on a phone."""
CHARACTER, BETWEEN = 6.4, 14
"""Width of a character of a name on the axis, and the least distance of two names, in pixels."""
LONG = 16
"""Characters from which on a name on the axis is replaced by the model's size."""


def _contents(page: Page) -> list[dict]:
    """Return the models of the slider: published plain decoders, and the smallest one measured."""
    sweeps = page.sweeps
    stops = _stops(sweeps, page.known) if sweeps else pl.DataFrame()
    if stops.height < 2:
        return []
    values = [dict(zip(PLAIN, row, strict=True)) for row in stops.select(PLAIN).rows()]
    first, last = values[0], values[-1]
    start, end = (max(one, key=one.__getitem__) for one in (first, last))
    labels, totals = stops["label"].to_list(), stops["total"].to_list()
    act = {
        "id": "sizes",
        "short": f"From {short(totals[0])} to {short(totals[-1])}",
        "title": f"From {count(totals[0])} parameters to {short(totals[-1])}, "
        + (f"{start} gives way to {end}" if start != end else f"{start} is the largest part"),
        "finding": _finding(stops),
        "n": count(stops.height - 1),
        "squares": drawing(first, SQUARES),
        "columns": _columns(values, totals),
        "pins": _pins(labels, totals, _pinned(sweeps)),
        "legend": [(group, variable_of_group(group)) for group in PLAIN],
        "first": _stop(labels[0], totals[0], first),
        "last": _stop(labels[-1], totals[-1], last),
        "data": {
            "stops": [
                [label, total, list(value.values())]
                for label, total, value in zip(labels, totals, values, strict=True)
            ],
            "groups": [[group, variable_of_group(group)] for group in PLAIN],
            "pinned": [labels.index(name) for name in _pinned(sweeps) if name in labels],
            "columns": COLUMNS,
            "squares": SQUARES,
        },
    }
    page.acts["sizes"] = act["data"]
    return [act]


def _stops(sweeps: list[SweepResult], known: dict[str, str]) -> pl.DataFrame:
    """Return one row for each model in ascending size: label, total, and a column each of PLAIN."""
    found = [_plain(measured_groups(sweep)) for sweep in sweeps]
    rows = pl.concat(found).unique("architecture", maintain_order=True).sort("total", "label")
    rows = rows.filter(pl.col("family") == "decoder")
    published = rows.filter(pl.col("architecture").is_in(list(known))).with_columns(
        label=pl.col("architecture").replace_strict(known, return_dtype=pl.String)
    )
    smallest = rows.filter(pl.col("total") < (published["total"].min() or 0)).head(1)
    return pl.concat([smallest, published])


def _plain(groups: pl.DataFrame) -> pl.DataFrame:
    """Return the points whose parameters are all in the groups of a plain decoder."""
    keys = ["architecture", "label", "family", "total"]
    of_group = [
        pl.col("value").filter(pl.col("group") == group).sum().alias(group) for group in PLAIN
    ]
    return (
        groups.group_by(keys, maintain_order=True)
        .agg(of_group)
        .filter(pl.sum_horizontal(PLAIN) == pl.col("total"), pl.col("attention") > 0)
    )


def _finding(stops: pl.DataFrame) -> str:
    vocabulary = pl.sum_horizontal(VOCABULARY)
    most = stops.filter(2 * vocabulary > pl.col("total"))
    other = stops.filter(pl.col("MLP") < pl.max_horizontal(vocabulary, "attention"))
    found = []
    if not most.is_empty():
        found.append(
            f"The largest model with more than half of its parameters in embedding and head is "
            f"{most['label'][-1]}."
        )
    if not other.is_empty() and other["total"][-1] < stops["total"][-1]:
        above = stops.filter(pl.col("total") > other["total"][-1])
        found.append(
            f"From {above['label'][0]} on, the MLP is the largest part of all {above.height} "
            "models."
        )
    return " ".join(found)


def _pinned(sweeps: list[SweepResult]) -> list[str]:
    """Return the labels of the models that stand next to the page's first one."""
    return [
        label
        for sweep in sweeps
        if sweep.summary["headline"]
        for label in sweep.points["label"].to_list()
    ]


def _pins(labels: list[str], totals: list[int], pinned: list[str]) -> list[dict]:
    """Return the names on the axis with their places in percent: both ends, and what has room."""
    last = len(labels) - 1
    others = [labels.index(name) for name in pinned if name in labels]
    taken: dict[int, list[tuple[float, float]]] = {SCREEN: [], PHONE: []}
    pins = [_end(0, labels, totals), _end(last, labels, totals)]
    for place in (one for one in dict.fromkeys(others) if one not in (0, last)):
        x = (place + 0.5) / len(labels)
        size = CHARACTER * len(labels[place])
        anchor, before = ("start", 0) if x * PHONE < size / 2 else ("middle", size / 2)
        has_room = {width: _takes(taken[width], x * width - before, size, width) for width in taken}
        if has_room[SCREEN]:
            pin = {"label": labels[place], "x": f"{100 * x:.2f}", "wide": not has_room[PHONE]}
            pins.append(pin | {"text": pin["x"], "anchor": anchor, "row": 1})
    return pins


def _end(place: int, labels: list[str], totals: list[int]) -> dict:
    """Return the name of the first or the last model, which stands in a line of its own."""
    name = labels[place] if len(labels[place]) < LONG else f"{count(totals[place])} parameters"
    x = f"{100 * (place + 0.5) / len(labels):.2f}"
    text, anchor = ("0", "start") if place == 0 else ("100", "end")
    return {"label": name, "x": x, "wide": False, "text": text, "anchor": anchor, "row": 2}


def _takes(taken: list[tuple[float, float]], start: float, size: float, width: int) -> bool:
    """Whether a name has room from `start` on; if so, its pixels are added to `taken`."""
    end = start + size
    has_room = 0 <= start <= width - size and all(
        end + BETWEEN <= left or right + BETWEEN <= start for left, right in taken
    )
    if has_room:
        taken.append((start, end))
    return has_room


def _columns(values: list[dict[str, int]], totals: list[int]) -> list[dict]:
    """Return one path for each group: its part of every model's column, in a box of 1,000 high."""
    paths = dict.fromkeys(PLAIN, "")
    for x, (value, total) in enumerate(zip(values, totals, strict=True)):
        below = 0
        for group in PLAIN:
            top, bottom = (1000 - 1000 * n // total for n in (below + value[group], below))
            below += value[group]
            if bottom > top:
                paths[group] += f"M{10 * x} {top}h9v{bottom - top}h-9z"
    return [
        {"group": group, "class": variable_of_group(group), "path": path}
        for group, path in paths.items()
        if path
    ]


def _stop(label: str, total: int, value: dict[str, int]) -> dict:
    parts = sorted(value, key=value.__getitem__, reverse=True)[:3]
    shares = ", ".join(f"{percent(value[part] / total)} {part}" for part in parts if value[part])
    shares = shares.replace(" %", "\u00a0%")
    return {"label": label, "total": count(total), "shares": shares}


SECTION = Section(20, _contents)
