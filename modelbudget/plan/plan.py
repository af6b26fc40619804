"""Plan of a run for the Snakefile: sweeps, dependencies of jobs, and resulting files."""

from __future__ import annotations

import math
import os
import re
import resource
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelbudget.architecture.terms import total
from modelbudget.catalogue.accelerators import accelerators
from modelbudget.catalogue.models import Catalogue
from modelbudget.common.errors import InputError
from modelbudget.common.files import load_yaml, yaml_files
from modelbudget.common.paths import (
    ACCELERATORS,
    MODELS,
    RESULTS,
    SHARDS,
    SWEEPS,
    failed_at,
    files_in,
)
from modelbudget.common.suggestions import did_you_mean
from modelbudget.huggingface import bounded
from modelbudget.measure.limits import limits
from modelbudget.sweep.check_models import check_models
from modelbudget.sweep.expand import Asked, Expanded, expanded, predicted_peak, read
from modelbudget.sweep.sweep_file import OF_RUN

if TYPE_CHECKING:
    from modelbudget.predict.streamed import Predicted

CONFIG = {"sweeps": "names of sweeps, as sweeps=a,b", "shard": "a number of points"}
"""Allowed keys of --config."""
ON_PAPER = 10_000
"""Parameters of the largest model that the report counts step by step."""

TEMPLATES = Path(__file__).parents[1] / "report" / "templates"
FOLDERS = {
    "architecture", "frame", "gpt-2-ledger", "headline", "logs", "measurements", "provenance",
    "tying-surgery", "witnesses",
}  # fmt: skip
"""Folders of results/ that do not belong to a sweep."""
PARTS_OF_SWEEP = ("fit", "models", "numbers", "shares", "total", "vocabulary")
"""Suffixes of the ids that the page derives from a sweep's name: `width-fit`, `width-numbers`."""
RENDERER = "import vl_convert; vl_convert.vegalite_to_svg({'mark': 'bar', 'data': {'values': []}})"


OF_REPORT = (
    "report.html", "verdict.json", "provenance.json", "headline.charts",
    "architecture/trees.json", "architecture/swept.json", "architecture/modules.json",
    "frame/explorer.json", "frame/vega.js",
    "gpt-2-ledger/ledger.parquet", "tying-surgery/surgery.parquet",
)  # fmt: skip
OF_SWEEP = (
    "sweep.json", "points.parquet", "predicted.parquet", "measured.parquet", "failures.json",
    "comparison.parquet", "comparison.csv", "charts.json", "charts",
)  # fmt: skip
OF_PREDICTED = (
    "sweep.json", "predictions", "totals.parquet", "shares.parquet", "charts.json", "charts",
)  # fmt: skip
TABLES = ("parquet", "csv")
"""Files of a run, of each sweep, and of each sweep without measurement; formats of some tables."""


def check_results(folder: Path = RESULTS) -> None:
    """Raise InputError if results cannot be written."""
    if folder.is_symlink() and not folder.exists():
        raise InputError([f"{folder}: a link to {folder.readlink()}, which does not exist"])
    if folder.exists() and not folder.is_dir():
        raise InputError([f"{folder}: is a file; results need a folder; rename or delete it"])
    if not os.access(folder if folder.exists() else folder.parent, os.W_OK):
        raise InputError([f"{folder}: not writable; run in a writable folder"])


def check_renderer(targets: Collection[str]) -> None:
    """Raise InputError if charts are wanted and cannot be drawn.

    The renderer's JavaScript engine reserves tens of GB of address space, uses little of it, and
    aborts if it cannot get it. If the address space is limited, the renderer is tried.
    """
    allowed, _ = resource.getrlimit(resource.RLIMIT_AS)
    tables_alone = targets and all(target.endswith((".parquet", ".csv")) for target in targets)
    if allowed == resource.RLIM_INFINITY or tables_alone:
        return
    tried = subprocess.run([sys.executable, "-c", RENDERER], capture_output=True, check=False)
    if tried.returncode:
        raise InputError(
            [
                f"ulimit -v = {allowed // 1024:,} kB: too little address space for the "
                "renderer of charts; allowed: ulimit -v unlimited, or targets without charts"
            ]
        )


def reserved_names() -> set[str]:
    """Return names that no sweep may have: folders of results/ and ids of the page."""
    pages = (path.read_text(encoding="utf-8") for path in TEMPLATES.glob("*.html.j2"))
    ids = {name for page in pages for name in re.findall(r'id="([\w-]+)"', page)}
    return FOLDERS | ids | {"all"}


def sweep_files(folder: Path = SWEEPS) -> dict[str, Path]:
    """Return every sweep file by name. Raises InputError for names that cannot be folders."""
    found: dict[str, Path] = {}
    mistakes = []
    reserved = reserved_names()
    for path in yaml_files(folder):
        name = path.stem
        if not (name.isascii() and name.replace("-", "").replace("_", "").isalnum()):
            mistakes.append(
                f"{path}: the name of a sweep becomes a folder; "
                "allowed: letters, digits, hyphens and underscores"
            )
        elif name.lower() in reserved:
            mistakes.append(
                f"{path}: the report uses this name for one of its parts; "
                f"allowed: any name but {', '.join(sorted(reserved))}"
            )
        elif name.lower() in (known := {other.lower(): found[other] for other in found}):
            mistakes.append(f"{path}: {known[name.lower()]} has the same name; rename one")
        else:
            found[name] = path
    mistakes += _names_of_parts(found)
    if not found and not mistakes:
        mistakes.append(f"{folder}: contains no sweep; add a YAML file")
    if mistakes:
        raise InputError(mistakes)
    return found


def _names_of_parts(found: dict[str, Path]) -> Iterator[str]:
    """Yield a mistake for each sweep named like a part of another one on the page."""
    for name, path in found.items():
        sweep, _, part = name.rpartition("-")
        if sweep in found and part in PARTS_OF_SWEEP:
            yield (
                f"{path}: the report uses this name for a part of {found[sweep]}; allowed: any "
                f"name but {sweep}-{part}"
            )


def check_config(config: dict[str, Any]) -> None:
    """Raise InputError for unknown keys of --config, and for keys without a value."""
    mistakes = [
        f"--config {key}: unknown key{did_you_mean(key, CONFIG)} (allowed: {', '.join(CONFIG)})"
        for key in config
        if key not in CONFIG
    ]
    mistakes += [
        f"--config {key}=: empty; leave it out, or give {CONFIG[key]}"
        for key, value in config.items()
        if key in CONFIG and (value is None or value in ("", [], {}))
    ]
    if mistakes:
        raise InputError(mistakes)


def chosen_sweeps(wanted: Any, here: bool = True) -> list:
    """Read and check the named sweeps; None: all except those with `default: false`.

    Each is `Expanded`, or `Predicted` if nothing is to be measured. With `here`, models are
    measured on this machine, and the sweeps are also checked against its devices.

    Raises InputError with the mistakes of all files together.
    """
    files = sweep_files()
    names = list(files) if wanted is None else _names(wanted, files)
    mistakes = [
        f"--config sweeps={name}: unknown sweep{did_you_mean(name, files)} "
        f"(allowed: {', '.join(files)})"
        for name in names
        if name not in files
    ]
    catalogue = Catalogue(MODELS)
    check_models(catalogue)
    sweeps = []
    for path in [files[name] for name in files if name in names]:
        try:
            asked = read(path, catalogue)
            if asked.sweep.default or wanted is not None:
                sweeps.append(_predicted(asked) if asked.sweep.predicts_alone else expanded(asked))
        except InputError as error:
            mistakes += error.mistakes
    if not sweeps and not mistakes:
        mistakes.append(f"{SWEEPS}: every sweep has default: false; name one: --config sweeps=…")
    try:
        accelerators(ACCELERATORS)
    except InputError as error:
        mistakes += error.mistakes
    if here:
        measured = [sweep for sweep in sweeps if isinstance(sweep, Expanded)]
        mistakes += [line for sweep in measured for line in _out_of_reach(sweep)]
    bounded.end()
    if mistakes:
        raise InputError(mistakes)
    return sweeps


def _names(wanted: Any, files: Iterable[str]) -> list[str]:
    """Split names of sweeps, from a list or from text with commas.

    Snakemake reads 123 and 1e3 as numbers: such a number means the sweep whose name it reads so.
    """
    if isinstance(wanted, str):
        names = wanted.replace(",", " ").split()
        if not names:
            raise InputError([f"--config sweeps={wanted}: empty; give {CONFIG['sweeps']}"])
        return names
    if isinstance(wanted, list):
        return [
            n for one in wanted for n in ([one] if isinstance(one, str) else _names(one, files))
        ]
    return [next((name for name in files if _as_snakemake_reads(name) == wanted), str(wanted))]


def _as_snakemake_reads(name: str) -> Any:
    from snakemake.cli import parse_config  # importing it takes a second

    return parse_config([f"sweeps={name}"])["sweeps"]


def on_request() -> list[tuple[str, str]]:
    """Return name and title of the sweeps with `default: false`."""
    found = {name: load_yaml(path) for name, path in sweep_files().items()}
    return [(name, one["title"]) for name, one in found.items() if one.get("default") is False]


def _predicted(asked: Asked):
    # Imports Polars, which only sweeps without measurement need here.
    from modelbudget.predict.streamed import predicted

    return predicted(asked)


def _out_of_reach(sweep: Expanded) -> list[str]:
    """Return mistakes about the device: it must exist and have memory for the largest model.

    Free memory is checked later, when each model is measured.
    """
    device = sweep.sweep.measure.device
    key = f"{sweep.path}: measure.device = {device!r}"
    if device == "cuda" and not _has_cuda():
        return [f"{key}: torch finds no CUDA device here; allowed: auto, meta, cpu"]
    backends = {point.run.backend for point in sweep.points}
    if OF_RUN & set(sweep.sweep.measure.quantities):
        if device == "cpu" and "gpu" in backends:
            return [f"{key}: backend: gpu; allowed: backend: cpu, or device: auto, meta, cuda"]
        if device == "cuda" and "cpu" in backends:
            return [f"{key}: backend: cpu; allowed: backend: gpu, or device: auto, meta, cpu"]
    if device == "cpu":
        share = sweep.sweep.measure.memory_share
        tightest = min(limits(), key=lambda limit: limit.total)
        there = int(tightest.total * share)
        quantities = sweep.sweep.measure.quantities
        largest = max(predicted_peak(p.architecture, p.run, quantities) for p in sweep.points)
        if largest > there:
            return [
                f"{key}: the largest model needs {largest:,} bytes, and {share:.0%} of "
                f"{tightest.name} is {there:,}; allowed: auto, meta, or fewer points"
            ]
    return []


def _has_cuda() -> bool:
    import torch  # importing it takes a second, and only sweeps on a GPU need it

    return torch.cuda.is_available()


def shards(sweeps: dict[str, Expanded], n_points: Any) -> dict[str, int]:
    """Return the number of measuring jobs of each sweep with at most `n_points` points a job.

    None leaves each sweep whole. Raises InputError if `n_points` is not a number of points.
    """
    if n_points is None:
        return dict.fromkeys(sweeps, 1)
    if type(n_points) is not int or n_points < 1:
        raise InputError(
            [f"--config shard={n_points}: must be a whole number of points, at least 1"]
        )
    return {name: math.ceil(len(sweep.points) / n_points) for name, sweep in sweeps.items()}


def shards_of(sweep: str, shards: dict[str, int], kind: str) -> list[str]:
    """Return the files of one kind that the measuring jobs of a sweep write."""
    n = shards[sweep]
    return [f"{SHARDS}/{sweep}/{i}-of-{n}.{kind}" for i in range(1, n + 1)]


def one_of(names: Iterable[str]) -> str:
    """Return a wildcard pattern that matches these names only; no names match nothing."""
    return "|".join(names) or "(?!)"


def gpus(expanded: Expanded) -> int | None:
    """Return the number of GPUs to request: one if the sweep names the device, else None."""
    return 1 if expanded.sweep.measure.device == "cuda" else None


def model_files() -> list[Path]:
    """Return the files of all named models and the config.json files that these name."""
    return [*yaml_files(MODELS), *(path for path in files_in(MODELS) if path.suffix == ".json")]


def source_files(predicted: Predicted) -> list[Path]:
    """Return every file that a sweep without measurements depends on."""
    return [predicted.path, *model_files(), *predicted.files]


def last_failure(sweep: str) -> int | None:
    """Return the time of the last failed measurement of a sweep, in ns; None if there is none.

    As a parameter of the rule it changes after each failure, so that the rule runs again until
    nothing fails.
    """
    path = failed_at(sweep)
    return path.stat().st_mtime_ns if path.exists() else None


def counted_by_hand(expanded: Expanded) -> bool:
    """Whether the points are listed one by one and are all small enough to count by hand.

    The report explains the models of such a sweep step by step.
    """
    return not expanded.sweep.grid and all(
        point.architecture.has_formula
        and total(point.architecture.parameters(point.architecture)) <= ON_PAPER
        for point in expanded.points
    )


def has_witness(expanded: Expanded) -> bool:
    """Whether `transformers` classes are counted: in the zoo and for a config.json."""
    known = any(point.transformers for point in expanded.points)
    return known and (is_zoo(expanded) or bool(expanded.files))


def is_zoo(expanded: Expanded) -> bool:
    """Whether the sweep contains every named model."""
    return expanded.sweep.models == "all"


def zoo_tables(sweeps: dict[str, Expanded]) -> list[str]:
    """Return the tables of published and counted models that these sweeps write."""
    return [f"results/{name}/zoo.parquet" for name, sweep in sweeps.items() if is_zoo(sweep)]


def fit_tables(sweeps: dict[str, Expanded]) -> list[str]:
    """Return the tables of what fits on accelerators that these sweeps write."""
    return [f"results/{name}/fit.parquet" for name, sweep in sweeps.items() if sweep.sweep.fit]


def results(sweeps: dict[str, Expanded], predicted: Iterable[str]) -> list[str]:
    """Return all files that the pipeline writes, so that deleted ones are made again."""
    of_sweeps = [f"{name}/{file}" for name in sweeps for file in OF_SWEEP]
    of_predicted = [f"{name}/{file}" for name in predicted for file in OF_PREDICTED]
    tables = [*zoo_tables(sweeps), *fit_tables(sweeps)]
    witnesses = [f"{name}/witness.parquet" for name in sweeps if has_witness(sweeps[name])]
    return [
        *(f"results/{file}" for file in (*OF_REPORT, *of_sweeps, *of_predicted, *witnesses)),
        *(f"{path.removesuffix('.parquet')}.{kind}" for path in tables for kind in TABLES),
    ]
