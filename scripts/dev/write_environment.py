"""Write environment.yml from requirements.lock: `make environment`. A test keeps it in step."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
PATH = ROOT / "environment.yml"
HEAD = """\
# Written by scripts/dev/write_environment.py from requirements.lock.
#
#   snakemake --sdm conda --cores 8        # an environment that Snakemake makes for the jobs
#   conda env create -f environment.yml    # one to run Snakemake in
#
# conda brings Python and pip, and pip the packages of the lock. Untested with conda itself.
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
    pins = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    return HEAD + "".join(f"      - {pin}\n" for pin in pins)


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
