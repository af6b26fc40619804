"""Module trees of some instantiated models.

A model that could not be built has {"failure": the reason} instead of a tree.
"""

from modelbudget.components.groups import group_of
from modelbudget.report.chart_specs import variable_of_group
from modelbudget.report.charts.format import count, percent
from modelbudget.report.section import Page, Section

TREES = "module_trees/trees.json"


def _contents(page: Page) -> dict:
    return {"trees": [_tree(model) for model in page.part(TREES)]}


def _tree(model: dict) -> dict:
    """Return the tree of a model, as the template needs it."""
    tree, label = model["tree"], model["label"]
    root, size = {"name": label}, "could not be built"
    if "failure" in tree:
        root |= {"failure": could_not_be_built(tree)}
    else:
        root = _part(tree | root, "", 1, tree["parameters"])
        size = f"{count(tree['parameters'])} parameters"
    return {
        "id": f"architecture-{model['model']}",
        "label": label,
        "size": size,
        "root": root,
        "tied": _tied(tree),
    }


def could_not_be_built(built: dict) -> str:
    """Return the text that replaces a model that failed."""
    return f"could not be built: {built['failure']}"


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
    tensors = [(path, tensor["shared_with"]) for tensor in node.get("tensors", ())]
    inner = [
        pair
        for part in node.get("parts", ())
        for pair in _tied(part, f"{path}.{part['name']}" if path else part["name"])
    ]
    return [(module, owner) for module, owner in tensors if owner] + inner


def _one_group(parts: list[dict]) -> str | None:
    """Return the group of all parts with parameters, or None if there are several."""
    groups = {part["group"] for part in parts if part["parameters"]}
    return groups.pop() if len(groups) == 1 else None


def _tensor(tensor: dict) -> str:
    shape = " × ".join(map(count, tensor["shape"]))
    owner = tensor["shared_with"]
    return f"{tensor['name']} {shape}" + (f", the same tensor as {owner}" if owner else "")


SECTION = Section(110, "architecture", "Module trees", _contents, (TREES,))
