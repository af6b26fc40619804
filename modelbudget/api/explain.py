"""What explains a file: its numbers, each with the formula that is about it.

Of files that hold tensors: GGUF, safetensors, adapters, memory snapshots of torch. Logs are
explained in `explain_logs.py`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from modelbudget.api.adapted_layers import adapted
from modelbudget.api.explain_logs import of_log
from modelbudget.api.explained import Explained, Line, judged, model_of
from modelbudget.api.model import model
from modelbudget.common.bounded_json import load_json
from modelbudget.common.errors import InputError
from modelbudget.common.validation_messages import show
from modelbudget.files.memory_snapshot import read_snapshot
from modelbudget.huggingface import checkpoint_files

MAX_JSON = 2**20


def explain(
    path: str | Path, model: str | None = None, settings: Mapping[str, Any] | None = None
) -> Explained:
    """Explain the numbers of a file. Raises InputError if it is none that is known.

    A .gguf file, a safetensors file or folder, an adapter's folder, a memory snapshot of torch
    (.pickle), or a log. `model` and `settings` say what the file does not.
    """
    place = Path(path)
    chosen = dict(settings or {})
    if place.suffix == ".pickle" or place.suffix == ".pkl":
        return of_snapshot(place, model, chosen)
    if (place / "adapter_config.json").is_file():
        return of_adapter(place, model, chosen)
    if place.is_dir() or place.name.endswith((".gguf", ".safetensors", ".safetensors.index.json")):
        return of_weights(place, model)
    if not place.exists():  # else a file, or a pipe
        raise InputError([f"{place}: no such file; allowed: a log, a .gguf or safetensors file, a "
                          "folder, a snapshot.pickle"])  # fmt: skip
    return of_log(place, model, chosen)


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


class _Lora(BaseModel):
    """Keys of a configuration of LoRA that decide which tensors it has, and what each may be."""

    model_config = ConfigDict(strict=True, defer_build=True)

    peft_type: Annotated[Literal["LORA"], "LORA"]
    r: Annotated[int, Field(gt=0), "a whole number from 1"]
    bias: Annotated[Literal["none", "all", "lora_only"] | None, "none, all, lora_only"] = None
    target_modules: Annotated[str | list[str], "names of layers"]
    use_dora: Annotated[bool | None, "true or false"] = None
    lora_bias: Annotated[bool | None, "true or false"] = None
    exclude_modules: Annotated[str | list[str] | None, "names"] = None
    modules_to_save: Annotated[list[str] | None, "names of modules"] = None
    target_parameters: Annotated[list[str] | None, "names of parameters"] = None
    layers_to_transform: Annotated[int | list[int] | None, "numbers of layers"] = None
    rank_pattern: Annotated[dict[str, int] | None, "ranks by name"] = None
    trainable_token_indices: Annotated[
        list[int] | dict[str, list[int]] | None, "numbers of tokens"
    ] = None


def _of_lora(path: Path) -> dict[str, Any]:
    """Read a configuration of PEFT. Raises InputError if it is none of LoRA."""
    config = load_json(path, MAX_JSON)
    try:
        _Lora.model_validate(config)
    except ValidationError as error:
        wrong = dict.fromkeys(str(mistake["loc"][0]) for mistake in error.errors())
        allowed = {key: _Lora.model_fields[key].metadata[-1] for key in wrong}
        lines = (f"{key} = {show(config.get(key))}: allowed: {allowed[key]}" for key in wrong)
        raise InputError([f"{path}: {line}" for line in lines]) from None
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
    matrices = [t for t in tensors if ".lora_" in t.name and len(t.shape) == 2]
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
