"""The fields of a run for a config.json in which names choose the layers of each format."""

from itertools import pairwise
from typing import Any

from modelbudget.architecture.stored_formats import FORMATS
from modelbudget.components.weight_formats import GATES, MTP
from modelbudget.huggingface.module_names import (
    EMBEDDING,
    LINEAR,
    NOT_CONVERTED,
    PATTERN,
    ROUTED,
    Choice,
    Paths,
    choices,
    names_in_classes,
    names_of,
)

MIXER_GATES = ("beta", "decay")
"""Layers of β and decay of a recurrence, among our matrices."""
OF_GROUPS = "compressed-tensors"
"""The method whose layers have formats by groups."""
HEAD_MATRIX = "head"
Group = tuple[dict[str, Any] | None, list[str]]
"""The fields of a format, and the names, patterns or classes of the layers that have it."""
GroupsOf = dict[str, dict[int | None, str]]
"""By matrix of ours: the number of each group that its layers are in, with a name of a layer."""


def formats_by_layer(
    method: str, layers: dict[str, Paths], groups: list[Group], texts: list[str], others: list[str]
) -> tuple[dict[str, Any] | None, str]:
    """Return the fields of the run where names choose the layers; None, and why in brackets.

    `layers`: the linear layers of the class, with our matrices. `texts` name what is left out, of
    which each of `others` must mean something in this model.
    """
    if method == "awq":  # whose names may be part of others: gate is not gate_proj
        texts = [text for text in texts if not NOT_CONVERTED.fullmatch(text)]
    ignored = choices(method, texts, len(layers))
    targets = choices(OF_GROUPS, [t for _, of_group in groups for t in of_group], len(layers))
    if ignored is None or targets is None:
        return None, f" ({[*others, *texts][0]} are left out)" if ignored is None else ""
    numbers = [number for number, (_, of_group) in enumerate(groups) for _ in of_group]
    chooser = _Chooser(ignored, targets, numbers)
    if chooser.converts_embedding():
        return None, ""
    groups_of = _groups_of(layers, chooser)
    containers = {name.rpartition(".")[0] for name in layers} if method == OF_GROUPS else ()
    others_of_class = names_in_classes().other_modules
    for name in (*containers, *others_of_class):  # naming a container means none of its layers
        chooser.group_of(name)
    if unused := [text for text in others if text not in chooser.used]:
        more = f" and {len(unused) - 1} more" if len(unused) > 1 else ""
        return None, f" ({unused[0]}{more} are left out)"
    stored = [of_group for of_group, _ in groups if of_group]
    converts = FORMATS[stored[0]["weights"]].library.converts
    if "gates" not in converts and (gate := _without_gates(groups_of)):
        return None, f" ({gate} is not left out)"
    formats, why = _formats(groups_of, stored)
    if formats is None:
        return None, why
    return _of_parts(formats, "experts" in converts, method == OF_GROUPS), ""


class _Chooser:
    """Which group of a file a layer is in, and which texts have left out something so far."""

    def __init__(self, ignored: list[Choice], targets: list[Choice], numbers: list[int]):
        self.ignored = ignored
        pairs = zip(targets, numbers, strict=True)
        self.targets = sorted(pairs, key=lambda pair: _rank(pair[0].text))
        self.used: set[str] = set()

    def group_of(self, *names: str) -> int | None:
        """Return the number of the group of a layer by its names, None if it is left out."""
        matched = {choice.text for choice in self.ignored if any(map(choice.matches, names))}
        self.used |= matched
        groups = (
            number
            for choice, number in self.targets
            if choice.text == LINEAR or any(map(choice.matches, names))
        )
        return None if matched else next(groups, None)

    def converts_embedding(self) -> bool:
        """Whether a target names the embedding, which is no linear layer, and nothing leaves it."""
        named = [choice for choice, _ in self.targets if choice.text != LINEAR]
        is_named, is_ignored = (
            any(choice.matches(EMBEDDING) for choice in chosen) for chosen in (named, self.ignored)
        )
        return is_named and not is_ignored


def _groups_of(layers: dict[str, Paths], chooser: _Chooser) -> GroupsOf:
    groups_of: GroupsOf = {}
    for name, paths in layers.items():
        group = chooser.group_of(*names_of(name))
        for path in paths:
            groups_of.setdefault(path, {}).setdefault(group, next(names_of(name)))
    return groups_of


def _formats(
    groups_of: GroupsOf, stored: list[dict[str, Any]]
) -> tuple[dict[str, dict[str, Any]] | None, str]:
    """Return the format of each matrix, {} for the dtype; None, and why, if layers of it differ."""
    formats: dict[str, dict[str, Any]] = {}
    for path, names in groups_of.items():
        converted = [number for number in names if number is not None]
        if None in names and converted:
            return None, f" ({names[None]} is left out, and {names[converted[0]]} is not)"
        if any(stored[n] != stored[m] for n, m in pairwise(converted)):
            return None, ""
        formats[path] = stored[converted[0]] if converted else {}
    return formats, ""


def _without_gates(groups_of: GroupsOf) -> str:
    """Remove the gates, which stay in the dtype; return one of a mixer that a file converts."""
    for path in [path for path in groups_of if path.rpartition(".")[2] in GATES]:
        converted = [name for group, name in groups_of.pop(path).items() if group is not None]
        if converted and path.rpartition(".")[2] in MIXER_GATES:
            return converted[0]
    return ""


def _rank(text: str) -> int:
    """Return the order in which compressed-tensors asks: names, patterns, classes."""
    return 2 if text == LINEAR else int(text.startswith(PATTERN))


def _of_parts(
    formats: dict[str, dict[str, Any]], has_experts: bool, is_head_named: bool
) -> dict[str, Any] | None:
    """Return the fields of the run for the formats of our matrices; None if a run has no such.

    `has_experts`: the library converts stacked experts. `is_head_named`: the file says of the head.
    """
    for path in [path for path in formats if path.startswith(f"{MTP}.")]:
        stored, of_others = formats[path], formats[path.removeprefix(f"{MTP}.")]
        if stored == of_others:
            del formats[path]
        elif stored:
            return None
    of_head = formats.pop(HEAD_MATRIX, {})
    head = of_head if is_head_named else {}
    experts = [formats.pop(path) for path in ROUTED if path in formats]
    dense = [stored for stored in formats.values() if stored]
    if any(stored != experts[0] for stored in experts) or any(s != dense[0] for s in dense):
        return None
    of_experts = experts[0] if experts and has_experts else {}
    if not dense:
        return of_experts | {"weights_of": "experts"} if of_experts and not head else None
    settings = dense[0] | ({"weights_of": "layers"} if is_head_named else {})
    if of_experts and of_experts != dense[0]:
        second = _second(dense[0], of_experts)
        if second is None:
            return None
        settings |= second | {"weights_of": "dense"}
    elif experts and has_experts and not of_experts:
        if head:
            return None
        settings["weights_of"] = "dense"
    if head:
        if head != dense[0]:
            return None
        settings["weights_of"] = "all"
    if kept := _kept(formats):
        settings["kept_in_dtype"] = kept
    return settings


def _kept(formats: dict[str, dict[str, Any]]) -> str:
    """Return the names of parts, and of matrices in others, that stay in the dtype."""
    names: dict[str, None] = {}
    for path, stored in formats.items():
        part = path.rpartition(".")[0]
        is_whole = not any(of for other, of in formats.items() if other.startswith(f"{part}."))
        if not stored:
            names[part if is_whole else path] = None
    return " ".join(names)


def _second(dense: dict[str, Any], experts: dict[str, Any]) -> dict[str, Any] | None:
    """Return the fields for a second format, of the experts.

    None if it has whole rows as groups where the others have smaller ones.
    """
    differences = {name: value for name, value in experts.items() if value != dense.get(name)}
    if 0 in differences.values():
        return None
    of_experts = {f"expert_{name}": value for name, value in differences.items()}
    return of_experts | {"expert_weights": experts["weights"]}
