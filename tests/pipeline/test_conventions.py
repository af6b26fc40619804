"""What Snakemake and its catalogue of workflows expect of a workflow."""

import re
import runpy

import yaml
from helpers.project import ROOT, SMALL, Project
from packaging.requirements import Requirement

from modelbudget.workflow.preflight import CONFIG_SCHEMA

OUTER = """
module modelbudget:
    snakefile: "{snakefile}"
    config: {{"sweeps": "small"}}

use rule * from modelbudget as modelbudget_*

rule mine:
    default_target: True
    input: "results/small/predicted.parquet"
    output: "mine.txt"
    script: "mine.py"
"""


def test_another_workflow_uses_it_as_a_module(make_project, tmp_path):
    """With a sweep of its own, the shipped models, rules of its own and Snakemake's own output."""
    shipped = make_project().folder
    outer = Project(tmp_path)
    (tmp_path / "configs" / "sweeps").mkdir(parents=True)
    outer.write_sweep("small.yaml", SMALL)
    (tmp_path / "Snakefile").write_text(OUTER.format(snakefile=shipped / "Snakefile"))
    (tmp_path / "mine.py").write_text(
        "import polars as pl\n"
        "table = pl.read_parquet(snakemake.input[0])\n"
        "open(snakemake.output[0], 'w').write(str(table['architecture'].n_unique()))\n"
    )
    run = outer.snakemake()
    assert run.returncode == 0, run.stdout + run.stderr
    assert (tmp_path / "mine.txt").read_text() == "4"
    assert "4 of 4 steps (100%) done" in run.stderr
    # Its own configuration is not the module's, and what is there is not made again.
    whole = outer.snakemake("-n", "modelbudget_all", "--config", "unused=1")
    assert "small: predict and compare" in whole.stdout
    assert "Write out the points" not in whole.stdout


def test_the_environment_of_conda_has_the_pins_of_the_lock():
    written = (ROOT / "environment.yml").read_text(encoding="utf-8")
    assert written == runpy.run_path(str(ROOT / "scripts/dev/write_environment.py"))["text"]()
    *_, packages = yaml.safe_load(written)["dependencies"]
    lock = set((ROOT / "requirements.lock").read_text(encoding="utf-8").split())
    assert set(packages["pip"]) == lock
    names = {Requirement(pin).name for pin in packages["pip"]}
    assert {"snakemake", "torch", "transformers", "polars", "vl-convert-python"} <= names
    assert not names & {"pytest", "hypothesis", "playwright", "ruff"}


def test_the_lock_of_tests_adds_to_that_of_users():
    of_users = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    first, *added = (ROOT / "tests" / "requirements.lock").read_text(encoding="utf-8").splitlines()
    assert first == "-r ../requirements.lock"
    names = {Requirement(pin).name for pin in added}
    assert {"pytest", "hypothesis", "playwright", "ruff"} <= names
    assert not names & {Requirement(pin).name for pin in of_users}


def test_what_the_catalogue_of_workflows_needs_is_there():
    assert (ROOT / "Snakefile").is_file()
    shown = yaml.safe_load((ROOT / ".snakemake-workflow-catalog.yml").read_text())["usage"]
    assert shown["software-stack-deployment"]["conda"] is True
    rules = [path.read_text() for path in (ROOT / "workflow" / "rules").glob("*.smk")]
    named = {name for text in rules for name in re.findall(r'conda:\s+"([^"]+)"', text)}
    assert named == {"../../environment.yml"}
    explained = (ROOT / "config" / "README.md").read_text()
    keys = re.findall(r"^\| `(\w+)` \|", explained, re.M)
    assert keys == list(yaml.safe_load(CONFIG_SCHEMA.read_text())["properties"])
