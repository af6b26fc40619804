"""What explains a file: its numbers, each with the formula that is about it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from modelbudget.api.explain_files import of_adapter, of_snapshot, of_weights
from modelbudget.api.explain_logs import of_log
from modelbudget.api.explained import Explained
from modelbudget.common.errors import InputError


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
