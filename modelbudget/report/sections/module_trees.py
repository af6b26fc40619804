"""Module trees of some instantiated models.

A model that could not be built has {"failure": the reason} instead of a tree.
"""

from modelbudget.components.groups import group_of
from modelbudget.report.section import Page, Section

TREES = "module_trees/trees.json"


def _contents(page: Page) -> dict:
    return {"trees": [_tree(model) for model in page.results.parts[TREES]]}


def _tree(model: dict) -> dict:
    """Return the tree of a model, as the template needs it."""
    tree, label = model["tree"], model["label"]
    is_built = "failure" not in tree
    return {
        "id": f"architecture-{model['model']}",
        "label": label,
        "failure": None if is_built else could_not_be_built(tree),
        "root": _part(tree, "") | {"name": label} if is_built else None,
        "tied": _tied(tree),
    }


def could_not_be_built(built: dict) -> str:
    """Return the text that replaces a model that failed."""
    return f"could not be built: {built['failure']}"


def _part(node: dict, path: str, parents: int = 1) -> dict:
    """Return a node with its children, and the parameters of all of its copies in the model."""
    copies = parents * node["times"]
    parts = [_part(part, _path(path, part), copies) for part in node["parts"]]
    parameters = copies * node["parameters"]
    groups = {part["group"] for part in parts if part["parameters"]}
    return node | {
        "parameters": parameters,
        "each": node["parameters"] if copies > 1 else None,
        "group": group_of(path) if not parts else groups.pop() if len(groups) == 1 else None,
        "parts": parts,
    }


def _path(path: str, part: dict) -> str:
    return f"{path}.{part['name']}" if path else part["name"]


def _tied(node: dict, path: str = "") -> list[tuple[str, str]]:
    """Return the modules that have a tensor of another one, and that tensor's path."""
    tensors = [(path, tensor["shared_with"]) for tensor in node.get("tensors", ())]
    inner = [pair for part in node.get("parts", ()) for pair in _tied(part, _path(path, part))]
    return [(module, owner) for module, owner in tensors if owner] + inner


SECTION = Section(110, "architecture", "Module trees", _contents, (TREES,))
