"""The wheel alone, in an empty environment outside of the checkout, without torch and with it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from helpers.forked_programs import environment
from helpers.printed_lines import failures, run_all
from helpers.project import ROOT

TIMEOUT_S = 900
TEST_TOOLS = {"pytest", "hypothesis", "playwright", "ruff", "pyrefly", "snakefmt", "xdist"}
GPT2 = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 2}
TWO_LAYERS = 124_439_808 - 10 * 7_087_872
"""Parameters of GPT-2 with 2 of its 12 layers."""
SWEEP = """
title: Two small models
question: Do they run outside of a checkout?
base: llama-3
fixed: {n_vocab: 1000, d_model: 64, n_head: 4, n_kv_head: 2, d_head: 16, d_ff: 172}
grid: {n_layer: [1, 2]}
"""

pytestmark = pytest.mark.slow


def run(*command, **settings) -> subprocess.CompletedProcess:
    return subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=TIMEOUT_S, **settings
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Return the wheel that `make release` has built, or a new one."""
    if built := os.environ.get("WHEEL"):
        return Path(built).absolute()
    folder = tmp_path_factory.mktemp("wheels")
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", folder, ROOT, check=True)
    (built,) = folder.glob("*.whl")
    return built


def installed(wheel: Path, folder: Path, extra: str = "") -> Path:
    """Install the wheel in a new environment, in the versions of the lock; return its programs."""
    run(sys.executable, "-m", "venv", folder, check=True)
    lock = ROOT / "requirements.lock"
    run(folder / "bin" / "pip", "install", f"{wheel}{extra}", "-c", lock, check=True)
    return folder / "bin"


@pytest.fixture(scope="module")
def plain(wheel, tmp_path_factory):
    """The programs of an environment with only the declared dependencies."""
    return installed(wheel, tmp_path_factory.mktemp("plain") / "venv")


@pytest.fixture
def empty(tmp_path):
    """A folder outside of the checkout with a config.json and a sweep."""
    folder = tmp_path / "empty"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(GPT2))
    (folder / "tiny.yaml").write_text(SWEEP)
    return folder


def test_a_wheel_predicts_without_torch_and_without_a_checkout(plain, empty):
    command = plain / "modelbudget"
    found = run(command, "palm-540b", "--json", cwd=empty, check=True)
    assert json.loads(found.stdout)["quantities"]["parameters"]["total"] == 540_356_474_880
    listed = json.loads(run(command, "models", "--json", cwd=empty, check=True).stdout)["models"]
    assert len(listed) > 200
    gpt2 = json.loads(run(command, "config.json", "--json", cwd=empty, check=True).stdout)
    assert gpt2["quantities"]["parameters"]["total"] == TWO_LAYERS
    for name, extra in (("measure config.json", "measure"), ("sweep tiny.yaml", "workflow")):
        lacking = run(command, *name.split(), cwd=empty)
        assert lacking.returncode == 2
        assert f"pip install 'modelbudget[{extra}]'" in lacking.stderr
        assert len(lacking.stderr.splitlines()) == 1
    code = "import modelbudget, pathlib; print(pathlib.Path(modelbudget.__file__).parent)"
    library = Path(run(plain / "python", "-c", code, cwd=empty, check=True).stdout.strip())
    assert library.is_relative_to(plain.parent)
    for copied in ("configs", "scripts", "workflow"):
        there = library / "pipeline" / copied
        tracked = run("git", "ls-files", copied, cwd=ROOT, check=True).stdout.splitlines()
        assert {there.parent / name for name in tracked} <= set(there.rglob("*"))
        same = (there.parent / tracked[0]).read_bytes() == (ROOT / tracked[0]).read_bytes()
        assert same, tracked[0]
    assert (library / "py.typed").is_file()


def test_the_workflow_of_a_public_ci_names_this_wheel(wheel):
    workflow = yaml.safe_load((ROOT / "docs/github-actions/budget.yml").read_text())
    assert Path(workflow["env"]["MODELBUDGET"]).name == wheel.name


def test_every_printed_line_runs_or_says_what_to_install(plain, tmp_path):
    assert failures(run_all([str(plain / "python")], tmp_path, environment())) == []


def test_a_wheel_measures_and_sweeps_without_test_tools(wheel, empty, tmp_path):
    """With torch and Snakemake: minutes, nearly all of it their installation."""
    programs = installed(wheel, tmp_path / "venv", "[workflow]")
    listed = json.loads(run(programs / "pip", "list", "--format=json", check=True).stdout)
    assert not {one["name"].lower() for one in listed} & TEST_TOOLS
    measured = run(programs / "modelbudget", "measure", "config.json", cwd=empty, check=True)
    assert f"{TWO_LAYERS:,}" in measured.stdout
    assert f"GPT2LMHeadModel has {TWO_LAYERS:,} parameters, equal" in measured.stderr
    swept = run(programs / "modelbudget", "sweep", "tiny.yaml", cwd=empty, check=True)
    assert (empty / swept.stdout.splitlines()[-1]).stat().st_size > 100_000
    code = (
        "import modelbudget as mb; frame = mb.results('tiny/results').to_pandas(); "
        "print(len(frame), frame.agrees.all())"
    )
    read = run(programs / "python", "-c", code, cwd=empty, check=True).stdout.split()
    assert int(read[0]) > 20
    assert read[1] == "True"
