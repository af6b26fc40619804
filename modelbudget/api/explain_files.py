"""Explains files that hold tensors: GGUF, safetensors, adapters, memory snapshots of torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from modelbudget.api.explained import Explained, Line, judged, model_of
from modelbudget.api.model import Model, model
from modelbudget.architecture.run_adapter import ALL_LINEAR, NAMES_OF_LLAMA
from modelbudget.common.bounded_json import load_json
from modelbudget.common.errors import InputError
from modelbudget.files.memory_snapshot import read_snapshot
from modelbudget.huggingface import checkpoint_files
from modelbudget.huggingface.classes import translations
from modelbudget.huggingface.module_names import Paths, linear_layers
from modelbudget.huggingface.value_meanings import as_json
from modelbudget.predict.engine_weights import adapted_channels, matrices_of

MAX_JSON = 2**20
STACKS = {"gate_up_proj": 2, "down_proj": 1, "gate.weight": 0}
"""Parameters of a layer with experts → matrices of d_expert in each expert; none in the router."""


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


class Adapted(NamedTuple):
    """What a LoRA adapter is around: rank, and inputs and outputs together, of each layer."""

    names: list[str]
    layers: list[tuple[int, int]]

    @property
    def parameters(self) -> int:
        """Those of the adapter: rank times the channels of each layer."""
        return sum(rank * channels for rank, channels in self.layers)


def adapted(base_model: Model, targets: list[str], config: Mapping[str, Any]) -> Adapted:
    """Return what an adapter is around: layers of the class, or ours if it has no known names.

    `targets`: names of ours or of PEFT's, which may name the module of a layer; `config` has the
    rank, `r`. Raises InputError if the model has no such layers.
    """
    of_peft = {ours: name for name, ours in NAMES_OF_LLAMA.items()}
    if layers := channels_of(base_model, [of_peft.get(name, name) for name in targets], config):
        return Adapted([target.rpartition(".")[2] for target in targets], layers)
    last = {target: target.rpartition(".")[2] for target in targets}
    ours = {target: NAMES_OF_LLAMA.get(name, name) for target, name in last.items()}
    names = [*dict.fromkeys(ours.values())]
    n_layers = Counter(name for target, name in ours.items() if "." in target)
    channels = adapted_channels(base_model.architecture, names, n_layers)
    if not channels:
        no_such = f"adapter_targets = {' '.join(names)}: no such layers"
        raise InputError([f"{base_model.name}: {no_such}"])
    return Adapted(names, [(config["r"], channels)])


def channels_of(
    base_model: Model, targets: list[str], config: Mapping[str, Any]
) -> list[tuple[int, int]] | None:
    """Return rank, and inputs and outputs, of each layer of the class that an adapter is around.

    PEFT adapts the stack of a layer's experts with the rank times their number, and names it, the
    router and other ranks in `target_parameters` and `rank_pattern`. None if the class's names are
    not known.
    """
    a: Any = base_model.architecture
    translation = translations().get(base_model.base.transformers or "")
    layers = linear_layers(translation.model_type, vars(a)) if translation else {}
    named = [name for name, paths in layers.items() if _is_adapted(name, paths, targets)]
    chosen = [(config["r"], channels) for channels in _channels(a, layers, named)]
    n_moe = sum(name.endswith(".experts.0.up_proj") for name in layers)
    for target in config.get("target_parameters") or ():
        of_target = _of_experts(a, target, config) if n_moe else None
        if of_target is None:
            return None
        chosen += n_moe * [of_target]
    return chosen or None


def _is_adapted(name: str, paths: Paths, targets: list[str]) -> bool:
    if ".experts." in name or paths == ("head",):
        return False
    ends = [f".{target.removeprefix('model.')}" for target in targets]
    return targets == [ALL_LINEAR] or f".{name}".endswith(tuple(ends))


def _channels(a: Any, layers: dict[str, Paths], named: list[str]) -> Iterator[int]:
    """Yield inputs and outputs together of each named layer of the class."""
    of_ours = {m.path: m for m, _ in matrices_of(a)}
    in_one: dict[tuple, list[str]] = {}  # layers of the class that are one matrix of ours
    for name, paths in layers.items():
        in_one.setdefault((name.rpartition(".")[0], paths), []).append(name)
    for name in named:
        paths = layers[name]
        parts = in_one[name.rpartition(".")[0], paths]
        packed = of_ours[paths[0]].widths if len(parts) > 1 else ()
        d_out = packed[parts.index(name)] if packed else sum(of_ours[path].d_out for path in paths)
        yield of_ours[paths[0]].d_in + d_out


def _of_experts(a: Any, target: str, config: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return rank and channels of a stack of experts, or of their router; None if it is neither."""
    n_up = STACKS.get(target.removeprefix("mlp.").removeprefix("experts."))
    if n_up is None:
        return None
    ranks = config.get("rank_pattern") or {}
    rank = next((n for text, n in ranks.items() if text.endswith(target)), config["r"])
    if n_up == 0:
        return rank, a.d_model + a.n_expert
    return rank * a.n_expert, a.d_model + n_up * a.d_expert


def _of_lora(path: Path) -> dict[str, Any]:
    """Read a configuration of PEFT. Raises InputError if it is none of LoRA."""
    config = load_json(path, MAX_JSON)
    rank, targets = config.get("r"), config.get("target_modules")
    names = targets if isinstance(targets, list) and targets else [targets]
    allowed = {
        "peft_type": (config.get("peft_type") == "LORA", "LORA"),
        "use_dora": (not config.get("use_dora"), "false"),
        "r": (type(rank) is int and rank > 0, "a whole number from 1"),
        "target_modules": (all(isinstance(name, str) for name in names), "names of layers"),
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
    asked, ranks = [], {rank}
    if base_model is None:
        asked.append(f"`model=NAME`: the base model, {base}")
        first = Line("parameters", f"{n:,}", "", "asked")
    else:
        around = adapted(base_model, [targets] if isinstance(targets, str) else targets, config)
        ranks = {of_rank for of_rank, _ in around.layers}
        expected, names = around.parameters, ", ".join(sorted({*around.names}))
        verdict = "exact" if n == expected else "unexplained"
        of = f"{rank} (d_in + d_out) of {names}: {expected:,}"
        first = Line("parameters", f"{n:,}", of, verdict, 0, abs(n - expected))
    of_rank = sum(tensor.elements for tensor in tensors if ranks & {*tensor.shape})
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
