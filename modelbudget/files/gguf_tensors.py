"""Tensors of a model by their names in GGUF, from the program of a decoder, and back."""

import re
from collections.abc import Collection, Iterable
from typing import NamedTuple

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_config import RunConfig
from modelbudget.common.errors import InputError
from modelbudget.common.expressions import expression_of
from modelbudget.files.gguf_formats import FileArchitecture, Quantised, gguf_formats
from modelbudget.operations.part import NoProgramError
from modelbudget.operations.tape import Tape, running_on

HEADS_BY_LAYER = ("mamba2", "short_convolution", "kimi_delta")
"""First mixers of models whose files have heads by layer: rules read those of the first, none."""


class NamedTensor(NamedTuple):
    """A tensor (…, rows, row), and the component that it is, the first of those that it packs."""

    component: str
    shape: tuple[int, ...]


Tensors = dict[str, NamedTensor]


def architecture_of_class(class_name: str | None) -> str:
    """Return llama.cpp's name of a class of `transformers`. Raises InputError."""
    known = gguf_formats().architectures
    for name, listed in known.items():
        if class_name in listed.classes:
            return name
    classes = ", ".join(class_name for listed in known.values() for class_name in listed.classes)
    unnamed = f"no names of llama.cpp are known here for {class_name or 'this model'}"
    raise InputError([f"{unnamed}; allowed: {classes}"])


def tensors_of(a: Architecture, architecture: str, of_file: Collection[str] = ()) -> Tensors:
    """Return the tensors of a model by their names in a file.

    `of_file`: as in `_as_in_file`. Raises InputError for a part that has no name here.
    """
    listed = gguf_formats().architectures[architecture]
    tensors = _by_name(a, listed)
    if listed.also_with:
        tensors = _by_name(a.model_copy(update=listed.also_with), listed) | tensors
    return _as_in_file(tensors, a, listed, of_file)


def _by_name(a: Architecture, listed: FileArchitecture) -> Tensors:
    data = gguf_formats()
    names = data.names | listed.names
    tensors: Tensors = {}
    for component, layer, shape in _parameters(a):
        if component not in names:
            raise InputError([f"{component} has no name in these files of llama.cpp here"])
        prefix = "" if layer is None else f"blk.{layer}."
        tensor = f"{prefix}{names[component]}{data.endings.get(names[component], '.weight')}"
        if tensor in tensors:
            tensor = f"{prefix}{listed.biases.get(component, names[component])}.bias"
        tensors[tensor] = NamedTensor(component, shape)
    return tensors


def layer_of(name: str) -> int | None:
    """Return the layer of a tensor of a file."""
    of_layer = re.match(r"blk\.(\d{1,9})\.", name)
    return int(of_layer[1]) if of_layer else None


def quantised(a: Architecture, architecture: str, imatrix: bool) -> Quantised:
    """Return what the rules for types read of a model."""
    sizes = vars(a)
    further = gguf_formats().architectures[architecture].further_layers
    heads = sizes["n_head"], sizes["n_kv_head"]
    if sizes.get("mixers", "").startswith(HEADS_BY_LAYER):
        heads = 1, 1
    n_expert = sizes.get("n_expert", 0)
    return Quantised(architecture, sizes["n_layer"] + further, *heads, n_expert, imatrix)


def _parameters(a: Architecture) -> Iterable[tuple[str, int | None, tuple[int, ...]]]:
    """Yield component, layer and shape of each parameter, in the order of the module."""
    with running_on(Tape()) as tape:
        try:
            model = type(a).program()(a, RunConfig.model_validate({"batch": 1, "length": 1}))
        except NoProgramError as error:
            what = str(error) or f"family: {a.name()}"
            raise InputError([f"{what}: has no names of llama.cpp here"]) from None
        layer = None
        for parameter in tape.parameters:
            if parameter.node is not None:
                layer = parameter.node.layer
            is_norm = parameter.name.endswith("_norm")  # one vector for all heads
            channels, *others = (parameter.numel(),) if is_norm else parameter.shape
            yield parameter.name, layer, (channels, *(n for n in others if n > 1))
        del model


def _as_in_file(
    tensors: Tensors, a: Architecture, architecture: FileArchitecture, of_file: Collection[str]
) -> Tensors:
    """Return the tensors, with several in the place of a matrix, and one of the first of several.

    `of_file`: names of a file that may have a matrix whole that others have divided.
    """
    places = {part: name for name, parts in architecture.packed.items() for part in parts}
    result: Tensors = {}
    for name, tensor in tensors.items():
        stem = name.split(".")[-2]  # attn_q of blk.0.attn_q.weight
        parts = {} if name in of_file else architecture.divided.get(stem, {})
        for part, fields in parts.items():
            sizes = tuple(expression_of(field)(vars(a)) for field in fields)
            result[name.replace(f"{stem}.", f"{part}.")] = tensor._replace(shape=sizes)
        if not parts:
            joined = name.replace(f"{stem}.", f"{places.get(stem, stem)}.")
            shape = list(tensor.shape)
            if first := result.get(joined):
                tensor, i = first, max(len(shape) - 2, 0)  # rows come before the row
                shape[i] += first.shape[i]
            result[joined] = tensor._replace(shape=(*shape,))
    return result
