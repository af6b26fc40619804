"""The model of a GGUF file: its architecture from the metadata, and its tensors by component."""

from collections.abc import Mapping
from itertools import compress, product
from pathlib import Path
from typing import Any

from modelbudget.catalogue.named_models import Base, base_of_config
from modelbudget.common.errors import InputError
from modelbudget.common.validation_messages import show
from modelbudget.files.gguf_formats import gguf_formats
from modelbudget.files.gguf_header import GgufHeader, read_header
from modelbudget.huggingface.checkpoint_files import Tensor
from modelbudget.huggingface.classes import translations
from modelbudget.huggingface.config_file import read_keys
from modelbudget.huggingface.read_config import keys_by_field

ARCHITECTURE, NAME = "general.architecture", "general.name"
EXPERTS, SELECTION = "n_expert", "exp_probs_b"
OF_EXPERTS = {"d_ff": "d_expert"}
"""Field → what the number is of a class (Mixtral) whose layers have experts alone."""

WHOLE_KEYS = "attn_kv_b"
"""In names of files of before April 2025: keys and values of MLA in one matrix, which llama.cpp
computes for all heads, and caches."""
OPTIONAL = (
    "output.weight", "blk.0.attn_q.bias", "blk.0.attn_q_norm.weight", "blk.0.ffn_up.bias",
    f"blk.0.{SELECTION}.bias",
)  # fmt: skip
"""Tensors of which a file has all of their kind, or none."""
WIDTHS = {"d_head", "kv_lora_rank"}
"""Fields of heads whose width is not that of the states divided among them."""
OF_HEADS = ("attention.key_length", "attention.head_count", "embedding_length")


def gguf_base(path: Path) -> Base:
    """Read the header of a file as a base. Raises InputError."""
    return _base(read_header(path))


def _base(header: GgufHeader) -> Base:
    path, architecture = header.path, _architecture(header)
    class_name = _class(header, architecture)
    label = header.metadata.get(NAME)
    label = label if isinstance(label, str) and label.isprintable() and label else path.stem
    configured = read_keys(path, _config(header, architecture, class_name))
    return base_of_config(path, label, configured._replace(config=None))  # no class computes it


def bases_of_log(path: Path, printed: Mapping[str, Any]) -> list[Base]:
    """Return the models that a file may be whose metadata a log of llama.cpp prints.

    They differ in the tensors of which metadata does not say whether a file has them. Raises
    InputError.
    """
    n_vocab = printed.get("n_vocab")
    if type(n_vocab) is not int:
        return []
    architecture = printed.get(ARCHITECTURE) or printed.get("arch")
    names = gguf_formats().printed_keys
    read = {f"{architecture}.{names[k]}": v for k, v in printed.items() if k in names and v != 0}
    metadata = {ARCHITECTURE: architecture, **read, **printed}
    table = Tensor("token_embd.weight", "F32", (n_vocab, 1), 0)
    bases = {}
    for has in product((False, True), repeat=len(OPTIONAL)):
        others = [Tensor(name, "F32", (1,), 0) for name in compress(OPTIONAL, has)]
        base = _base(GgufHeader(path, metadata, [table, *others], 0, 1))
        bases.setdefault(str(base.fields), base)
    return [*bases.values()]


def _architecture(header: GgufHeader) -> str:
    name = header.metadata.get(ARCHITECTURE)
    read = [name for name, listed in gguf_formats().architectures.items() if listed.is_read]
    if name not in read:
        others = "or the model's name or its config.json, with `gguf=FORMAT`"
        refused = f"{ARCHITECTURE} = {show(name)}: such files are not read here"
        raise InputError([f"{header.path}: {refused}; allowed: {', '.join(read)}; {others}"])
    return name


def _class(header: GgufHeader, architecture: str) -> str:
    """Return the class of the model: among those of an architecture, the one with its parts.

    Parts are experts, and a bias by which they are chosen.
    """
    has_experts = header.metadata.get(f"{architecture}.expert_count", 0) not in (0, None)
    has_bias = any(SELECTION in tensor.name for tensor in header.tensors)

    def agreement(name: str) -> int:
        is_biased = "router_bias" in translations()[name].fixed
        return 2 * ((EXPERTS in keys_by_field(name)) == has_experts) + (is_biased == has_bias)

    return max(gguf_formats().architectures[architecture].classes, key=agreement)


def _config(header: GgufHeader, architecture: str, class_name: str) -> dict[str, Any]:
    """Return the keys of a config.json that say what metadata and tensors say."""
    translation = translations()[class_name]
    keys = keys_by_field(class_name)
    config: dict[str, Any] = {"architectures": [class_name], "model_type": translation.model_type}
    shapes = {tensor.name: tensor.shape for tensor in header.tensors}
    metadata = {
        key.removeprefix(f"{architecture}."): value for key, value in header.metadata.items()
    }
    for name, field in gguf_formats().fields.items():
        value = metadata.get(name)
        field = field if field in keys else OF_EXPERTS.get(field, field)
        key = keys.get(field, field)
        if value is not None and key in translation.defaults:
            config[key] = value
    for field, (tensor, axis) in gguf_formats().sizes.items():
        if field in keys and len(shape := shapes.get(tensor, ())) > axis:
            config[keys[field]] = shape[axis]
    match metadata.get("attention.key_length"), metadata.get("rope.dimension_count"):
        case [int(d_key), int(d_rope)] if f"blk.0.{WHOLE_KEYS}.weight" in shapes:
            config[keys["d_nope"]] = d_key - d_rope
    match metadata.get("attention.key_length_mla"), metadata.get("rope.dimension_count"):
        case [int(d_key), int(d_rope)]:
            config.setdefault(keys["d_nope"], d_key - d_rope)
    match metadata.get("block_count"), metadata.get("nextn_predict_layers"):
        case [int(n_layer), int(further)]:
            config[keys["n_layer"]] = n_layer - further
    width, *sizes = map(metadata.get, OF_HEADS)
    match sizes:
        case [int(n_head), int(d_model)] if keys.keys().isdisjoint(WIDTHS) and type(width) is int:
            if width * n_head != d_model:
                read = f"{header.path}: {architecture}.{OF_HEADS[0]} = {width}"
                raise InputError([f"{read}: {class_name} has {d_model} channels of {n_head} heads"])
    has_bias = not shapes.keys().isdisjoint(("blk.0.attn_q.bias", "blk.0.attn_qkv.bias"))
    options = {
        "tie_word_embeddings": "output.weight" not in shapes,
        "attention_bias": has_bias,
        "use_bias": has_bias,
        "use_qk_norm": "blk.0.attn_q_norm.weight" in shapes,
        "q_lora_rank": metadata.get("attention.q_lora_rank"),
        "mlp_bias": "blk.0.ffn_up.bias" in shapes,
    }
    return config | {key: value for key, value in options.items() if key in translation.defaults}
