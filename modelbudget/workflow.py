"""What the Snakefile asks of the library: which sweeps there are, and what a job depends on."""

import hashlib
from pathlib import Path

import psutil

from modelbudget.catalogue import Catalogue
from modelbudget.errors import InputError, did_you_mean
from modelbudget.expand import Expanded, expand, predicted_peak
from modelbudget.sweep import OF_INFERENCE, OF_TRAINING

SWEEPS = Path("configs/sweeps")
MODELS = Path("configs/models")
LIBRARY = Path(__file__).parent


def sweep_files(folder: Path = SWEEPS) -> dict[str, Path]:
    """Every sweep file by name. Raises InputError for names that no result could be stored by."""
    found: dict[str, Path] = {}
    mistakes = []
    for path in sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")]):
        name = path.stem
        if not (name.isascii() and name.replace("-", "").replace("_", "").isalnum()):
            mistakes.append(
                f"{path}: the name of a sweep becomes a folder; "
                "allowed: letters, digits, hyphens and underscores"
            )
        elif name.lower() in (known := {other.lower(): found[other] for other in found}):
            mistakes.append(f"{path}: {known[name.lower()]} has the same name; rename one")
        else:
            found[name] = path
    if not found and not mistakes:
        mistakes.append(f"{folder}: holds no sweep; add a YAML file")
    if mistakes:
        raise InputError(mistakes)
    return found


def chosen_sweeps(wanted: str | list[str] | None) -> list[Expanded]:
    """The sweeps that were asked for, or all, checked and expanded.

    Raises InputError with the mistakes of all files together.
    """
    files = sweep_files()
    names = wanted.replace(",", " ").split() if isinstance(wanted, str) else wanted or list(files)
    mistakes = [
        f"--config sweeps={name}: unknown sweep{did_you_mean(name, files)} "
        f"(allowed: {', '.join(files)})"
        for name in map(str, names)
        if name not in files
    ]
    catalogue = Catalogue(MODELS)
    sweeps = []
    for name in dict.fromkeys(names):
        try:
            if name in files:
                sweeps.append(expand(files[name], catalogue))
        except InputError as error:
            mistakes += error.mistakes
    mistakes += [line for sweep in sweeps for line in _out_of_reach(sweep)]
    if mistakes:
        raise InputError(mistakes)
    return sweeps


def _out_of_reach(sweep: Expanded) -> list[str]:
    """A device asked for by name must be there, and its memory must hold the largest model."""
    device = sweep.sweep.measure.device
    key = f"{sweep.path}: measure.device = {device!r}"
    if device == "cuda" and not _has_cuda():
        return [f"{key}: torch finds no CUDA device here; allowed: auto, meta, cpu"]
    kernels = {point.run.kernels for point in sweep.points}
    if (OF_TRAINING | OF_INFERENCE) & set(sweep.sweep.measure.quantities):
        if device == "cpu" and "gpu" in kernels:
            return [f"{key}: kernels: gpu; allowed: kernels: cpu, or device: auto, meta, cuda"]
        if device == "cuda" and "cpu" in kernels:
            return [f"{key}: kernels: cpu; allowed: kernels: gpu, or device: auto, meta, cpu"]
    if device == "cpu":
        share = sweep.sweep.measure.memory_share
        free = int(psutil.virtual_memory().available * share)
        quantities = sweep.sweep.measure.quantities
        largest = max(predicted_peak(p.architecture, p.run, quantities) for p in sweep.points)
        if largest > free:
            return [
                f"{key}: the largest model needs {largest:,} bytes, and {share:.0%} of the free "
                f"memory is {free:,}; allowed: auto, meta, or fewer points"
            ]
    return []


def _has_cuda() -> bool:
    import torch  # a second, paid only by who asks for a GPU

    return torch.cuda.is_available()


def code(*parts: str) -> str:
    """Digest of the library's source under these files and folders.

    A rule that names the code it runs is run again when that code changes, and only then.
    """
    digest = hashlib.sha256()
    for part in parts:
        root = LIBRARY / part
        for path in sorted(root.rglob("*") if root.is_dir() else [root]):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(path.relative_to(LIBRARY).as_posix().encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def content(expanded: Expanded) -> str:
    """Digest of what is measured: architectures, runs, settings; not the words around them."""
    digest = hashlib.sha256(expanded.sweep.measure.model_dump_json().encode())
    for point in expanded.points:
        digest.update(f"{point.architecture.digest()} {point.run.digest()}".encode())
    return digest.hexdigest()[:16]


def swept_fields(expanded: Expanded) -> list[str]:
    """The fields that the sweep file varies, in the order in which it names them."""
    return list(dict.fromkeys(name for point in expanded.points for name in point.axes))
