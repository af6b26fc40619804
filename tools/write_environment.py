"""Write environment.yml from pyproject.toml and requirements.lock: `make environment`.

The file has what the pipeline needs and no test tools, in the versions of the lock. A test keeps it
in step. Run it in the environment of the lock, whose packages name what they need.
"""

import importlib.metadata
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PATH = ROOT / "environment.yml"
EXTRA = "workflow"
HEAD = """\
# Written by tools/write_environment.py from requirements.lock.
#
#   snakemake --sdm conda --cores 8        # an environment that Snakemake makes for the jobs
#   conda env create -f environment.yml    # one to run Snakemake in
#
# conda brings Python and pip. The packages are those of the lock that the tests use, without test
# tools. Untested with conda itself; a test holds the pins to the lock.
name: modelbudget
channels:
  - conda-forge
  - nodefaults
dependencies:
  - python=3.11
  - pip
  - pip:
"""


def text() -> str:
    """Return environment.yml."""
    needed = _needed()
    return HEAD + "".join(f"      - {name}=={version}\n" for name, version in needed.items())


def _needed() -> dict[str, str]:
    """Return name → locked version of all packages that the extra needs, directly or not."""
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pins = (one.split("==") for one in lock)
    locked = {canonicalize_name(name): (name, pin) for name, pin in pins}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    waiting = list(map(Requirement, project["dependencies"]))
    waiting += _of_extra(project["optional-dependencies"], EXTRA)
    found: set[tuple[str, str]] = set()
    while waiting:
        one = waiting.pop()
        name = canonicalize_name(one.name)
        for extra in {"", *one.extras}:
            if name in locked and (name, extra) not in found:  # torch's packages for CUDA are not
                found.add((name, extra))
                waiting += _requires(name, extra)
    return dict(sorted(locked[name] for name in {name for name, _ in found}))


def _of_extra(extras: dict[str, list[str]], extra: str) -> list[Requirement]:
    """Return the requirements of an extra of this project, with those of extras that it names."""
    own = [Requirement(one) for one in extras[extra]]
    others = [other for one in own if one.name == "modelbudget" for other in one.extras]
    return [
        *(one for one in own if one.name != "modelbudget"),
        *(one for other in others for one in _of_extra(extras, other)),
    ]


def _requires(name: str, extra: str) -> list[Requirement]:
    requirements = map(Requirement, importlib.metadata.requires(name) or [])
    return [
        one for one in requirements if one.marker is None or one.marker.evaluate({"extra": extra})
    ]


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
