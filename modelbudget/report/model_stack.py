"""A model as a stack to scale: its layers, each cut into matrices, and its vocabulary as slabs."""

from collections.abc import Sequence
from typing import NamedTuple

import polars as pl

from modelbudget.common.number_format import in_full, percent
from modelbudget.components.groups import GROUPS, VOCABULARY, group_of
from modelbudget.report import tables
from modelbudget.report.page_data import PAGE

VERBS: dict[str, str] = PAGE["verbs"]
"""Groups of a plain decoder, and what each does."""
WIDE, HIGH = 100.0, 400.0
"""The box of a drawing, which is stretched to its place."""
PICTURE = 520
"""Width of a stack in the picture."""
LEAST = 0.001
"""Least share that is named in words."""
GAP = 0.2
"""Part of a layer's height that is between two layers, at most WIDEST of the box."""
WIDEST = 3.0
LAYER = "layer."
ABOVE = ("head", "norms")
"""Groups of what stands above the layers."""
_ORDER = ("query", "key", "value", "output", "gate", "up", "down")
_COLUMNS = {
    "query": "n_head", "key": "n_kv_head", "value": "n_kv_head", "output": "n_head",
}  # fmt: skip


class Part(NamedTuple):
    """A component: its name, its group, its parameters in `n` layers, and the shape of a matrix."""

    name: str
    group: str
    value: int
    n: int
    shape: tuple[int, int] | None


class Band(NamedTuple):
    """A band of a drawing: a vertical line as wide as its part, whose dashes are the layers."""

    part: Part
    path: str
    width: str
    dashes: str


class Stack(NamedTuple):
    """A decoder with equal layers: its parts from the top, those of a layer in one row."""

    label: str
    total: int
    n_layer: int
    rows: list[list[Part]]

    @property
    def parts(self) -> list[Part]:
        """Return all parts."""
        return [part for row in self.rows for part in row]

    @property
    def is_plain(self) -> bool:
        """Whether every part is one of a plain decoder."""
        return all(self.rows) and all(part.group in VERBS for part in self.parts)

    def share(self, group: str) -> float:
        """Return the share of a group in all parameters."""
        return sum(part.value for part in self.parts if part.group == group) / self.total

    @property
    def of_vocabulary(self) -> float:
        """The share of the two ends."""
        return sum(map(self.share, VOCABULARY))

    @property
    def in_words(self) -> str:
        """The shares of all groups above a thousandth."""
        shares = {group: self.share(group) for group in VERBS}
        return ", ".join(f"{percent(n)} {group}" for group, n in shares.items() if n > LEAST)

    def bands(self) -> list[Band]:
        """Return the bands of a drawing, from the top."""
        lines, top = [], 0.0
        for row in self.rows:
            whole, x = sum(part.value for part in row), 0.0
            height = HIGH * whole / self.total
            layer = height / row[0].n
            gap = min(GAP * layer, WIDEST)
            dashes = f"{layer - gap:.3f} {gap:.3f}" if row[0].n > 1 else ""
            for part in row:
                width = WIDE * part.value / whole
                path = f"M{x + width / 2:.3f} {top:.2f}v{height:.2f}"
                lines.append(Band(part, path, f"{width:.3f}", dashes))
                x += width
            top += height
        return lines


def stack_of(point: dict, rows: pl.DataFrame) -> Stack:
    """Return the stack of a measured point: its record, and its rows of parameters."""
    counted = rows.filter(pl.col("measured") > 0).select("component", "measured")
    above, layer, below = [], [], []
    for name, value in counted.rows():
        group, shape = group_of(name), _shape(name, point)
        if name.startswith(LAYER):
            layer.append(Part(name.removeprefix(LAYER), group, value, point["n_layer"], shape))
        else:
            row = [Part(name, group, value, 1, shape)]
            (above if group in ABOVE else below).append(row)
    layer.sort(key=lambda part: _place(part.name))
    total = int(counted["measured"].sum())
    return Stack(point["label"], total, point["n_layer"], [*above, layer, *below])


def _place(name: str) -> int:
    last = name.split(".")[-1]
    return _ORDER.index(last) if last in _ORDER and "norm" not in name else len(_ORDER)


def _shape(name: str, point: dict) -> tuple[int, int] | None:
    *_, of, last = f".{name}".split(".")
    if of == "attention" and last in _COLUMNS:
        return point["d_model"], point[_COLUMNS[last]] * point["d_head"]
    if of == "mlp" and last in _ORDER:
        return point["d_model"], point["d_ff"]
    return (point["n_vocab"], point["d_model"]) if name == "embedding.token" else None


def data(stack: Stack) -> list:
    """Return a stack for the page's script: its fields, its words, and each row after its `n`."""

    def of_row(row: list[Part]) -> list:
        shares = (tables.unbroken(percent(part.value / stack.total)) for part in row)
        return [row[0].n, *([*part[:3], share] for part, share in zip(row, shares, strict=True))]

    return [*stack[:3], tables.unbroken(stack.in_words), list(map(of_row, stack.rows))]


def picture(stacks: Sequence[Stack]) -> str:
    """Return the stacks as one SVG file, with names, numbers and verbs."""
    used = {part.group for stack in stacks for part in stack.parts}
    return (
        tables.environment()
        .get_template("picture.svg.j2")
        .render(
            stacks=stacks,
            title=f"What {in_full(stacks[-1].total)} parameters do",
            verbs={group: verb for group, verb in VERBS.items() if group in used},
            groups=GROUPS,
            scale=PICTURE / WIDE,
        )
    )
