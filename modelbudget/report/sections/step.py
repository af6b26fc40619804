"""Act 4: one training step as a timeline of live bytes, from the trace of a real module."""

from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import polars as pl

from modelbudget.common.number_format import each, percent, si_bytes
from modelbudget.components.groups import MEMORY, group_of
from modelbudget.report.chart_specs import variable_of_group
from modelbudget.report.recipe import STATES, device_lines, recipe
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


def _contents(page: Page) -> dict | None:
    """Return the second traced step, in which the optimizer states are there from the start.

    Also that of one of several devices.
    """
    if not page.has_story:
        return None
    whole, shard = (_Step(*(page.results.parts[file] for file in of)) for of in (STEP, SHARED))
    page.acts["step"] = whole.data() | {"shared": list(map(sum, shard.columns))}
    label = whole.about["label"]
    part = max(whole.worst.parts, key=whole.worst.parts.__getitem__)
    share = percent(whole.worst.parts[part] / whole.most)
    return {
        "title": f"A training step of {label} peaks at {si_bytes(whole.most)}, in the "
        f"{whole.worst.where}: {share} are {part}",
        "finding": _finding(whole),
        "label": label,
        "run": recipe(label, whole.about["run"]),
        "whole": whole,
        "shard": shard,
        "shared": _on_one_device(shard, whole),
    }


class _Phase(NamedTuple):
    """A phase: its first and last operation, and its left end and width as shares of the axis."""

    name: str
    first: int
    last: int
    left: float
    width: float


class _Peak(NamedTuple):
    """The operation `at` which a phase has the most live bytes, and the bytes of each group.

    `operation` is the one that began there, `x` the place in percent.
    """

    phase: str
    at: int
    parts: dict[str, int]
    operation: str | None
    x: float

    @property
    def bytes(self) -> int:
        return sum(self.parts.values())

    @property
    def where(self) -> str:
        return "step of AdamW" if self.phase == "optimizer" else f"{self.phase} pass"

    @property
    def kept(self) -> int:
        """Bytes that are live from step to step."""
        return sum(self.parts[name] for name in STATES)


class _Step:
    """The second step of a trace, whose operations are counted from its first one.

    `n` is the number of parameters of the whole model. `levels` has the live bytes of each group
    during each operation, `columns` those of each column of the drawing, `most` the most.
    """

    width, height = WIDE, HIGH

    def __init__(self, about: dict, allocations: pl.DataFrame):
        self.about, self.n = about, about["n_parameters"]
        phases = about["phases"][-len(SHARES) :]
        first, lefts = phases[0]["first"], accumulate(SHARES.values(), initial=0.0)
        self.phases = [
            _Phase(of["name"], of["first"] - first, of["last"] - first, left, SHARES[of["name"]])
            for of, left in zip(phases, lefts, strict=False)
        ]
        self.last = self.phases[-1].last
        self.table = _during(allocations, first, phases[-1]["last"])
        self.levels = self._levels()
        self.columns = self._columns()
        self.most = max(map(sum, self.levels))
        self.peaks = list(map(self._peak, self.phases))
        self.worst = max(self.peaks, key=lambda peak: peak.bytes)

    def _levels(self) -> list[list[int]]:
        group = pl.col("group").replace_strict(MEMORY, range(len(MEMORY)))
        columns = self.table.select("start", "end", "bytes", group)
        start, end, n_bytes, k = (column.to_numpy() for column in columns)
        changes = np.zeros((self.last + 2, len(MEMORY)), np.int64)
        np.add.at(changes, (start, k), n_bytes)
        np.subtract.at(changes, (end, k), n_bytes)
        return changes.cumsum(axis=0)[:-1].tolist()

    def _columns(self) -> list[list[int]]:
        """Return the live bytes of each group in each column: of its operation with the most."""
        columns: list[list[int]] = [[] for _ in range(WIDE)]
        for _, first, last, left, width in self.phases:
            n = last - first + 1
            for i, level in enumerate(self.levels[first : last + 1]):
                start, end = (round(WIDE * (left + width * (i + k) / n)) for k in (0, 1))
                for x in range(start, max(end, start + 1)):
                    if sum(level) >= sum(columns[min(x, WIDE - 1)]):
                        columns[min(x, WIDE - 1)] = level
        return columns

    def _peak(self, phase: _Phase) -> _Peak:
        places = range(phase.first, phase.last + 1)
        at = max(places, key=lambda i: sum(self.levels[i]))
        parts = dict(zip(MEMORY, self.levels[at], strict=True))
        operations = self.table.filter(start=at)["operation"].to_list()
        x = phase.left + phase.width * (at - phase.first + 0.5) / len(places)
        return _Peak(phase.name, at, parts, next(iter(operations), None), 100 * x)

    def y(self, n_bytes: int) -> str:
        """Return the place of an amount on the vertical axis."""
        return f"{HIGH - HIGH * n_bytes / self.most:.1f}"

    def legend(self) -> list[str]:
        """Return the groups that ever hold bytes."""
        columns = zip(*self.levels, strict=True)
        return [group for group, column in zip(MEMORY, columns, strict=True) if any(column)]

    def areas(self) -> list[tuple[str, str]]:
        """Return each group with its path: below its upper edge, the highest group first."""
        areas = []
        for group in reversed(self.legend()):
            k = MEMORY.index(group)
            tops = [HIGH - round(HIGH * sum(level[: k + 1]) / self.most) for level in self.columns]
            path, wide = f"M0 {HIGH}V{tops[0]}", 1
            for before, after in pairwise(tops):
                if after != before:
                    path, wide = f"{path}h{wide}v{after - before}", 0
                wide += 1
            areas.append((group, f"{path}H{WIDE}V{HIGH}z"))
        return areas

    def ticks(self) -> range:
        """Return two to five marks of the vertical axis."""
        power = 10 ** (len(str(self.most)) - 1)
        steps = (k * power // 10 for k in (2, 5, 10, 20, 50))
        step = next(step for step in steps if self.most // step <= 5)
        return range(step, self.most, step)

    def devices(self) -> list:
        """Return the devices whose memory is a line within the drawing."""
        return [line for line in device_lines() if line.bytes < self.most]

    def data(self) -> dict:
        """Return the allocations for the page's script, as columns.

        The first two are when each began, after the one before, and how long it was live.
        """
        start = pl.col("start")
        table = self.table.select(
            start.diff().fill_null(start),
            (pl.col("end") - start).alias("live"),
            *("bytes", "group", "component", "operation"),
        )
        return {
            "groups": [[group, variable_of_group(group)] for group in MEMORY],
            "phases": self.phases,
            "allocations": table.to_dict(as_series=False),
        }


def _during(allocations: pl.DataFrame, first: int, last: int) -> pl.DataFrame:
    """Return what was live during these operations, with its group; `end` is never null.

    What was allocated before them, as the tokens, belongs to no part of the model.
    """
    end = pl.col("end").fill_null(last + 1).clip(upper_bound=last + 1) - first
    is_run = pl.col("start") >= first
    start = pl.col("start").clip(lower_bound=first) - first
    table = allocations.with_columns(end=end, start=start, is_run=is_run)
    table = table.filter(pl.col("end") > pl.col("start"))
    of_head = pl.col("component").map_elements(group_of, pl.String) == "head"
    is_logits = pl.col("kind").is_in(CHANGING) & pl.col("is_run") & of_head
    group = (
        pl.when(is_logits).then(pl.lit(LOGITS)).otherwise(pl.col("kind").str.replace_all("_", " "))
    )
    return table.with_columns(group=group)


def _on_one_device(shard: _Step, whole: _Step) -> dict:
    """Compare the peak on one of several devices with that of the whole model."""
    n = shard.about["run"]["data_parallel"]
    kept, of_all = (si_bytes(step.peaks[-1].kept) for step in (shard, whole))
    return {
        "title": f"On each of {n:,} devices with shards, the peak is {si_bytes(shard.most)} "
        f"instead of {si_bytes(whole.most)}",
        "finding": f"Parameters, gradients and optimizer states are {kept} instead of {of_all}. "
        "Layers are gathered before they compute and freed afterwards. Activations are those of "
        "the device’s own "
        f"tokens: {si_bytes(shard.worst.parts['activations'])} at the peak, and "
        f"{si_bytes(shard.worst.parts[LOGITS])} of logits and loss.",
    }


def _finding(step: _Step) -> str:
    """Describe the loss at the peak, and the temporaries of the optimizer."""
    last, logits = step.peaks[-1], step.worst.parts[LOGITS]
    text = f"Logits and loss take {si_bytes(logits)} of the peak. " if logits else ""
    text += (
        f"The step of AdamW has {each(last.bytes, step.n)} bytes a parameter, "
        f"{each(last.kept, step.n)} of which stay from step to step"
    )
    live = step.table.filter(pl.col("start") <= last.at, pl.col("end") > last.at)
    sums = live.filter(group="temporary").group_by("operation").agg(pl.col("bytes").sum())
    for cause, n_bytes in sums.sort("bytes", "operation", descending=[True, False]).head(1).rows():
        if n_bytes >= step.n // 10:
            how = " (foreach=True, torch’s default on a GPU)" if "_foreach_" in cause else ""
            text += f"; {each(n_bytes, step.n)} are a temporary tensor of {cause}{how}"
    return f"{text}."


SECTION = Section(40, "step", "One training step", _contents, (*STEP, *SHARED))
