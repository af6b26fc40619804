"""Module trees of instantiated models, for the page.

A model that could not be built has {"failure": the reason} instead of a tree.
"""

import re
from typing import Any

from modelbudget.components.groups import group_of
from modelbudget.report import tables
from modelbudget.report.charts.format import count, percent
from modelbudget.report.results import SweepResult
from modelbudget.report.specs import variable_of_group


def swept_trees(sweeps: list[SweepResult], swept: dict[str, dict]) -> dict[str, dict]:
    """Return for each sweep the points with a tree in `swept`, and each tree once as HTML."""
    found = {sweep.name: _of_sweep(sweep, swept) for sweep in sweeps}
    return {name: one for name, one in found.items() if one["points"]}


def _of_sweep(sweep: SweepResult, swept: dict[str, dict]) -> dict:
    points = sweep.points.filter(sweep.points["architecture"].is_in(list(swept)))
    digests = points["architecture"].unique(maintain_order=True).to_list()
    rows = points.select("point", "label", "architecture").rows()
    return {
        "points": [
            [point, f"{label}: {_size(swept[digest])}", digests.index(digest)]
            for point, label, digest in rows
        ],
        "trees": [_html(_root(swept[digest], "model")) for digest in digests],
    }


def _html(root: dict) -> str:
    macros: Any = tables.environment().get_template("part.html.j2").module
    return re.sub(r"\n\s*", "", macros.part(root))


def swept_section(sweeps: list[SweepResult], found: dict[str, dict]) -> dict | None:
    """Return the sweeps with trees in the page, and the number of their points."""
    if not found:
        return None
    points, held = (
        sum(s.points.height for s in sweeps),
        sum(len(s["points"]) for s in found.values()),
    )
    return {
        "sweeps": [(s.name, s.summary["title"]) for s in sweeps if s.name in found],
        "points": count(points),
        "held": count(held) if held < points else None,
    }


def module_trees_section(trees: list[dict] | None) -> list[dict] | None:
    """Return the tree of each model, as the template needs it."""
    if trees is None:
        return None
    return [
        {
            "id": f"architecture-{one['model']}",
            "label": one["label"],
            "size": _size(one["tree"], " parameters"),
            "root": _root(one["tree"], one["label"]),
            "tied": _tied(one["tree"]),
        }
        for one in trees
    ]


def could_not_be_built(built: dict) -> str:
    """Return the text that replaces a model that failed."""
    return f"could not be built: {built['failure']}"


def _size(tree: dict, unit: str = "") -> str:
    return "could not be built" if "failure" in tree else f"{count(tree['parameters'])}{unit}"


def _root(tree: dict, name: str) -> dict:
    if "failure" in tree:
        return {"name": name, "failure": could_not_be_built(tree)}
    return _part(tree | {"name": name}, "", 1, tree["parameters"])


def _part(node: dict, path: str, times: int, whole: int) -> dict:
    """Return a node with its children; `times` is the number of its parents in the model."""
    times *= node["times"]
    parameters = times * node["parameters"]
    inner = [
        _part(part, f"{path}.{part['name']}" if path else part["name"], times, whole)
        for part in node["parts"]
    ]
    return {
        "name": node["name"],
        "kind": node["kind"],
        "tensors": [_tensor(tensor) for tensor in node["tensors"]],
        "parameters": parameters,
        "times": node["times"],
        "count": count(parameters),
        "each": count(node["parameters"]) if times > 1 and node["parameters"] else None,
        "share": percent(parameters / whole) if whole else None,
        "shared": not parameters and any(tensor["shared_with"] for tensor in node["tensors"]),
        "group": _one_group(inner) if inner else variable_of_group(group_of(path)),
        "parts": inner,
    }


def _tied(node: dict, path: str = "") -> list[tuple[str, str]]:
    """Return the modules that have a tensor of another one, and that tensor's path."""
    own = [(path, tensor["shared_with"]) for tensor in node.get("tensors", ())]
    inner = [
        found
        for part in node.get("parts", ())
        for found in _tied(part, f"{path}.{part['name']}" if path else part["name"])
    ]
    return [(module, owner) for module, owner in own if owner] + inner


def _one_group(parts: list[dict]) -> str | None:
    """Return the group of all parts with parameters, or None if there are several."""
    found = {part["group"] for part in parts if part["parameters"]}
    return found.pop() if len(found) == 1 else None


def _tensor(tensor: dict) -> str:
    shape = " × ".join(map(count, tensor["shape"]))
    owner = tensor["shared_with"]
    return f"{tensor['name']} {shape}" + (f", the same tensor as {owner}" if owner else "")
