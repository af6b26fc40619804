"""The project as a user has it, and copies of it that tests may change."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from helpers.forked_programs import snakemake

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 600
PARTS_OF_THE_PROJECT = (
    "Snakefile", "configs", "environment.yml", "modelbudget", "profiles", "scripts", "workflow",
)  # fmt: skip
SERIES = ("bert", "channel-rnn", "gpt-2", "llama-3", "mixtral", "palm", "pythia", "rwkv", "t5")
"""Series of many kinds, those among them that every report has; each run checks all it has."""
MODEL_TYPES = (
    "bert", "gemma", "gemma2", "gpt2", "gpt_neox", "llama", "mistral", "mixtral", "olmo", "olmo2",
    "phi3", "qwen2", "qwen3", "rwkv", "t5",
)  # fmt: skip
"""Of the classes of these series and of configs/implementations; each run and job reads all."""
UNFINISHED = shutil.ignore_patterns("*.pyc.*")
"""Compiled code that another process is writing. What is finished saves jobs compiling it."""


class Project:
    """A folder with the project in it, which a test may change, and Snakemake there."""

    def __init__(self, folder: Path):
        self.folder = folder

    @classmethod
    def without_sweeps(cls, folder: Path) -> "Project":
        for part in PARTS_OF_THE_PROJECT:
            if (ROOT / part).is_dir():
                shutil.copytree(ROOT / part, folder / part, ignore=UNFINISHED)
            else:
                shutil.copy(ROOT / part, folder / part)
        for sweep in (folder / "configs" / "sweeps").iterdir():
            sweep.unlink()
        for series in (folder / "configs" / "models").iterdir():
            if not series.stem.startswith(SERIES):
                series.unlink()
        for model_type in (folder / "configs" / "huggingface" / "model_types").iterdir():
            if model_type.stem not in MODEL_TYPES:
                model_type.unlink()
        return cls(folder)

    def copy(self, folder: Path, *sweeps: str) -> "Project":
        """All of it, results too, or the files of these sweeps alone."""
        shutil.copytree(self.folder, folder, dirs_exist_ok=True)
        for path in (folder / "configs" / "sweeps").iterdir() if sweeps else ():
            if path.stem not in sweeps:
                path.unlink()
        return Project(folder)

    def write_sweep(self, name: str, text: str) -> Path:
        path = self.folder / "configs" / "sweeps" / name
        path.write_text("title: A test\nquestion: Why?\n" + text)
        return path

    def replace_calculator(self, calculator: dict, readings: dict) -> None:
        """Let the job that computes the calculator and predicts readings copy these.

        It reads all data, of which the next run notes changes, but sweeps.
        """
        script = self.folder / "scripts" / "calculator.py"
        before, computes, after = script.read_text().partition("catalogue = Catalogue(MODELS)\n")
        copies = [
            "import shutil\nfrom pathlib import Path\n",
            "from modelbudget.common.files import read_text\n",
            "for path in Path('configs').rglob('*.yaml'):\n",
            "    if path.parent.name != 'sweeps':\n",
            "        read_text(path)\n",
        ]
        for name, contents in {"calculator": calculator, "readings": readings}.items():
            path = self.folder / f"kept-{name}.json"
            path.write_text(json.dumps(contents, ensure_ascii=False), encoding="utf-8")
            copies.append(f"shutil.copy({path.name!r}, snakemake.output.{name})\n")
        copies.append("raise SystemExit\n")
        script.write_text("".join([before, *copies, computes, after]))

    def trace_few_layers(self) -> None:
        """Let the job that traces a training step of 32 layers, twice, trace one of six."""
        script = self.folder / "scripts" / "gpt2.py"
        text = script.read_text()
        assert text.count('"llama-3-8b"') == 1
        script.write_text(text.replace('"llama-3-8b"', '"pythia-70m"'))

    def log_of_measuring(self) -> str:
        """The log of the job that measures all sweeps."""
        return (self.folder / "results" / "logs" / "measure-1-of-1.log").read_text()

    def snakemake(self, *arguments: str, **limits: int) -> subprocess.CompletedProcess:
        """Run Snakemake; `limits`: those of its process."""
        return snakemake(self.folder, ("--cores", "2", *arguments), TIMEOUT_S, **limits)


SMALL = "base: gpt-2-124m\nfixed: {n_head: 1}\ngrid: {d_model: [8, 16], tied: [true, false]}\n"
SWEEPS = {
    "small": SMALL,
    "other": SMALL.replace("[8, 16]", "[8]").replace("fixed: {", "fixed: {vocab_multiple: 100, "),
    "alone": """base: gpt-2-124m
grid: {n_layer: {from: 1, to: 50, steps: 50}, d_ff: {from: 1, to: 3000, steps: 3000}}
measure: {device: none, quantities: [parameters]}
""",
    "zoo": "models: all\nmeasure: {quantities: [parameters]}\n",
}


def with_sweeps(folder: Path) -> Project:
    """Two sweeps of four and two models, one that is predicted alone, and some named models."""
    project = Project.without_sweeps(folder)
    for name, text in SWEEPS.items():
        project.write_sweep(f"{name}.yaml", text)
    return project


def start(project: Project, *arguments: str, **settings) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "snakemake", "--cores", "2", *arguments],
        cwd=project.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **settings,
    )
