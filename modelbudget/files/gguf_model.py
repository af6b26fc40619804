"""The model of a GGUF file: its architecture from the metadata, and its tensors by component."""

from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

from modelbudget.catalogue.named_models import Base, base_of_config
from modelbudget.common.errors import InputError
from modelbudget.common.validation_messages import show
from modelbudget.files.gguf_formats import gguf_formats
from modelbudget.files.gguf_header import GgufHeader, read_header
from modelbudget.files.gguf_tensors import component_of
from modelbudget.huggingface.checkpoint_files import Tensor
from modelbudget.huggingface.classes import translations
from modelbudget.huggingface.config_file import read_keys
from modelbudget.huggingface.read_config import keys_by_field

ARCHITECTURE, NAME = "general.architecture", "general.name"
EXPERTS = "n_expert"
OF_EXPERTS = {"d_ff": "d_expert"}
"""Field → what the number is of a class (Mixtral) whose layers have experts alone."""

OF_HEADS = ("attention.key_length", "attention.head_count", "embedding_length")


class StoredComponents(NamedTuple):
    """Numbers of the tensors of a file by component; `tables` are tensors without parameters.

    `unknown`: tensors that are of no component.
    """

    numbers: Counter[str]
    tensors: dict[str, list[Tensor]]
    tables: list[Tensor]
    unknown: list[Tensor]


def gguf_base(path: Path) -> Base:
    """Read the header of a file as a base. Raises InputError."""
    header = read_header(path)
    architecture = _architecture(header)
    class_name = _class(header, architecture)
    label = header.metadata.get(NAME)
    label = label if isinstance(label, str) and label.isprintable() and label else path.stem
    configured = read_keys(path, _config(header, architecture, class_name))
    return base_of_config(path, label, configured._replace(config=None))  # no class computes it


def stored_components(header: GgufHeader, components: Collection[str]) -> StoredComponents:
    """Return the numbers of a file's tensors by component of its model."""
    architecture = _architecture(header)
    stored = StoredComponents(Counter(), {}, [], [])
    for tensor in header.tensors:
        component = component_of(tensor.name, architecture, components)
        if component is not None:
            stored.numbers[component] += tensor.elements
            stored.tensors.setdefault(component, []).append(tensor)
        elif tensor.name.removesuffix(".weight").rpartition(".")[2] in gguf_formats().tables:
            stored.tables.append(tensor)
        else:
            stored.unknown.append(tensor)
    return stored


def _architecture(header: GgufHeader) -> str:
    name = header.metadata.get(ARCHITECTURE)
    known = gguf_formats().architectures
    if not isinstance(name, str) or name not in known:
        raise InputError(
            [f"{header.path}: {ARCHITECTURE} = {show(name)}: not known here; allowed: "
             f"{', '.join(name for name, listed in known.items() if listed.is_read)}"]
        )  # fmt: skip
    if not known[name].is_read:
        raise InputError(
            [f"{header.path}: {ARCHITECTURE} = {name}: such files are not read here; allowed: the "
             "model's name or its config.json, with `gguf=FORMAT`"]
        )  # fmt: skip
    return name


def _class(header: GgufHeader, architecture: str) -> str:
    """Return the class of the model: among those of an architecture, the one that has experts."""
    classes = gguf_formats().architectures[architecture].classes
    has_experts = header.metadata.get(f"{architecture}.expert_count", 0) not in (0, None)
    with_experts = [name for name in classes if EXPERTS in keys_by_field(name)]
    return with_experts[0] if has_experts and with_experts else classes[0]


def _config(header: GgufHeader, architecture: str, class_name: str) -> dict[str, Any]:
    """Return the keys of a config.json that say what metadata and tensors say."""
    translation = translations()[class_name]
    keys = keys_by_field(class_name)
    config: dict[str, Any] = {"architectures": [class_name], "model_type": translation.model_type}
    shapes = {tensor.name: tensor.shape for tensor in header.tensors}
    for name, field in gguf_formats().fields.items():
        value = header.metadata.get(f"{architecture}.{name}")
        field = field if field in keys else OF_EXPERTS.get(field, field)
        if value is not None and field in keys:
            config[keys[field]] = value
    if embedding := shapes.get("token_embd.weight"):
        config[keys["n_vocab"]] = embedding[0]
    width, *sizes = (header.metadata.get(f"{architecture}.{name}") for name in OF_HEADS)
    match sizes:
        case [int(n_head), int(d_model)] if "d_head" not in keys and isinstance(width, int):
            if width * n_head != d_model:
                read = f"{header.path}: {architecture}.{OF_HEADS[0]} = {width}"
                raise InputError([f"{read}: {class_name} has {d_model} channels of {n_head} heads"])
    has_bias = not shapes.keys().isdisjoint(("blk.0.attn_q.bias", "blk.0.attn_qkv.bias"))
    options = {
        "tie_word_embeddings": "output.weight" not in shapes,
        "attention_bias": has_bias,
        "use_bias": has_bias,
        "mlp_bias": "blk.0.ffn_up.bias" in shapes,
    }
    return config | {key: value for key, value in options.items() if key in translation.defaults}
