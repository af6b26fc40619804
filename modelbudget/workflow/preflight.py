"""Whether a run can start: its --config, devices, the folder of results, the renderer of charts."""

import os
import resource
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.terms import total
from modelbudget.common import user_code
from modelbudget.common.errors import InputError
from modelbudget.common.files import load_yaml
from modelbudget.common.paths import HOME, RESULTS
from modelbudget.common.run_metadata import cuda_device
from modelbudget.common.suggestions import did_you_mean
from modelbudget.families.module import Module
from modelbudget.measurement.process.free_memory import limits
from modelbudget.predict.formula import formula
from modelbudget.sweeps.expand import Expanded
from modelbudget.sweeps.quantity_names import OF_ALLOCATOR, OF_RUN, OF_TRAINING

CONFIG_SCHEMA = HOME / "workflow" / "schemas" / "config.schema.yaml"
"""Allowed keys of --config, with their types and descriptions."""
RENDERER = "import vl_convert; vl_convert.vegalite_to_svg({'mark': 'bar', 'data': {'values': []}})"


def check_config(config: dict[str, Any]) -> None:
    """Raise InputError for keys of --config that the schema does not allow."""
    known = load_yaml(CONFIG_SCHEMA)["properties"]
    if mistakes := [line for item in config.items() for line in _wrong(*item, known)]:
        raise InputError(mistakes)


def _wrong(key: str, value: Any, known: dict[str, dict]) -> Iterator[str]:
    """Yield a mistake if a key of --config, or its value, is not allowed."""
    if key not in known:
        allowed = ", ".join(known)
        yield f"--config {key}: unknown key{did_you_mean(key, known)} (allowed: {allowed})"
    elif value is None or value in ("", [], {}):
        yield f"--config {key}=: empty; leave it out, or give {known[key]['description']}"
    else:
        from jsonschema import Draft202012Validator  # importing it takes 0.1 s

        if not Draft202012Validator(known[key]).is_valid(value):
            yield f"--config {key}={value}: must be {known[key]['description']}"


def allow_modules(value: Any) -> None:
    """Allow the code that --config modules= names, in this run and in its jobs."""
    names = value if isinstance(value, list) else str(value or "").split(",")
    user_code.allow(str(name).strip() for name in names if str(name).strip())


def check_modules(chosen: Iterable[Expanded]) -> None:
    """Raise InputError for each module of a sweep that the command line does not allow."""
    named = {
        (expanded.path, point.architecture.module)
        for expanded in chosen
        for point in expanded.points
        if isinstance(point.architecture, Module)
    }
    refused = {where: user_code.refusal(where[1]) for where in sorted(named)}
    if mistakes := [f"{path}: {why}" for (path, _), why in refused.items() if why]:
        raise InputError(mistakes)


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
        little = "too little address space for the renderer of charts"
        without = "allowed: ulimit -v unlimited, or targets without charts"
        raise InputError([f"ulimit -v = {allowed // 1024:,} kB: {little}; {without}"])


def out_of_reach(sweep: Expanded) -> list[str]:
    """Return mistakes about the device: it must exist and have memory for the largest model.

    Free memory is checked later, when each model is measured.
    """
    device = sweep.sweep.measure.device
    key = f"{sweep.path}: measure.device = {device!r}"
    if device == "cuda" and not cuda_device():
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
        available = int(tightest.total * share)
        quantities = sweep.sweep.measure.quantities
        largest = max(_predicted_peak(p.architecture, p.run, quantities) for p in sweep.points)
        if largest > available:
            return [
                f"{key}: the largest model needs {largest:,} bytes, and {share:.0%} of "
                f"{tightest.name} is {available:,}; allowed: auto, meta, or fewer points"
            ]
    return []


def _predicted_peak(architecture: Architecture, run: RunConfig, quantities: Collection[str]) -> int:
    """Predict the peak memory of measuring one model, in bytes.

    The bytes of its parameters if nothing runs, or neither formula nor program covers it.
    """
    if (OF_TRAINING | OF_ALLOCATOR) & set(quantities):
        phases, _ = formula(type(architecture), "peak_training_bytes", architecture, run)
        if phases:
            return max(term.total for term in phases.values())
    return total(architecture.parameter_bytes(architecture, run))
