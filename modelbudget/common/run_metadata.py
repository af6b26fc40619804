"""Metadata of a run: versions, commit, machine, time. Only these may differ between two runs."""

import ctypes
import importlib.metadata
import os
import platform
import subprocess
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from modelbudget import __version__
from modelbudget.common.files import read_json

PACKAGES = ("torch", "transformers", "polars", "pandas", "altair", "vl-convert-python", "snakemake")


def provenance() -> dict:
    """Return versions, commit, machine and time."""
    cuda = cuda_device() or "no CUDA device"
    return {
        "commit": _commit(),
        "versions": {
            "modelbudget": __version__,
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in PACKAGES},
        },
        "device": f"{platform.machine()}, {os.cpu_count()} cores, {cuda}",
        "system": platform.platform(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def measuring(logs: Path, shards: int) -> dict[str, dict[str, int]]:
    """Count the models of each sweep that were measured, reused or not measurable.

    Read from the logs of the last measuring jobs, of which there are `shards`.
    """
    counts: dict[str, Counter] = {}
    for number in range(1, shards + 1):
        with suppress(OSError, ValueError):  # logs may be deleted or damaged
            for sweep, models in read_json(logs / f"measure-{number}-of-{shards}.json").items():
                counts.setdefault(sweep, Counter()).update(models)
    return {sweep: dict(models) for sweep, models in counts.items()}


def _commit() -> str:
    """Return the commit, marked if files differ from it; 'unknown' outside a repository."""
    try:
        return subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def cuda_device() -> str | None:
    """Return the name of the CUDA device that torch finds, None without one."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None  # no driver, so no device: importing torch would take a second
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None
