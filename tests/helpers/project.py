"""The project as a user has it, and copies of it that tests may change."""

import shutil
import subprocess
import sys
from pathlib import Path

from helpers.snakemake_process import environment, snakemake

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 300
PARTS_OF_THE_PROJECT = (
    "Snakefile", "configs", "environment.yml", "modelbudget", "profiles", "scripts", "workflow",
)  # fmt: skip


class Project:
    """A copy of the project that a test may change, and Snakemake in it."""

    def __init__(self, folder: Path):
        self.folder = folder
        for part in PARTS_OF_THE_PROJECT:
            copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
            copy(ROOT / part, folder / part)
        for sweep in (folder / "configs" / "sweeps").iterdir():
            sweep.unlink()

    def write_sweep(self, name: str, text: str) -> Path:
        path = self.folder / "configs" / "sweeps" / name
        path.write_text("title: A test\nquestion: Why?\n" + text)
        return path

    def log(self, sweep: str, rule: str) -> str:
        return (self.folder / "results" / sweep / "logs" / f"{rule}.log").read_text()

    def snakemake(self, *arguments: str, **of_process) -> subprocess.CompletedProcess:
        """Run Snakemake; in a process that starts like a user's where settings are given."""
        arguments = ("--cores", "2", *arguments)
        if not of_process:
            return snakemake(self.folder, arguments, TIMEOUT_S)
        return subprocess.run(
            [sys.executable, "-m", "snakemake", *arguments],
            cwd=self.folder,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            **of_process,
        )


def start(project: Project, *arguments: str, **settings) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "snakemake", "--cores", "2", *arguments],
        cwd=project.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **settings,
    )
