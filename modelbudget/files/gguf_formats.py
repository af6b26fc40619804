"""Types of GGUF's tensors and llama.cpp's rules for them, from `configs/gguf.yaml`."""

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from math import prod
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from modelbudget.common.errors import InputError
from modelbudget.common.expressions import Expression, LazyValues, expression_of
from modelbudget.common.paths import CONFIGS
from modelbudget.common.strict import Strict, shipped
from modelbudget.common.suggestions import offered
from modelbudget.common.validation_messages import show

ANY, NOT, OF_FORMAT = "any", "not_", "own"
"""In rules: every format or role, every format outside of a group, and the type of the format."""
FLOATS = ("F32", "F16", "BF16")
OF_TOKENS = ("token_embd.weight", "per_layer_token_embd.weight")
"""Tensors in which tokens are looked up; without a head, the first of them is also the head."""


class BlockType(Strict):
    """A type of tensors: `numbers` of a row are a block of `bytes`."""

    id: int
    numbers: int = Field(ge=1)
    bytes: int = Field(ge=1)
    fallback: str | None = None

    def n_bytes(self, shape: Sequence[int]) -> int:
        """Return the bytes of a tensor (…, rows, row)."""
        return prod(shape) // self.numbers * self.bytes


class Rule(NamedTuple):
    """In these formats, matrices of a role for which a condition holds have a type."""

    formats: frozenset[str]
    role: str
    holds: Expression
    type: str


class FileArchitecture(Strict):
    """An architecture of llama.cpp: the classes that it runs, and how its tensors are called.

    `formats`: those of its files whose types of tensors are known; all if empty. `divided`: names
    of several tensors that hold one matrix, with the fields that are their sizes.
    `further_layers`: those of a file that predict further tokens. `also_with`: fields of a model
    whose tensors a file has, too. `is_read`: whether metadata and
    tensors of a file say which model it is.
    """

    classes: list[str]
    names: dict[str, str] = Field(default_factory=dict)
    biases: dict[str, str] = Field(default_factory=dict)
    formats: list[str] = Field(default_factory=list)
    packed: dict[str, list[str]] = Field(default_factory=dict)
    divided: dict[str, dict[str, list[str]]] = Field(default_factory=dict)
    further_layers: int = 0
    also_with: dict[str, int] = Field(default_factory=dict)
    is_read: bool = True


class Formats(Strict):
    """The contents of `configs/gguf.yaml`."""

    source: str
    checked: str
    types: dict[str, BlockType]
    formats: dict[str, str]
    printed_formats: dict[str, str]
    with_imatrix: list[str]
    roles: list[Annotated[tuple[str, str], Field(strict=False)]]
    kept: dict[str, list[str]]
    conditions: dict[str, str]
    groups: dict[str, list[str]]
    rules: list[Annotated[tuple[str, str, str, str], Field(strict=False)]]
    names: dict[str, str]
    endings: dict[str, str]
    architectures: dict[str, FileArchitecture]
    fields: dict[str, str]
    printed_keys: dict[str, str]
    sizes: dict[str, Annotated[tuple[str, int], Field(strict=False)]]
    tables: list[str]

    @cached_property
    def parsed_rules(self) -> list[Rule]:
        return [
            Rule(self._formats(words), role, expression_of(condition), type_name)
            for words, role, condition, type_name in self.rules
        ]

    @cached_property
    def type_names(self) -> dict[int, str]:
        """Name of each type by its number in files."""
        return {tensor_type.id: name for name, tensor_type in self.types.items()}

    def _formats(self, words: str) -> frozenset[str]:
        names: set[str] = set()
        for word in words.split():
            if word == ANY:
                names |= self.formats.keys()
            elif word.startswith(NOT):
                names |= self.formats.keys() - {*self.groups[f"all_{word.removeprefix(NOT)}"]}
            else:
                names |= {*self.groups.get(word, (word,))}
        return frozenset(names)

    def format_named(self, name: str) -> str:
        """Return the format of a name in any case. Raises InputError."""
        for format_name in self.formats:
            if format_name.casefold() == name.casefold():
                return format_name
        near = re.sub("^(float|fp)(?=16|32)", "f", name.casefold().replace("bfloat", "bf"))
        allowed = offered(near, self.formats, "configs/gguf.yaml")
        raise InputError([f"`gguf={show(name)}`: unknown{allowed}"])


class Quantised(NamedTuple):
    """What llama.cpp's rules read of a model; `imatrix`: whether it has an importance matrix."""

    architecture: str
    n_layer: int
    n_head: int
    n_kv_head: int
    n_expert: int = 0
    imatrix: bool = False


gguf_formats = shipped(CONFIGS / "gguf.yaml", Formats, BlockType, FileArchitecture)


def types_of(name: str, shapes: Mapping[str, Sequence[int]], model: Quantised) -> dict[str, str]:
    """Return the type that llama.cpp gives each tensor of a file.

    `name`: that of the format; `shapes`: (…, rows, row) by the names of GGUF.
    """
    data = gguf_formats()
    is_tied = "output.weight" not in shapes
    places: dict[str, int] = {}
    types = {}
    roles = {tensor: _role(tensor, is_tied) for tensor in shapes}
    n_value = [*roles.values()].count("value")
    for tensor in sorted(shapes, key=_by_layer):
        shape, role = shapes[tensor], roles[tensor]
        if prod(shape) == shape[-1] or not tensor.endswith("weight"):
            types[tensor] = "F32"
        elif kept := [t for t, texts in data.kept.items() if any(text in tensor for text in texts)]:
            types[tensor] = kept[0]
        elif name in FLOATS:
            types[tensor] = name
        else:
            i = places.get(role, 0)
            places[role] = i + 1
            is_of_experts = model.n_expert > 1 and role in ("up", "gate", "down")
            if is_of_experts and name not in data.groups["all_low"]:
                i = _by_layer(tensor)[0]
            of_role = model._replace(n_layer=n_value) if role == "value" else model
            types[tensor] = _fitting(shape[-1], _chosen(name, role, i, shape, of_role))
    return types


def _by_layer(tensor: str) -> tuple[int, str]:
    """Return the order in which llama.cpp quantises: without a layer first."""
    is_of_layer = tensor.startswith("blk.")
    return (int(tensor.split(".")[1]) if is_of_layer else -1), tensor


def _role(tensor: str, is_tied: bool) -> str:
    if tensor == "output.weight" or (is_tied and tensor in OF_TOKENS):
        return "output"
    if tensor in OF_TOKENS:
        return "token_embedding"
    return next((role for text, role in gguf_formats().roles if text in tensor), "other")


def _chosen(name: str, role: str, i: int, shape: Sequence[int], model: Quantised) -> str:
    """Return the type of a matrix by the first rule that holds."""
    data = gguf_formats()
    default = data.formats[name]
    sizes: dict[str, Any] = model._asdict() | {
        "i": i, "row": shape[-1], "block": data.types[default].numbers, "is_stack": len(shape) == 3
    }  # fmt: skip
    conditions = LazyValues(lambda name: expression_of(data.conditions[name])(sizes))
    for rule in data.parsed_rules:
        if rule.role in (role, ANY) and name in rule.formats and rule.holds(conditions):
            return default if rule.type == OF_FORMAT else rule.type
    return default


def _fitting(row: int, type_name: str) -> str:
    """Return a type whose blocks divide a row."""
    types = gguf_formats().types
    if row % types[type_name].numbers == 0:
        return type_name
    fallback = types[type_name].fallback
    return fallback if fallback and row % types[fallback].numbers == 0 else "F16"
