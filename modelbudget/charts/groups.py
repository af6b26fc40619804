"""Components gathered into a dozen groups, each with one colour through the whole report."""

from typing import NamedTuple


class Group(NamedTuple):
    """Several components that a reader takes for one thing, and the colour they are drawn in.

    A component belongs to the first group one of whose `marks` stands in its dotted name as a
    whole part or, after an underscore, as the end of one: `layer.norm.attention` and
    `layer.attention.query_norm` are norms. Colours differ in lightness as well as in hue, so that
    colour-blind readers tell them apart (a test simulates it).
    """

    title: str
    marks: tuple[str, ...]
    light: str
    dark: str


_GROUPS = (
    Group("norms", ("norm",), "#1f1f1f", "#f5f5f5"),
    Group("cross-attention", ("cross",), "#a3243f", "#c23f5c"),
    Group("positions", ("position", "position_bias"), "#74c0f5", "#8fd0ff"),
    Group("router", ("router",), "#5a6410", "#5c6618"),
    Group("experts", ("experts",), "#b4d14c", "#b3cc2f"),
    Group("token embedding", ("embedding",), "#0b4f9e", "#2f80ea"),
    Group("head", ("head", "loss", "transform", "pooler", "next_sentence"), "#d69500", "#ffdf9a"),
    Group("state space", ("mixer",), "#3d0f70", "#7d55c9"),
    Group("attention", ("attention", "latent", "bias"), "#d4581a", "#ea7f33"),
    Group("MLP", ("mlp", "channel"), "#0f7f63", "#38c79a"),
    Group(
        "recurrence", ("recurrent", "time", "hidden", "input", "projection"), "#c77bc9", "#eaaee6"
    ),
    Group("other", (), "#a39d94", "#808080"),
)

ORDER = (
    "token embedding", "head", "positions", "attention", "cross-attention", "recurrence",
    "state space", "MLP", "experts", "router", "norms", "other",
)  # fmt: skip
"""How groups are stacked and listed: words first, then layers, then small change."""

_MEMORY = (
    Group("parameters", (), "#2e3e68", "#4a6b95"),
    Group("optimizer states", (), "#9aafc5", "#bfd9e6"),
    Group("gradients", (), "#6a7aa9", "#859fbd"),
    Group("activations", (), "#c04763", "#df5e5f"),
    Group("logits and loss", (), "#dba74f", "#d7a85d"),
    Group("temporary", (), "#dcdace", "#584b3d"),
)
"""What lives in memory while a model trains, in the order in which it is stacked."""

GROUPS = {
    group.title: group for group in (*sorted(_GROUPS, key=lambda g: ORDER.index(g.title)), *_MEMORY)
}
MEMORY = tuple(group.title for group in _MEMORY)

VOCABULARY = ("token embedding", "head")
"""What a larger vocabulary makes larger: the two ends that tying makes one."""
PLAIN_LAYER = ("attention", "MLP", "norms")


def group_of(component: str) -> str:
    """The title of the group that a dotted component name belongs to."""
    parts = component.split(".")
    for group in _GROUPS:
        if any(part == mark or part.endswith(f"_{mark}") for part in parts for mark in group.marks):
            return group.title
    return "other"
