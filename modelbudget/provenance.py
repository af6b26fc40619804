"""What made these results: what may differ between two runs stands here and only here."""

import importlib.metadata
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

PACKAGES = ("torch", "transformers", "polars", "pandas", "altair", "vl-convert-python", "snakemake")


def provenance() -> dict:
    """Versions, commit, machine and time."""
    return {
        "commit": _commit(),
        "versions": {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in PACKAGES},
        },
        "device": f"{platform.machine()}, {os.cpu_count()} cores, {_cuda() or 'no CUDA device'}",
        "system": platform.platform(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _commit() -> str:
    """The commit, marked when files differ from it; 'unknown' outside a repository."""
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
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None
