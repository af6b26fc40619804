"""What README and docs print runs with the declared dependencies alone, or says what to install."""

import os
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest
from helpers.printed_lines import SERVER_LOG, commands, failures, programs
from helpers.project import ROOT
from packaging.requirements import Requirement

from modelbudget.api.command.app import main


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


def test_every_printed_line_runs_or_says_what_to_install(tmp_path):
    packages, folder = tmp_path / "packages", tmp_path / "folder"
    packages.mkdir()
    folder.mkdir()
    link_packages(declared(), packages)
    path = os.pathsep.join(map(str, (packages, ROOT)))
    without_others = [sys.executable, "-S"]
    assert failures(without_others, folder, {**os.environ, "PYTHONPATH": path}) == []


def test_the_answer_of_explain_is_the_one_that_is_printed(tmp_path, monkeypatch, capsys):
    """README and the page show the table of a log of public numbers, which is explained here."""
    (tmp_path / "server.log").write_text(SERVER_LOG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["modelbudget", "explain", "server.log"])
    with pytest.raises(SystemExit):
        main()
    out = capsys.readouterr().out.strip()
    pages = ("README.md", "docs/how-to/explain-a-number.md")
    assert all(out.split("\n", 1)[1] in (ROOT / page).read_text("utf-8") for page in pages)


def test_the_lines_are_found():
    assert ["config.json", "--fit", "h100-80gb", "--devices", "8"] in commands()
    assert any("mb.results('results/').to_pandas()" in program for program in programs())
