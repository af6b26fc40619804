"""What README and docs print runs with the declared dependencies alone, or says what to install.

The answers that they print are those of the commands.
"""

import os
import re
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest
from helpers.printed_lines import answers, commands, failures, programs, run_all
from helpers.project import ROOT
from packaging.requirements import Requirement


def declared() -> set[str]:
    """The distributions that a plain installation brings, with all that they need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found: set[str] = set()
    missing = list(map(Requirement, project["dependencies"]))
    while missing:
        one = missing.pop()
        if one.name in found or (one.marker and not one.marker.evaluate({"extra": ""})):
            continue
        found.add(one.name)
        missing += map(Requirement, distribution(one.name).requires or ())
    return found


def link_packages(names: set[str], folder: Path) -> None:
    """Link the packages of distributions into a folder, which is then what is installed."""
    for name in names:
        of = distribution(name)
        for top in {path.parts[0] for path in of.files or ()} - {"..", "__pycache__"}:
            (folder / top).symlink_to(of.locate_file(top))


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> list[list]:
    """Every printed line, run once with what a plain installation brings."""
    packages, folder = tmp_path_factory.mktemp("packages"), tmp_path_factory.mktemp("folder")
    link_packages(declared(), packages)
    path = os.pathsep.join(map(str, (packages, ROOT)))
    return run_all([sys.executable, "-S"], folder, {**os.environ, "PYTHONPATH": path})


def test_every_printed_line_runs_or_says_what_to_install(done):
    assert failures(done) == []


def test_every_printed_answer_is_the_output_of_its_command(done):
    """As on a terminal of 80 columns: runs of lines in their order; … stands for those between."""
    outputs = {line: out for line, _, _, out in done}
    assert len(answers()) >= 8
    for page, words, text in answers():
        rest = outputs[" ".join(["modelbudget", *words])]
        assert max(map(len, text.splitlines())) <= 80, page
        for part in re.split(r"^…\n", text, flags=re.M):
            before, found, rest = f"\n{rest}".partition(f"\n{part}")
            assert found, (page, part, before)


def test_the_lines_are_found():
    assert ["config.json", "--fit", "h100-80gb", "--devices", "8"] in commands()
    assert any("mb.results('results/').to_pandas()" in program for program in programs())
