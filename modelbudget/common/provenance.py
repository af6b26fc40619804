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
    return {
        "commit": _commit(),
        "versions": {
            "modelbudget": __version__,
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in PACKAGES},
        },
        "device": f"{platform.machine()}, {os.cpu_count()} cores, {_cuda() or 'no CUDA device'}",
        "system": platform.platform(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def measuring(results: Path, shards: dict[str, int]) -> dict[str, dict[str, int]]:
    """Count the models of each sweep that were measured, reused or not measurable.

    Read from the logs of its last jobs; `shards` has the number of jobs of each sweep.
    """
    found = {}
    for sweep, n in shards.items():
        logs = [results / sweep / "logs" / f"measure-{i}-of-{n}.json" for i in range(1, n + 1)]
        found[sweep] = Counter()
        for log in logs:
            with suppress(OSError, ValueError):  # logs may be deleted or damaged
                found[sweep].update(read_json(log))
    return found


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


def _cuda() -> str | None:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None  # no driver, so no device: importing torch would take a second
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None
