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
    """A component: its name, its group, its parameters, and the shape of a matrix."""

    name: str
    group: str
    value: int
    shape: tuple[int, int] | None = None


class Band(NamedTuple):
    """A band of a drawing: a vertical line as wide as its part, whose dashes are the layers."""

    part: Part
    path: str
    width: str
    dashes: str


class Stack(NamedTuple):
    """A decoder with equal layers: `layers` has the sum of each part over them."""

    label: str
    total: int
    n_layer: int
    above: list[Part]
    layers: list[Part]
    below: list[Part]

    @property
    def parts(self) -> list[Part]:
        """Return all parts."""
        return [*self.above, *self.layers, *self.below]

    @property
    def is_plain(self) -> bool:
        """Whether every part is one of a plain decoder."""
        return bool(self.layers) and all(part.group in VERBS for part in self.parts)

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
        once = ([part] for part in self.above), ([part] for part in self.below)
        for parts in (*once[0], self.layers, *once[1]):
            whole, x = sum(part.value for part in parts), 0.0
            height = HIGH * whole / self.total
            row = height / self.n_layer
            gap = min(GAP * row, WIDEST)
            dashes = f"{row - gap:.3f} {gap:.3f}" if parts is self.layers else ""
            for part in parts:
                width = WIDE * part.value / whole
                path = f"M{x + width / 2:.3f} {top:.2f}v{height:.2f}"
                lines.append(Band(part, path, f"{width:.3f}", dashes))
                x += width
            top += height
        return lines


def stack_of(point: dict, rows: pl.DataFrame) -> Stack:
    """Return the stack of a measured point: its record, and its rows of parameters."""
    values = rows.filter(pl.col("measured") > 0).select("component", "measured").rows()
    parts = {
        name: Part(name.removeprefix("layer."), group_of(name), value, _shape(name, point))
        for name, value in values
    }
    layers = [part for name, part in parts.items() if name.startswith(LAYER)]
    once = [part for name, part in parts.items() if not name.startswith(LAYER)]
    return Stack(
        point["label"],
        sum(part.value for part in parts.values()),
        point["n_layer"],
        [part for part in once if part.group in ABOVE],
        sorted(layers, key=lambda part: _place(part.name)),
        [part for part in once if part.group not in ABOVE],
    )


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
    """Return a stack for the page's script: as its fields, with parts as name, group and value."""
    parts = ([list(part[:3]) for part in of] for of in (stack.above, stack.layers, stack.below))
    return [stack.label, stack.total, stack.n_layer, *parts]


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
            scale={"x": PICTURE / WIDE, "y": 1},
        )
    )
