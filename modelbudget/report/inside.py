"""Inside a model: its module tree as built, for the page to draw and to read out."""

from modelbudget.charts.groups import group_of
from modelbudget.charts.words import count, percent
from modelbudget.report.specs import variable_of_group


def inside_section(trees: list[dict] | None) -> list[dict] | None:
    """Each model's tree, as the script walked it, in the words of the page."""
    if trees is None:
        return None
    return [
        {
            "id": f"architecture-{one['model']}",
            "label": one["label"],
            "count": count(one["tree"]["parameters"]),
            "root": _part(one["tree"] | {"name": one["label"]}, "", 1, one["tree"]["parameters"]),
        }
        for one in trees
    ]


def _part(node: dict, path: str, times: int, whole: int) -> dict:
    """A part with its parts; `times` is how often its parent stands in the model."""
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


def _one_group(parts: list[dict]) -> str | None:
    """The group that all parts with parameters belong to, if it is one."""
    found = {part["group"] for part in parts if part["parameters"]}
    return found.pop() if len(found) == 1 else None


def _tensor(tensor: dict) -> str:
    shape = " × ".join(map(count, tensor["shape"]))
    owner = tensor["shared_with"]
    return f"{tensor['name']} {shape}" + (f", the same tensor as {owner}" if owner else "")
