"""A dozen groups of components, each with one colour in the whole report."""

from functools import cache
from typing import NamedTuple

from modelbudget.architecture.terms import GROUP_TITLES
from modelbudget.components.feed_forward import feed_forward
from modelbudget.components.mixers import mixers


class Group(NamedTuple):
    """Components that charts show as one, and their colour on light and dark paper.

    A component belongs to the first group one of whose `marks` is a part of its dotted name or,
    after an underscore, the end of one: `layer.norm.attention` and `layer.attention.query_norm` are
    norms. A mixer or feed-forward part names its group itself (`GROUP`). Colours differ in
    lightness as well as in hue, for colour-blind readers, and contrast with the paper at 3:1 or
    more (WCAG 2.2, 1.4.11); tests check both.
    """

    title: str
    marks: tuple[str, ...]
    light: str
    dark: str


_GROUPS = (
    Group("norms", ("norm",), "#171715", "#f6f5f4"),
    Group("cross-attention", ("cross",), "#77042f", "#c22a2c"),
    Group("positions", ("position", "position_bias"), "#4e99cd", "#90d0ff"),
    Group("router", ("router",), "#293a00", "#7d8941"),
    Group("experts", (), "#778102", "#bed638"),
    Group("token embedding", ("embedding",), "#054998", "#3b99ff"),
    Group("head", ("head", "loss", "transform", "pooler", "next_sentence"), "#b98b15", "#ffdf9a"),
    Group("state space", ("mixer",), "#3b096d", "#7c54c8"),
    Group("attention", ("attention", "bias", "use"), "#9f2b00", "#f28536"),
    Group("MLP", ("mlp", "channel", "laurel", "altup", "per_layer"), "#0e7b65", "#099378"),
    Group("recurrence", ("time", "hidden", "input", "projection"), "#9f5cac", "#dfa2d5"),
    Group("other", (), "#999189", "#95989a"),
)

_MEMORY = (
    Group("parameters", (), "#2e4364", "#8496d8"),
    Group("optimizer states", (), "#6f939a", "#9ac0da"),
    Group("gradients", (), "#4c5e95", "#8f6e91"),
    Group("gathered parameters", (), "#1a3434", "#b2edf0"),
    Group("communication buffers", (), "#405b19", "#69bf52"),
    Group("received states", (), "#b956c2", "#b38478"),
    Group("activations", (), "#bd1288", "#dd4bb3"),
    Group("logits and loss", (), "#ea63a7", "#e2ccc6"),
    Group("temporary", (), "#847864", "#a9b0a8"),
    Group("KV cache", (), "#1e0859", "#6548f2"),
)
"""Live memory of training and inference, in the order of its stack. No colour means a component and
memory: these differ from those above too.
"""

GROUPS = {
    group.title: group
    for group in (*sorted(_GROUPS, key=lambda g: GROUP_TITLES.index(g.title)), *_MEMORY)
}
MEMORY = tuple(group.title for group in _MEMORY)

VOCABULARY = ("token embedding", "head")
"""The groups that grow with the vocabulary: the two ends, which tying makes one."""


@cache
def _marks() -> list[tuple[str, tuple[str, ...]]]:
    """Return the title and the marks of each group, with the names of the parts that are in it."""
    parts = (mixers() | feed_forward()).items()
    return [
        (title, (*marks, *(name for name, part in parts if title == part.GROUP)))
        for title, marks, _, _ in _GROUPS
    ]


@cache
def group_of(component: str) -> str:
    """Return the title of the group that a dotted component name belongs to."""
    parts = component.split(".")
    for title, marks in _marks():
        if any(part == mark or part.endswith(f"_{mark}") for part in parts for mark in marks):
            return title
    return "other"
