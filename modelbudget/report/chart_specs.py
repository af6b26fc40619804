"""Chart specs in the page: each dataset once, colours as CSS variables, titles as HTML."""

from modelbudget.components.groups import GROUPS
from modelbudget.report.charts.palette import PALETTE

_PADDING = {"left": 0, "right": 1, "top": 4, "bottom": 4}
_VARIABLES = {light: f"var(--{name})" for name, (light, _) in PALETTE.items()}


def variable_of_group(title: str) -> str:
    """Return the name of a group's CSS variable and class."""
    return f"group-{list(GROUPS).index(title)}"


class Charts:
    """The charts of a page: specs by id, and datasets by hash."""

    def __init__(self):
        self.specs: dict[str, dict] = {}
        self.datasets: dict[str, list] = {}

    def add(self, identifier: str, spec: dict, whose: str = "") -> dict:
        """Add a stored spec, and return the parts that the template shows: title and legend.

        `whose`: the implementations that the figure is about, which the page adds to its finding.
        """
        spec = dict(spec)
        title, datasets = spec.pop("title"), spec.pop("datasets")
        spec.pop("$schema")
        spec["config"] = spec["config"] | {"background": "transparent", "padding": _PADDING}
        spec["usermeta"] = spec["usermeta"] | {"datasets": list(datasets)}
        self.specs[identifier] = _of_the_page(spec)
        self.datasets |= {name: [_rounded(row) for row in rows] for name, rows in datasets.items()}
        groups = spec["usermeta"]["groups"]
        finding, _, more = " ".join(title["subtitle"]).partition(". ")
        of = f"Of {whose}." if whose and "module" not in more else ""
        return {
            "id": identifier,
            "title": finding.removesuffix("."),
            "finding": " ".join(filter(None, (f"{title['text']}.", more, of))),
            "legend": [(group, variable_of_group(group)) for group in groups],
        }


def _rounded(row: dict) -> dict:
    """Round fractions to the digits that a chart can show; whole numbers are exact."""
    return {k: float(f"{v:.7g}") if isinstance(v, float) else v for k, v in row.items()}


def _of_the_page(node):
    """Replace the colours of the light palette by CSS variables, and remove legends of groups.

    The page has legends of its own.
    """
    if isinstance(node, dict):
        bare = {"legend": None} if node.get("field") == "group" and "scale" in node else {}
        return {key: _of_the_page(value) for key, value in node.items()} | bare
    if isinstance(node, list):
        return [_of_the_page(value) for value in node]
    return _VARIABLES.get(node, node) if isinstance(node, str) else node


def light_palette() -> dict[str, str]:
    """Return the light colour of each CSS variable, for charts that leave the page."""
    return {f"var(--{name})": light for name, (light, _) in PALETTE.items()}


def palette_css() -> str:
    """Return CSS variables of all colours, light and dark, and classes of the groups."""
    light, dark = (
        "".join(f"--{name}:{pair[i]};" for name, pair in PALETTE.items()) for i in (0, 1)
    )
    swatches = "".join(
        f".group-{i}{{background:var(--group-{i});fill:var(--group-{i})}}"
        for i, _ in enumerate(GROUPS)
    )
    edges = "".join(f".group-{i}-edge{{--edge:var(--group-{i})}}" for i, _ in enumerate(GROUPS))
    dark_theme = f"@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}"
    return f":root{{{light}}}{dark_theme}{swatches}{edges}"
