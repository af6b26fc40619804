"""Components gathered into a dozen groups, each with one colour through the whole report."""

from typing import NamedTuple


class Group(NamedTuple):
    """Several components that a reader takes for one thing, and the colour they are drawn in.

    A component belongs to the first group one of whose `marks` stands in its dotted name as a
    whole part or, after an underscore, as the end of one: `layer.norm.attention` and
    `layer.attention.query_norm` are norms. Colours differ in lightness as well as in hue, so that
    colour-blind readers tell them apart, and stand out from the paper at 3:1 or more (WCAG 2.2,
    1.4.11); tests hold both.
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
    Group("experts", ("moe",), "#778102", "#bed638"),
    Group("token embedding", ("embedding",), "#054998", "#3b99ff"),
    Group("head", ("head", "loss", "transform", "pooler", "next_sentence"), "#b98b15", "#ffdf9a"),
    Group("state space", ("mixer",), "#3b096d", "#7c54c8"),
    Group("attention", ("attention", "mla", "bias"), "#9f2b00", "#f28536"),
    Group("MLP", ("mlp", "channel"), "#0e7b65", "#099378"),
    Group(
        "recurrence", ("channel_rnn", "time", "hidden", "input", "projection"), "#9f5cac", "#dfa2d5"
    ),
    Group("other", (), "#999189", "#95989a"),
)

ORDER = (
    "token embedding", "head", "positions", "attention", "cross-attention", "recurrence",
    "state space", "MLP", "experts", "router", "norms", "other",
)  # fmt: skip
"""How groups are stacked and listed: words first, then layers, then small change."""

_MEMORY = (
    Group("parameters", (), "#2e4364", "#8896c9"),
    Group("optimizer states", (), "#6a94b4", "#90cced"),
    Group("gradients", (), "#6e5a80", "#8e71a6"),
    Group("activations", (), "#aa2226", "#c13436"),
    Group("logits and loss", (), "#c38726", "#f9ce91"),
    Group("temporary", (), "#7f7970", "#b0aca7"),
)
"""What lives in memory while a model trains, in the order in which it is stacked; in charts of its
own, so that these colours need only be told apart from each other.
"""

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
