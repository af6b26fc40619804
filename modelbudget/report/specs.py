"""Chart specs as the page holds them: data once, colours by name, titles as the page's own text."""

from modelbudget.architecture.component_groups import GROUPS
from modelbudget.report.charts.palette import PALETTE

_PADDING = {"left": 0, "right": 1, "top": 4, "bottom": 4}
_VARIABLES = {light: f"var(--{name})" for name, (light, _) in PALETTE.items()}


def variable_of_group(title: str) -> str:
    """The name of a group's colour in the page's styles."""
    return f"group-{list(GROUPS).index(title)}"


class Charts:
    """The charts of a page: each spec by its place, each dataset once by the hash that names it."""

    def __init__(self):
        self.specs: dict[str, dict] = {}
        self.datasets: dict[str, list] = {}

    def add(self, identifier: str, spec: dict, files: str) -> dict:
        """Take a stored spec apart; what is not drawn is returned, for the template to show.

        `files` is the path of the chart's pictures beside the page, without their endings.
        """
        spec = dict(spec)
        title, datasets = spec.pop("title"), spec.pop("datasets")
        spec.pop("$schema")
        spec["config"] = spec["config"] | {"background": "transparent", "padding": _PADDING}
        spec["usermeta"] = spec["usermeta"] | {"datasets": list(datasets)}
        self.specs[identifier] = _of_the_page(spec)
        self.datasets |= datasets
        groups = spec["usermeta"]["groups"]
        return {
            "id": identifier,
            "title": title["text"],
            "finding": " ".join(title["subtitle"]),
            "legend": [(group, variable_of_group(group)) for group in groups],
            "files": files,
        }


def _of_the_page(node):
    """The spec with each colour of the light palette replaced by the style variable it is, and
    without legends of groups: the page has its own.
    """
    if isinstance(node, dict):
        bare = {"legend": None} if node.get("field") == "group" and "scale" in node else {}
        return {key: _of_the_page(value) for key, value in node.items()} | bare
    if isinstance(node, list):
        return [_of_the_page(value) for value in node]
    return _VARIABLES.get(node, node) if isinstance(node, str) else node


def palette_css() -> str:
    """Style variables for all colours: light, and dark where a screen prefers it."""
    light, dark = (
        "".join(f"--{name}:{pair[i]};" for name, pair in PALETTE.items()) for i in (0, 1)
    )
    swatches = "".join(f".group-{i}{{background:var(--group-{i})}}" for i, _ in enumerate(GROUPS))
    edges = "".join(f".group-{i}-edge{{--edge:var(--group-{i})}}" for i, _ in enumerate(GROUPS))
    in_the_dark = f"@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}"
    return f":root{{{light}}}{in_the_dark}{swatches}{edges}"
