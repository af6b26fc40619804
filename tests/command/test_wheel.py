"""The wheel alone, in an empty environment outside of the checkout, without torch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.project import ROOT

TIMEOUT_S = 300


def run(*command, **settings) -> subprocess.CompletedProcess:
    return subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=TIMEOUT_S, **settings
    )


@pytest.mark.slow
def test_a_wheel_predicts_without_torch_and_without_a_checkout(tmp_path):
    wheels, venv, empty = (tmp_path / name for name in ("wheels", "venv", "empty"))
    empty.mkdir()
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", wheels, ROOT, check=True)
    run(sys.executable, "-m", "venv", venv, check=True)
    (wheel,) = wheels.glob("*.whl")
    run(venv / "bin" / "pip", "install", wheel, check=True)
    command = venv / "bin" / "modelbudget"
    found = run(command, "palm-540b", "--json", cwd=empty, check=True)
    assert json.loads(found.stdout)["quantities"]["parameters"]["total"] == 540_356_474_880
    listed = json.loads(run(command, "models", "--json", cwd=empty, check=True).stdout)
    assert len(listed) > 200
    (empty / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_layer": 2}))
    gpt2 = json.loads(run(command, "config.json", "--json", cwd=empty, check=True).stdout)
    # GPT-2's defaults with 2 of its 12 layers of 7,087,872 parameters
    assert gpt2["quantities"]["parameters"]["total"] == 124_439_808 - 10 * 7_087_872
    lacking = run(command, "measure", "config.json", cwd=empty)
    assert lacking.returncode == 2
    assert "pip install 'modelbudget[measure]'" in lacking.stderr
    code = "import modelbudget, pathlib; print(pathlib.Path(modelbudget.__file__).parent)"
    library = Path(run(venv / "bin" / "python", "-c", code, cwd=empty, check=True).stdout.strip())
    assert library.is_relative_to(venv)
    for copied in ("configs", "scripts", "workflow"):
        there = library / "pipeline" / copied
        tracked = run("git", "ls-files", copied, cwd=ROOT, check=True).stdout.splitlines()
        assert {there.parent / name for name in tracked} <= set(there.rglob("*"))
        same = (there.parent / tracked[0]).read_bytes() == (ROOT / tracked[0]).read_bytes()
        assert same, tracked[0]
    assert (library / "py.typed").is_file()
