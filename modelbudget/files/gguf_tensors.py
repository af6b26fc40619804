"""Tensors of a model by their names in GGUF, from the program of a decoder, and back."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_config import RunConfig
from modelbudget.common.errors import InputError
from modelbudget.files.gguf_formats import FileArchitecture, Quantised, gguf_formats
from modelbudget.operations.part import NoProgramError
from modelbudget.operations.tape import Tape, running_on

Shapes = dict[str, tuple[int, ...]]
_OF_LAYER = re.compile(r"blk\.(\d{1,9})\.(.+)")


def architecture_of_class(class_name: str | None) -> str:
    """Return llama.cpp's name of a class of `transformers`. Raises InputError."""
    known = gguf_formats().architectures
    for name, listed in known.items():
        if class_name in listed.classes:
            return name
    classes = ", ".join(class_name for listed in known.values() for class_name in listed.classes)
    raise InputError(
        [
            f"no names of llama.cpp are known here for {class_name or 'this model'}; "
            f"allowed: {classes}"
        ]
    )


def shapes_of(a: Architecture, architecture: str) -> Shapes:
    """Return the shape of each tensor of a model, (…, rows, row), by its name in a file.

    Raises InputError for a part that has no name here.
    """
    names, biases = _names(architecture), gguf_formats().architectures[architecture].biases
    endings = gguf_formats().endings
    shapes: Shapes = {}
    for component, layer, shape in _parameters(a):
        if component not in names:
            raise InputError([f"{component} has no name in {architecture} files here"])
        prefix = "" if layer is None else f"blk.{layer}."
        tensor = f"{prefix}{names[component]}{endings.get(names[component], '.weight')}"
        if tensor in shapes:
            tensor = f"{prefix}{biases.get(component, names[component])}.bias"
        shapes[tensor] = shape
    listed = gguf_formats().architectures[architecture]
    return _packed(_divided(shapes, a, listed), listed)


def quantised(a: Architecture, architecture: str, imatrix: bool) -> Quantised:
    """Return what the rules for types read of a model."""
    sizes = a.model_dump()
    return Quantised(
        architecture,
        sizes["n_layer"] + gguf_formats().architectures[architecture].further_layers,
        sizes["n_head"],
        sizes["n_kv_head"],
        sizes.get("n_expert", 0),
        imatrix,
    )


def component_of(name: str, architecture: str, components: Collection[str]) -> str | None:
    """Return which of a model's components a tensor of a file is; None if it is none of them.

    Packed matrices are named by the first of their components, which `joined` gives.
    """
    stem = name.removesuffix(".weight").removesuffix(".bias")
    if of_layer := _OF_LAYER.fullmatch(stem):
        stem = of_layer[2]
    listed = gguf_formats().architectures[architecture]
    stem = listed.packed.get(stem, [stem])[0]
    stem = next((whole for whole, parts in listed.divided.items() if stem in parts), stem)
    names = (*_names(architecture).items(), *listed.biases.items())
    of_name = (component for component, name in names if name == stem)
    return next((component for component in of_name if component in components), None)


def joined(components: Mapping[str, int], architecture: str) -> Counter[str]:
    """Add up the numbers of components that files of an architecture hold as one matrix."""
    names = _names(architecture)
    by_name = {names[component]: component for component in components if component in names}
    first = {
        by_name[part]: by_name[parts[0]]
        for parts in gguf_formats().architectures[architecture].packed.values()
        for part in parts
        if part in by_name
    }
    sums: Counter[str] = Counter()
    for component, number in components.items():
        sums[first.get(component, component)] += number
    return sums


def _names(architecture: str) -> dict[str, str]:
    data = gguf_formats()
    return data.names | data.architectures[architecture].names


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
            yield parameter.name, layer, (parameter.numel(),) if is_norm else parameter.shape
        del model


def _divided(shapes: Shapes, a: Architecture, architecture: FileArchitecture) -> Shapes:
    """Put several tensors in the place of a matrix that a file holds so."""
    divided: Shapes = {}
    for name, shape in shapes.items():
        of_layer = _OF_LAYER.fullmatch(name.removesuffix(".weight"))
        stem = of_layer[2] if of_layer else ""
        parts = architecture.divided.get(stem, {})
        for part, fields in parts.items():
            sizes = tuple(vars(a)[field] for field in fields)
            divided[name.replace(f"{stem}.", f"{part}.")] = sizes
        if not parts:
            divided[name] = shape
    return divided


def _packed(shapes: Shapes, architecture: FileArchitecture) -> Shapes:
    """Join the matrices that a file holds as one, in the place of the first."""
    places = {part: name for name, parts in architecture.packed.items() for part in parts}
    packed: Shapes = {}
    for name, shape in shapes.items():
        of_layer = re.fullmatch(r"(blk\.\d+\.)(\w+)(\.\w+)", name)
        if of_layer is None or of_layer[2] not in places:
            packed[name] = shape
            continue
        joined_name = of_layer[1] + places[of_layer[2]] + of_layer[3]
        rows, *row = packed.get(joined_name, (0, *shape[1:]))
        packed[joined_name] = (rows + shape[0], *row)
    return packed
