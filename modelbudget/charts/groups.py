"""Components gathered into a dozen groups, each with one colour through the whole report."""

from typing import NamedTuple


class Group(NamedTuple):
    """Several components that a reader takes for one thing, and the colour they are drawn in.

    A component belongs to the first group one of whose `marks` stands in its dotted name as a
    whole part or, after an underscore, as the end of one: `layer.norm.attention` and
    `layer.attention.query_norm` are norms.
    """

    title: str
    marks: tuple[str, ...]
    light: str
    dark: str


_GROUPS = (
    Group("norms", ("norm",), "#6b6b6b", "#a3a3a3"),
    Group("cross-attention", ("cross_attention",), "#7a1f2b", "#e58a92"),
    Group("positions", ("position", "positions", "relative"), "#4aa3df", "#8fd0f5"),
    Group("token embedding", ("token", "segment", "factor"), "#0b5fa5", "#4a9fe8"),
    Group("experts", ("experts", "expert", "shared_expert"), "#8a9a1f", "#c6d64f"),
    Group("router", ("router",), "#4d5500", "#eef0a0"),
    Group(
        "recurrent cells", ("recurrent", "cell", "time_mix", "channel_mix"), "#b0589a", "#de93c9"
    ),
    Group("state space", ("ssm", "state_space", "mixer", "mamba"), "#5b3a8c", "#b79ae6"),
    Group("attention", ("attention",), "#d9691e", "#f2924d"),
    Group("MLP", ("mlp",), "#1f8a5f", "#3fbf8a"),
    Group("head", ("head",), "#e2b000", "#f5d04a"),
    Group("other", (), "#b9b2a6", "#d8d2c6"),
)

ORDER = (
    "token embedding", "head", "positions", "attention", "cross-attention", "recurrent cells",
    "state space", "MLP", "experts", "router", "norms", "other",
)  # fmt: skip
"""How groups are stacked and listed: words first, then layers, then small change."""

GROUPS = {group.title: group for group in sorted(_GROUPS, key=lambda g: ORDER.index(g.title))}

VOCABULARY = ("token embedding", "head")
"""What a larger vocabulary makes larger: the two ends that tying makes one."""


def group_of(component: str) -> str:
    """The title of the group that a dotted component name belongs to."""
    parts = component.split(".")
    for group in _GROUPS:
        if any(part == mark or part.endswith(f"_{mark}") for part in parts for mark in group.marks):
            return group.title
    return "other"
