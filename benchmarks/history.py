"""A budget locked with one major version of transformers, checked with the next one.

    PYTHONPATH=. .venv/bin/python benchmarks/history.py .history-venv/bin/python

`.history-venv` has the newest release before version 5, transformers 4.57.6, and the packages of
.venv for the rest (`make history`). For every class of the catalogue, each of its published models
is built from the same config in both versions. `modelbudget lock` with the old version and
`modelbudget check` with the new one must flag exactly the models whose parameters, counted here by
torch alone, differ.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from modelbudget.catalogue.named_models import Catalogue
from modelbudget.huggingface.classes import translations
from modelbudget.sweeps.class_config import class_config
from modelbudget.sweeps.derive import named_architecture

ROOT = Path(__file__).parent.parent
MODULE = "classes"
BUILDERS = """
import json
from pathlib import Path
import torch, transformers
MODELS = json.loads(Path(__file__).with_name("models.json").read_text())

def __getattr__(name):
    if name not in MODELS:
        raise AttributeError(name)
    kind = getattr(transformers, MODELS[name]["class"])
    return lambda: kind(kind.config_class(**MODELS[name]["config"]))
"""
COUNT = """
import classes, json, torch, transformers
counts = {"version": transformers.__version__}
for name in classes.MODELS:
    try:
        with torch.device("meta"):
            counts[name] = sum(one.numel() for one in getattr(classes, name)().parameters())
    except Exception as error:
        counts[name] = f"{type(error).__name__}: {error}"
print(json.dumps(counts))
"""


def models() -> dict[str, dict]:
    """Return class and config of each published model, by a name that Python allows."""
    found = {}
    for base in Catalogue(ROOT / "configs" / "models").bases.values():
        if base.model is None or base.transformers is None:
            continue
        kind = base.transformers
        try:
            config = class_config(kind, named_architecture(base))
        except ValueError:  # the class cannot be this model
            continue
        name = base.name.replace("-", "_").replace(".", "_")
        given = {"model_type": translations()[kind].model_type} | config
        found[name] = {"class": kind, "config": given}
    return found


def run(python: str, folder: str, *arguments: str) -> subprocess.CompletedProcess:
    settings = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [python, *arguments], cwd=folder, env=settings, capture_output=True, text=True, check=False
    )


def succeeded(process: subprocess.CompletedProcess, *codes: int) -> str:
    assert process.returncode in codes, process.stderr[-3000:]
    return process.stdout


def changed_models(markdown: str) -> dict[str, list[list[str]]]:
    """Return the rows of a table of changes by model, without the model."""
    found: dict[str, list[list[str]]] = {}
    for line in markdown.splitlines()[2:]:
        name, *rest = line.strip("| ").split(" | ")
        found.setdefault(name.removeprefix(f"{MODULE}:"), []).append(rest)
    return found


def main() -> None:
    old, new = str(Path(sys.argv[1]).absolute()), sys.executable  # run in another folder
    command = ("-m", "modelbudget")
    with tempfile.TemporaryDirectory() as folder:
        found = models()
        Path(folder, "models.json").write_text(json.dumps(found))
        Path(folder, f"{MODULE}.py").write_text(BUILDERS)
        before, after = (
            json.loads(succeeded(run(python, folder, "-c", COUNT), 0)) for python in (old, new)
        )
        versions = before.pop("version"), after.pop("version")
        refused = {
            name: next(why for why in (before[name], after[name]) if isinstance(why, str))
            for name in found
            if isinstance(before[name], str) or isinstance(after[name], str)
        }
        found = {name: one for name, one in found.items() if name not in refused}
        names = [f"{MODULE}:{name}" for name in found]
        succeeded(run(old, folder, *command, "lock", *names), 0)
        again = run(old, folder, *command, "check", "--module", MODULE)
        assert again.returncode == 0, again.stdout
        totals = run(new, folder, *command, "check", "--module", MODULE, "--totals")
        flagged = changed_models(succeeded(totals, 0, 1))
        parts = run(new, folder, *command, "check", "--module", MODULE)
        by_part = changed_models(succeeded(parts, 0, 1))
    truly = {name for name in found if before[name] != after[name]}
    kinds = {one["class"] for one in found.values()}
    print(f"transformers {versions[0]}, then {versions[1]}")
    print(
        f"{len(found)} models of {len(kinds)} classes; a version refuses {len(refused)}: {refused}"
    )
    print(f"{len(truly)} differ, {len(flagged)} are flagged, the same: {truly == flagged.keys()}")
    renamed = {found[name]["class"] for name in by_part.keys() - flagged.keys()}
    print(f"same parameters, other names of parts: {', '.join(sorted(renamed)) or 'none'}")
    print("\n| model | class | parameters before | after | parts |")
    print("| --- | --- | --: | --: | --- |")
    for name in sorted(truly | flagged.keys(), key=lambda one: (found[one]["class"], one)):
        moved = [f"{part} {difference}" for quantity, part, *_, difference in by_part.get(name, ())
                 if quantity == "parameters"]  # fmt: skip
        print(f"| {name} | {found[name]['class']} | {before[name]:,} | {after[name]:,} | "
              f"{'; '.join(moved)} |")  # fmt: skip
    sys.exit(truly != flagged.keys())


if __name__ == "__main__":
    main()
