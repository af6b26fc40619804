"""Explains files that hold tensors: GGUF, safetensors, adapters, memory snapshots of torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from modelbudget.api.adapted_layers import adapted
from modelbudget.api.explained import Explained, Line, judged, model_of
from modelbudget.api.model import model
from modelbudget.common.bounded_json import load_json
from modelbudget.common.errors import InputError
from modelbudget.files.memory_snapshot import read_snapshot
from modelbudget.huggingface import checkpoint_files
from modelbudget.huggingface.value_meanings import as_json

MAX_JSON = 2**20


def of_weights(path: Path, name: str | None) -> Explained:
    """Explain a checkpoint, part by part. Raises InputError."""
    chosen = model(str(path))
    stored = chosen.checkpoint()
    if stored is None:
        raise InputError([f"{path}: no safetensors or .gguf file in it"])
    if stored.refusal:
        raise InputError([f"{path}: {stored.refusal}"])
    lines = []
    for part in stored.parts:
        verdict = "unexplained" if part.difference else "exact"
        is_bytes = part.quantity.endswith("bytes")
        unit, n_bytes = ("bytes", part.stored) if is_bytes else ("parameters", 0)
        lines.append(Line(part.name, f"{part.stored:,} {unit}", f"{part.predicted:,} by formula",
                          verdict, n_bytes, abs(part.difference)))  # fmt: skip
    lines += _sizes(stored.path)
    types = ", ".join(f"{n} {name}" for name, n in stored.dtypes.items())
    return Explained(path, f"{chosen.label}; tensors: {types}", tuple(lines))


def _sizes(path: Path) -> list[Line]:
    """Return the bytes of a file: its header and its tensors."""
    if path.name.endswith(checkpoint_files.INDEX):
        weights = checkpoint_files.read(path)
        n_bytes = weights.total_bytes
        return [
            Line("all tensors", f"{n_bytes:,} bytes", "total_size of the index", "exact", n_bytes)
        ]
    size = path.stat().st_size
    if path.suffix == ".gguf":
        from modelbudget.files.gguf_header import read_header

        header = read_header(path)
        padded = [
            -(-tensor.n_bytes // header.alignment) * header.alignment for tensor in header.tensors
        ]
        terms = [("metadata and names", header.data_start), ("tensors", sum(padded))]
    else:
        tensors = sum(tensor.n_bytes for tensor in checkpoint_files.header(path))
        terms = [("header", size - tensors), ("tensors", tensors)]
    return [judged("file", size, terms, f"{size:,} bytes")]


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _are_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(type(number) is int for number in value)


OF_LORA: dict[str, tuple[Callable[[Any], bool], str]] = {
    "use_dora": (lambda value: isinstance(value, bool), "true or false"),
    "lora_bias": (lambda value: isinstance(value, bool), "true or false"),
    "exclude_modules": (lambda value: isinstance(value, str) or _are_names(value), "names"),
    "modules_to_save": (_are_names, "names of modules"),
    "target_parameters": (_are_names, "names of parameters"),
    "layers_to_transform": (
        lambda value: type(value) is int or _are_numbers(value), "numbers of layers",
    ),
    "rank_pattern": (
        lambda value: isinstance(value, dict) and _are_numbers([*value.values()]), "ranks by name",
    ),
    "trainable_token_indices": (
        lambda value: _are_numbers(value)
        or (isinstance(value, dict) and all(map(_are_numbers, value.values()))),
        "numbers of tokens",
    ),
}  # fmt: skip
"""Optional key → whether a value is one, and what is allowed."""


def _of_lora(path: Path) -> dict[str, Any]:
    """Read a configuration of PEFT. Raises InputError if it is none of LoRA."""
    config = load_json(path, MAX_JSON)
    rank, targets = config.get("r"), config.get("target_modules")
    names = targets if isinstance(targets, list) and targets else [targets]
    allowed = {
        "peft_type": (config.get("peft_type") == "LORA", "LORA"),
        "r": (type(rank) is int and rank > 0, "a whole number from 1"),
        "target_modules": (all(isinstance(name, str) for name in names), "names of layers"),
    }
    allowed |= {
        key: (config.get(key) is None or is_right(config[key]), text)
        for key, (is_right, text) in OF_LORA.items()
    }
    wrong = [
        f"{path}: {key} = {as_json(config.get(key))}: allowed: {text}"
        for key, (is_allowed, text) in allowed.items()
        if not is_allowed
    ]
    if wrong:
        raise InputError(wrong)
    return config


def of_adapter(folder: Path, name: str | None, chosen: dict[str, Any]) -> Explained:
    """Explain an adapter of PEFT: its parameters by rank and targets, and its file."""
    path = folder / "adapter_config.json"
    config = _of_lora(path)
    rank, targets = config["r"], config["target_modules"]
    base = config.get("base_model_name_or_path")
    file = folder / "adapter_model.safetensors"
    tensors = checkpoint_files.header(file)
    n = sum(tensor.elements for tensor in tensors)
    base_model = model_of(name, base if isinstance(base, str) else None, chosen)
    asked, ranks, n_other = [], {rank}, 0
    if base_model is None:
        asked.append(f"`model=NAME`: the base model, {base}")
        first = Line("parameters", f"{n:,}", "", "asked")
    else:
        around = adapted(base_model, [targets] if isinstance(targets, str) else targets, config)
        ranks = {layer.rank for layer in around.layers}
        expected, names = around.parameters, ", ".join(sorted({*around.names}))
        verdict = "exact" if n == expected else "unexplained"
        n_other = sum(around.others.values())
        others = "".join(f" + {number:,} {what}" for what, number in around.others.items())
        of = f"{rank} (d_in + d_out) of {names}{others}: {expected:,}"
        first = Line("parameters", f"{n:,}", of, verdict, 0, abs(n - expected))
    matrices = [tensor for tensor in tensors if ".lora_" in tensor.name]
    of_rank = sum(tensor.elements for tensor in matrices if ranks & {*tensor.shape})
    second = Line("tensors of rank r", f"{len(tensors)}", f"{of_rank:,} numbers in them",
                  "exact" if of_rank + n_other == n else "unexplained", 0,
                  abs(n - n_other - of_rank))  # fmt: skip
    label = base_model.label if base_model else "no model"
    title = f"LoRA of rank {rank} over {label}"
    return Explained(folder, title, (first, second, *_sizes(file)), tuple(asked))


def of_snapshot(path: Path, name: str | None, chosen: dict[str, Any]) -> Explained:
    """Explain a memory snapshot: what tensors asked for, what rounding and the cache add."""
    snapshot = read_snapshot(path)
    allocated = [("requested by tensors", snapshot.requested),
                 ("rounding of blocks", snapshot.allocated - snapshot.requested)]  # fmt: skip
    reserved = [("allocated", snapshot.allocated),
                ("free in segments", snapshot.reserved - snapshot.allocated)]  # fmt: skip
    lines = [
        judged("reserved", snapshot.reserved, reserved),
        judged("allocated", snapshot.allocated, allocated),
    ]
    asked = []
    base = model_of(name, None, chosen)
    if base is None:
        asked.append("`model=NAME`: whose tensors they are")
    else:
        of_run = {key: chosen[key] for key in ("dtype", "weights") if key in chosen}
        n_bytes = base.predict("parameter_bytes", of_run).total
        lines.append(judged("requested", snapshot.requested, [("parameters", n_bytes)]))
    title = f"torch's allocator, {snapshot.n_segment:,} segments, {snapshot.n_block:,} live blocks"
    return Explained(path, title, tuple(lines), tuple(asked))
