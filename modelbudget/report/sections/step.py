"""Act 4: one training step as a timeline of live bytes, from the trace of a real module."""

from itertools import accumulate, pairwise
from typing import Any

import polars as pl

from modelbudget.components.groups import MEMORY, group_of
from modelbudget.report.chart_specs import variable_of_group
from modelbudget.report.charts.format import count, percent, si_bytes
from modelbudget.report.recipe import device_lines, each, recipe
from modelbudget.report.section import Page, Section

STEP = ("training_step/step.json", "training_step/allocations.parquet")
SHARED = ("training_step/shared_step.json", "training_step/shared_allocations.parquet")
"""Two traced training steps of a model, and those of one of several devices.

Each is what it is of, and its table of allocations.
"""
LOGITS = "logits and loss"
CHANGING = ("activations", "temporary")
WIDE, HIGH = 720, 320
"""Columns and rows of the drawing. A column shows the operation with the most live bytes."""
SHARES = {"forward": 0.32, "backward": 0.42, "optimizer": 0.26}
"""Width of each phase; its operations are evenly spaced in it."""


def _contents(page: Page) -> list[dict]:
    """Return the second traced step, in which the optimizer states are there from the start.

    Also that of one of several devices.
    """
    if not page.has_story:
        return []
    drawn, shared = (_Drawn(*map(page.part, files)) for files in (STEP, SHARED))
    n = drawn.n
    data = _data(drawn.table, drawn.phases, drawn.first)
    columns = _columns(shared.levels, shared.phases, shared.first)
    page.acts["step"] = data | {"shared": list(map(sum, columns))}
    act = {
        "id": "step",
        "short": "One training step",
        "title": _title(drawn.peaks, drawn.about["label"]),
        "finding": _finding(drawn.peaks, n),
        "label": drawn.about["label"],
        "run": recipe(drawn.about["label"], drawn.about["run"]),
        "plot": drawn.plot(),
        "shared": _on_one_device(shared, drawn),
        "peaks": [
            {"title": _where(peak), "text": si_bytes(peak["bytes"]),
             "exact": f"{count(peak['bytes'])} bytes", "each": each(peak["bytes"], n),
             "at": peak["at"], "operation": peak["operation"]}
            for peak in drawn.peaks
        ],
        "last": drawn.last - drawn.first,
        "at": max(drawn.peaks, key=lambda peak: peak["bytes"])["at"],
    }  # fmt: skip
    return [act]


class _Drawn:
    """The second step of a trace: its phases, allocations, live bytes by group, and peaks.

    `n` is the number of parameters of the whole model, `most` the most live bytes.
    """

    def __init__(self, about: dict, allocations: pl.DataFrame):
        self.about, self.n = about, about["n_parameters"]
        self.phases = about["phases"][-len(SHARES) :]
        self.first, self.last = self.phases[0]["first"], self.phases[-1]["last"]
        self.table = _during(allocations, self.first, self.last)
        self.levels = _levels(self.table, self.first, self.last)
        self.most = max(map(sum, self.levels))
        self.peaks = [_peak(self.table, self.levels, phase, self.first) for phase in self.phases]

    def plot(self) -> dict:
        """Return what the template draws."""
        return {
            "legend": [(MEMORY[k], variable_of_group(MEMORY[k])) for k in _live(self.levels)],
            "phases": _axis(self.phases),
            "areas": _areas(self.levels, self.phases, self.first),
            "ticks": _ticks(self.most),
            "devices": [
                {"y": f"{HIGH - HIGH * line.bytes / self.most:.1f}", "text": line.name}
                for line in device_lines()
                if line.bytes < self.most
            ],
            "named": [
                {"x": f"{peak['x']:.2f}", "y": f"{HIGH - HIGH * peak['bytes'] / self.most:.1f}",
                 "anchor": "end" if peak["x"] > 50 else "start",
                 "dx": -9 if peak["x"] > 50 else 9, "text": si_bytes(peak["bytes"])}
                for peak in self.peaks
                if peak["phase"] != "forward"
            ],
            "width": WIDE,
            "height": HIGH,
        }  # fmt: skip


def _on_one_device(shard: _Drawn, whole: _Drawn) -> dict:
    """Return the plot of one of several devices, and its peak against that of the whole model."""
    n = shard.about["run"]["data_parallel"]
    kept, of_all = (si_bytes(_kept(step.peaks[-1])) for step in (shard, whole))
    worst = max(shard.peaks, key=lambda peak: peak["bytes"])
    return {
        "title": f"On each of {n:,} devices with shards, the peak is {si_bytes(shard.most)} "
        f"instead of {si_bytes(whole.most)}",
        "finding": f"Parameters, gradients and optimizer states are {kept} instead of {of_all}. "
        "Layers are gathered before they compute and freed afterwards. Activations are those of "
        "the device’s own "
        f"tokens: {si_bytes(worst['parts']['activations'])} at the peak, and "
        f"{si_bytes(worst['parts'][LOGITS])} of logits and loss.",
        "plot": shard.plot(),
    }


def _during(allocations: pl.DataFrame, first: int, last: int) -> pl.DataFrame:
    """Return what was live during these operations, with its group; `end` is never null.

    What was allocated before them, as the tokens, belongs to no part of the model.
    """
    end = pl.col("end").fill_null(last + 1).clip(upper_bound=last + 1)
    is_run = pl.col("start") >= first
    start = pl.col("start").clip(lower_bound=first)
    table = allocations.with_columns(end=end, start=start, is_run=is_run)
    table = table.filter(pl.col("end") > pl.col("start"))
    groups = [
        LOGITS
        if bytes_of in CHANGING and is_run and group_of(component) == "head"
        else bytes_of.replace("_", " ")
        for bytes_of, component, is_run in table.select("kind", "component", "is_run").iter_rows()
    ]
    return table.with_columns(group=pl.Series(groups, dtype=pl.String))


def _levels(table: pl.DataFrame, first: int, last: int) -> list[list[int]]:
    """Return the live bytes of each group during each operation."""
    changes = [[0] * len(MEMORY) for _ in range(last - first + 2)]
    for start, end, n_bytes, group in table.select("start", "end", "bytes", "group").iter_rows():
        changes[start - first][MEMORY.index(group)] += n_bytes
        changes[end - first][MEMORY.index(group)] -= n_bytes
    columns = [list(accumulate(column)) for column in zip(*changes, strict=True)]
    return [list(row) for row in zip(*columns, strict=True)][:-1]


def _live(levels: list[list[int]]) -> list[int]:
    """Return the indices of the groups that ever hold bytes."""
    return [k for k, column in enumerate(zip(*levels, strict=True)) if any(column)]


def _place(phases: list[dict]) -> list[tuple[dict, float, float]]:
    """Return each phase with its left end and its width, as shares of the axis."""
    widths = [SHARES[phase["name"]] for phase in phases]
    return list(zip(phases, accumulate(widths, initial=0.0), widths, strict=False))


def _areas(levels: list[list[int]], phases: list[dict], first: int) -> list[dict]:
    """Return a path for each group: the area below its upper edge, the highest group first."""
    most, columns = max(map(sum, levels)), _columns(levels, phases, first)
    areas = []
    for k in reversed(_live(levels)):
        tops = [HIGH - round(HIGH * sum(column[: k + 1]) / most) for column in columns]
        path, wide = f"M0 {HIGH}V{tops[0]}", 1
        for before, after in pairwise(tops):
            if after != before:
                path, wide = f"{path}h{wide}v{after - before}", 0
            wide += 1
        areas.append(
            {"class": variable_of_group(MEMORY[k]), "group": MEMORY[k],
             "path": f"{path}H{WIDE}V{HIGH}z"}
        )  # fmt: skip
    return areas


def _columns(levels: list[list[int]], phases: list[dict], first: int) -> list[list[int]]:
    """Return the live bytes of each group in each column: of its operation with the most."""
    columns: list[list[int]] = [[] for _ in range(WIDE)]
    for phase, left, width in _place(phases):
        n = phase["last"] - phase["first"] + 1
        for i in range(n):
            level = levels[phase["first"] - first + i]
            start, end = (round(WIDE * (left + width * (i + k) / n)) for k in (0, 1))
            for x in range(start, max(end, start + 1)):
                if sum(level) >= sum(columns[min(x, WIDE - 1)]):
                    columns[min(x, WIDE - 1)] = level
    return columns


def _axis(phases: list[dict]) -> list[dict]:
    return [
        {
            "name": {"optimizer": "AdamW"}.get(phase["name"], phase["name"]),
            "x": f"{100 * left:.2f}",
            "middle": f"{100 * (left + width / 2):.2f}",
            "operations": f"{count(phase['last'] - phase['first'] + 1)} operations",
        }
        for phase, left, width in _place(phases)
    ]


def _ticks(most: int) -> list[dict]:
    """Return two to five marks of the vertical axis."""
    power = 10 ** (len(str(most)) - 1)
    step = next(k * power // 10 for k in (2, 5, 10, 20, 50) if most // (k * power // 10) <= 5)
    return [
        {"y": f"{HIGH - HIGH * value / most:.1f}", "text": si_bytes(value)}
        for value in range(step, most, step)
    ]


def _peak(table: pl.DataFrame, levels: list[list[int]], phase: dict, first: int) -> dict[str, Any]:
    """Return the operation of a phase with the most live bytes, and what was live during it."""
    places = range(phase["first"] - first, phase["last"] - first + 1)
    at = max(places, key=lambda i: sum(levels[i]))
    live = table.filter(pl.col("start") <= at + first, pl.col("end") > at + first)
    made = table.filter(pl.col("start") == at + first)
    left = sum(SHARES[name] for name in list(SHARES)[: list(SHARES).index(phase["name"])])
    return {
        "phase": phase["name"],
        "at": at,
        "bytes": sum(levels[at]),
        "parts": dict(zip(MEMORY, levels[at], strict=True)),
        "live": live,
        "operation": made["operation"][0] if made.height else None,
        "x": 100 * (left + SHARES[phase["name"]] * (at - places[0] + 0.5) / len(places)),
    }


def _kept(peak: dict) -> int:
    return sum(peak["parts"][name] for name in ("parameters", "optimizer states", "gradients"))


def _title(peaks: list[dict], label: str) -> str:
    """Name the peak of the whole step, and the part of it that is more than half or the largest."""
    worst = max(peaks, key=lambda peak: peak["bytes"])
    part = max(worst["parts"], key=worst["parts"].__getitem__)
    return (
        f"A training step of {label} peaks at {si_bytes(worst['bytes'])}, in the {_where(worst)}: "
        f"{percent(worst['parts'][part] / worst['bytes'])} are {part}"
    )


def _where(peak: dict) -> str:
    return "step of AdamW" if peak["phase"] == "optimizer" else f"{peak['phase']} pass"


def _finding(peaks: list[dict], n: int) -> str:
    """Describe the loss at the peak, and the temporaries of the optimizer."""
    worst, last = max(peaks, key=lambda peak: peak["bytes"]), peaks[-1]
    logits = worst["parts"][LOGITS]
    text = f"Logits and loss are {si_bytes(logits)} of the peak. " if logits else ""
    text += (
        f"The step of AdamW has {each(last['bytes'], n)} bytes a parameter, "
        f"{each(_kept(last), n)} of them from step to step"
    )
    temporary = last["live"].filter(group="temporary").group_by("operation")
    sums = temporary.agg(pl.col("bytes").sum())
    cause = sums.sort("bytes", "operation", descending=[True, False]).head(1)
    if cause.height and cause["bytes"][0] >= n // 10:
        how = " (foreach=True, torch’s default on a GPU)"
        text += f"; the temporary of {cause['operation'][0]} has {each(cause['bytes'][0], n)}" + (
            how if "_foreach_" in cause["operation"][0] else ""
        )
    return f"{text}."


def _data(table: pl.DataFrame, phases: list[dict], first: int) -> dict:
    """Return the allocations for the page's script, as columns.

    The first two are when each began, after the one before, and how long it was live.
    """
    names = {
        name: table[name].unique(maintain_order=True).to_list()
        for name in ("component", "operation")
    }
    places = {name: {value: i for i, value in enumerate(names[name])} for name in names}
    return {
        **names,
        "groups": [[group, variable_of_group(group)] for group in MEMORY],
        "phases": [
            [phase["name"], phase["first"] - first, phase["last"] - first, left, width]
            for phase, left, width in _place(phases)
        ],
        "allocations": [
            (table["start"] - table["start"].shift(1, fill_value=first)).to_list(),
            (table["end"] - table["start"]).to_list(),
            table["bytes"].to_list(),
            [MEMORY.index(group) for group in table["group"]],
            *([places[name][value] for value in table[name]] for name in names),
        ],
    }


SECTION = Section(40, _contents, (*STEP, *SHARED))
