"""The tests see faults that `faults.yaml` puts into a copy of the project."""

import shutil
import subprocess
import sys

import pytest
import yaml
from helpers.project import PARTS_OF_THE_PROJECT, ROOT, UNFINISHED

COPIED = (*PARTS_OF_THE_PROJECT, "docs", "README.md", "pyproject.toml", "tests")
FAULTS = yaml.safe_load((ROOT / "tests/faults/faults.yaml").read_text(encoding="utf-8"))
SECONDS = 600
SOME_FAILED = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faulty")
    for part in COPIED:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, folder / part, ignore=UNFINISHED)
        else:
            shutil.copy(ROOT / part, folder / part)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault['file']}: {fault['old']}")
def test_a_fault_is_seen(copied, fault):
    path = copied / fault["file"]
    text = path.read_text(encoding="utf-8")
    assert text.count(fault["old"]) == 1, "faults.yaml no longer fits the code"
    path.write_text(text.replace(fault["old"], fault["new"]), encoding="utf-8")
    tests = [fault["test"], "-n", "0", "-x", "-p", "no:cacheprovider"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *tests],
        cwd=copied,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    path.write_text(text, encoding="utf-8")
    assert run.returncode == SOME_FAILED, run.stdout + run.stderr


def test_every_fault_fits_the_code():
    """A change of the code moves its fault along; running them all takes minutes."""
    for fault in FAULTS:
        text = (ROOT / fault["file"]).read_text(encoding="utf-8")
        assert text.count(fault["old"]) == 1, fault["file"]
        assert text.replace(fault["old"], fault["new"]) != text
        assert (ROOT / fault["test"].partition("::")[0]).is_file(), fault["test"]
