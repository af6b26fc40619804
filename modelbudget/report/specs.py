"""Chart specs as the page holds them: data once, colours by name, titles as the page's own text."""

from modelbudget.charts.groups import GROUPS
from modelbudget.charts.theme import PALETTE

_VARIABLES = {light: f"var(--{name})" for name, (light, _) in PALETTE.items()}


def variable_of_group(title: str) -> str:
    """The name of a group's colour in the page's styles."""
    return f"group-{list(GROUPS).index(title)}"


def figure(identifier: str, spec: dict, files: str) -> tuple[dict, dict, dict]:
    """A stored spec taken apart: what the template shows, the spec to draw, and its datasets.

    `files` is the path of the chart's pictures beside the page, without their endings.
    """
    spec = dict(spec)
    title = spec.pop("title")
    datasets = spec.pop("datasets")
    groups = spec["usermeta"]["groups"]
    if groups:  # the page has a legend of its own
        spec["config"] = spec["config"] | {"legend": {"disable": True}}
    spec["config"] = spec["config"] | {"background": "transparent"}
    spec["usermeta"] = spec["usermeta"] | {"datasets": list(datasets)}
    spec.pop("$schema")
    shown = {
        "id": identifier,
        "title": title["text"],
        "finding": " ".join(title["subtitle"]),
        "legend": [(group, variable_of_group(group)) for group in groups],
        "files": files,
    }
    return shown, _named_colours(spec), datasets


def _named_colours(node):
    """The spec with each colour of the light palette replaced by the style variable it is."""
    if isinstance(node, dict):
        return {key: _named_colours(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_named_colours(value) for value in node]
    return _VARIABLES.get(node, node) if isinstance(node, str) else node


def palette_css() -> str:
    """Style variables for all colours: light, and dark where a screen prefers it."""
    light, dark = (
        "".join(f"--{name}:{pair[i]};" for name, pair in PALETTE.items()) for i in (0, 1)
    )
    swatches = "".join(f".group-{i}{{background:var(--group-{i})}}" for i, _ in enumerate(GROUPS))
    in_the_dark = f"@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}"
    return f":root{{{light}}}{in_the_dark}{swatches}"
