"""Chart specs in the page: each dataset once, colours as CSS variables, titles as HTML."""

import json
from collections.abc import Mapping

import vl_convert

from modelbudget.components.groups import GROUPS
from modelbudget.report.charts.palette import PALETTE

_PADDING = {"left": 0, "right": 1, "top": 4, "bottom": 4}
VARIABLES = {light: f"var(--{name})" for name, (light, _) in PALETTE.items()}


def variable_of_group(title: str) -> str:
    """Return the name of a group's CSS variable and class."""
    return f"group-{list(GROUPS).index(title)}"


class Charts:
    """The charts of a page: specs by id, and the datasets that they name."""

    def __init__(self):
        self.specs: dict[str, dict] = {}
        self._datasets: dict[str, dict[str, list]] = {}
        self._names: dict[str, str] = {}

    def add(self, identifier: str, spec: dict, whose: str = "") -> dict:
        """Add a stored spec, and return the parts that the template shows: title and legend.

        `whose`: the implementations that the figure is about, which the page adds to its finding.
        """
        spec = dict(spec)
        title, datasets = spec.pop("title"), spec.pop("datasets")
        spec.pop("$schema")
        spec["config"] = spec["config"] | {"background": "transparent", "padding": _PADDING}
        # A digest would take more bytes than a short name.
        names = {of: self._names.setdefault(of, f"d{len(self._names)}") for of in datasets}
        self._datasets |= {names[of]: _columns(rows) for of, rows in datasets.items()}
        self.specs[identifier] = _renamed(spec, VARIABLES | names)
        finding, _, more = " ".join(title["subtitle"]).partition(". ")
        whose_text = f"Of {whose}." if whose and "module" not in more else ""
        return {
            "id": identifier,
            "title": finding.removesuffix("."),
            "finding": " ".join(filter(None, (f"{title['text']}.", more, whose_text))),
            "legend": spec["usermeta"]["groups"],
        }

    def data(self) -> dict:
        """Return the spec of Vega of each chart, and datasets as columns, for a script.

        The script sets the width: it needs no Vega-Lite.
        """
        specs = {name: vl_convert.vegalite_to_vega(spec) for name, spec in self.specs.items()}
        for spec in specs.values():
            del spec["$schema"], spec["usermeta"]["groups"]
        return {"specs": specs, "datasets": self._datasets}


def _columns(rows: list[dict]) -> dict[str, list]:
    """Return the columns of a dataset, whose rows have the same fields."""
    return {field: [_rounded(row[field]) for row in rows] for field in (rows[0] if rows else ())}


def _rounded(value):
    """Round a fraction to the digits that a chart can show; whole numbers are exact."""
    return float(f"{value:.5g}") if isinstance(value, float) else value


def _renamed(spec: dict, names: Mapping[str, str]) -> dict:
    """Replace texts of a spec: names of datasets, and the colours of the light palette."""
    text = json.dumps(spec)
    for name, shorter in names.items():
        text = text.replace(f'"{name}"', f'"{shorter}"')
    return json.loads(text)


def palette_css() -> str:
    """Return CSS variables of all colours, light and dark, and classes of the groups."""
    colours = "".join(f"--{name}:light-dark({','.join(of)});" for name, of in PALETTE.items())
    classes = "".join(
        f".group-{i}{{--group:var(--group-{i});fill:var(--group-{i})}}" for i in range(len(GROUPS))
    )
    return f":root{{{colours}}}{classes}"
