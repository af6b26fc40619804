"""Explains files that hold tensors: GGUF, safetensors, adapters, memory snapshots of torch."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from modelbudget.api.explained import Explained, Line, gib, judged, model_of
from modelbudget.api.model import Model, model
from modelbudget.architecture.run_adapter import ALL_LINEAR
from modelbudget.common.errors import InputError
from modelbudget.common.files import read_text
from modelbudget.files.memory_snapshot import read_snapshot
from modelbudget.huggingface import checkpoint_files
from modelbudget.predict.engine_weights import matrices_of

MAX_JSON = 2**20
TARGETS = {
    "q_proj": "query", "k_proj": "key", "v_proj": "value", "o_proj": "output", "gate_proj": "gate",
    "up_proj": "up", "down_proj": "down",
}  # fmt: skip
"""Linear layers of decoders as transformers calls them → as we do."""


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
        unit = "bytes" if part.quantity.endswith("bytes") else "parameters"
        lines.append(Line(part.name, f"{part.stored:,} {unit}", f"{part.predicted:,} by formula",
                          verdict, 0, abs(part.difference)))  # fmt: skip
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
    return [judged("file", f"{size:,} bytes", size, 0, 0, terms)]


def adapter_parameters(
    base_model: Model, rank: int, targets: list[str], layers: Mapping[str, int] | None = None
) -> int:
    """Count the parameters of a LoRA adapter: rank times the channels of each target.

    `layers`: in how many layers, by target, where it is not in all. Raises InputError if the model
    has no such layers.
    """
    of_target = layers or {}
    numbers = sum(
        of_target.get(matrix.name, n_layer) * matrix.n * (matrix.d_in + matrix.d_out)
        for matrix, n_layer in matrices_of(base_model.architecture)
        if not matrix.routed and (ALL_LINEAR in targets or matrix.name in targets)
    )
    if not numbers:
        raise InputError(
            [f"{base_model.name}: adapter_targets = {' '.join(targets)}: no such layers"]
        )
    return rank * numbers


def of_adapter(folder: Path, name: str | None, chosen: dict[str, Any]) -> Explained:
    """Explain an adapter of PEFT: its parameters by rank and targets, and its file."""
    path = folder / "adapter_config.json"
    try:
        config = json.loads(read_text(path, MAX_JSON))
        rank, targets = config["r"], config["target_modules"]
        base, peft_type = config.get("base_model_name_or_path"), config["peft_type"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError([f"{path}: no configuration of LoRA: {error}"]) from None
    if peft_type != "LORA" or type(rank) is not int or config.get("use_dora"):
        raise InputError([f"{path}: peft_type = {peft_type}: known: LORA without use_dora"])
    file = folder / "adapter_model.safetensors"
    tensors = checkpoint_files.header(file)
    n = sum(tensor.elements for tensor in tensors)
    base_model = model_of(name, base if isinstance(base, str) else None, chosen)
    asked = []
    targets = [targets] if isinstance(targets, str) else [str(target) for target in targets]
    # PEFT may name the module of a layer.
    last = [(target, target.rpartition(".")[2]) for target in targets]
    names = list(dict.fromkeys(TARGETS.get(name, name) for _, name in last))
    layers = Counter(TARGETS.get(name, name) for path, name in last if path != name)
    if base_model is None:
        asked.append(f"--model NAME: the base model, {base}")
        first = Line("parameters", f"{n:,}", "", "asked")
    else:
        expected = adapter_parameters(base_model, rank, names, layers)
        verdict = "exact" if n == expected else "unexplained"
        of = f"{rank} (d_in + d_out) of {', '.join(names)}: {expected:,}"
        first = Line("parameters", f"{n:,}", of, verdict, 0, abs(n - expected))
    of_rank = sum(tensor.elements for tensor in tensors if rank in tensor.shape)
    second = Line("tensors of rank r", f"{len(tensors)}", f"{of_rank:,} numbers in them",
                  "exact" if of_rank == n else "unexplained", 0, n - of_rank)  # fmt: skip
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
        judged("reserved", gib(snapshot.reserved), snapshot.reserved, 0, 0, reserved),
        judged("allocated", gib(snapshot.allocated), snapshot.allocated, 0, 0, allocated),
    ]
    asked = []
    base = model_of(name, None, chosen)
    if base is None:
        asked.append("--model NAME: whose tensors they are")
    else:
        of_run = {key: chosen[key] for key in ("dtype", "weights") if key in chosen}
        n_bytes = base.predict("parameter_bytes", of_run).total
        lines.append(judged("requested", gib(snapshot.requested), snapshot.requested, 0, 0,
                            [("parameters", n_bytes)]))  # fmt: skip
    title = f"torch's allocator, {snapshot.n_segment:,} segments, {snapshot.n_block:,} live blocks"
    return Explained(path, title, tuple(lines), tuple(asked))
