"""Large sweeps are measured in shards, and nothing of that is left in the results."""

import re

import polars as pl
import pytest
import yaml
from helpers.project import ROOT

from modelbudget.common.errors import InputError
from modelbudget.workflow import preflight, targets
from modelbudget.workflow.chosen_sweeps import chosen_sweeps, on_request
from modelbudget.workflow.preflight import check_config

# Two points are the same model, and fall into two shards.
SWEEP = """
base: gpt-2-124m
fixed: {n_vocab: 32, n_ctx: 8, n_head: 2, d_model: 8}
points: [{n_layer: 1}, {n_layer: 2}, {n_layer: 3}, {n_layer: 1, label: again}, {n_layer: 4}]
"""


def test_shards_together_are_the_whole(make_project):
    measured = {}
    for shard in ("99", "3"):
        project = make_project()
        project.write_sweep("five.yaml", SWEEP)
        target = "results/five/measured.parquet"
        run = project.snakemake(target, "--config", f"shard={shard}")
        assert run.returncode == 0, run.stderr
        measured[shard] = (project.folder / target).read_bytes()
        logs = sorted(p.name for p in (project.folder / "results/logs").glob("measure*.log"))
    assert logs == ["measure-1-of-2.log", "measure-2-of-2.log"]
    assert measured["3"] == measured["99"]
    assert pl.read_parquet(measured["3"])["architecture"].n_unique() == 4


def test_how_many_shards(sweep):
    five = sweep(SWEEP)
    assert [targets.shards({"s": five}, n) for n in (None, 99, 5, 4, 2, 1)] == [1, 1, 1, 2, 3, 5]
    assert targets.shards({"s": five, "t": five}, 4) == 3


@pytest.mark.parametrize("wrong", [0, -1, "many", 2.5, True])
def test_what_is_no_number_of_points(wrong):
    with pytest.raises(InputError, match=f"--config shard={wrong}: must be a whole number"):
        check_config({"shard": wrong})


@pytest.mark.parametrize(("device", "gpus"), [("cuda", 1), ("auto", None), ("cpu", None)])
def test_only_a_sweep_that_names_cuda_asks_for_a_gpu(device, gpus, sweep):
    assert targets.gpus([sweep(f"{SWEEP}measure: {{device: {device}}}")]) == gpus


def test_a_device_is_asked_for_where_the_models_are_measured(tmp_path, monkeypatch):
    """A cluster's front has no GPU; its nodes do."""
    (tmp_path / "configs" / "sweeps").mkdir(parents=True)
    for name in ("models", "accelerators.yaml"):
        (tmp_path / "configs" / name).symlink_to(ROOT / "configs" / name)
    text = f"title: t\nquestion: q{SWEEP}measure: {{device: cuda}}\n"
    (tmp_path / "configs" / "sweeps" / "five.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(preflight, "cuda_device", lambda: None)
    with pytest.raises(InputError, match="no CUDA device here"):
        chosen_sweeps(None)
    assert [one.name for one in chosen_sweeps(None, here=False)] == ["five"]


def test_a_sweep_that_says_so_runs_only_when_it_is_named(tmp_path, monkeypatch):
    (tmp_path / "configs" / "sweeps").mkdir(parents=True)
    for name in ("models", "accelerators.yaml"):
        (tmp_path / "configs" / name).symlink_to(ROOT / "configs" / name)
    for name, more in (("usual", ""), ("large", "default: false\n")):
        text = f"title: {name.title()}\nquestion: q\n{more}{SWEEP}"
        (tmp_path / "configs" / "sweeps" / f"{name}.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    assert [one.name for one in chosen_sweeps(None)] == ["usual"]
    assert [one.name for one in chosen_sweeps("large")] == ["large"]
    assert on_request() == [("large", "Large")]
    (tmp_path / "configs" / "sweeps" / "usual.yaml").unlink()
    with pytest.raises(InputError, match="every sweep has default: false; name one"):
        chosen_sweeps(None)
    broken = "title: t\nquestion: q\ndefault: false\nbase: gpt-2-124m\ngrid: {n_hed: [1]}\n"
    (tmp_path / "configs" / "sweeps" / "large.yaml").write_text(broken)
    with pytest.raises(InputError, match="n_hed: unknown field"):
        chosen_sweeps(None)


def test_a_sweep_of_many_traces_has_all_cores(sweep):
    """Two sweeps of 120 points: one is traced, one only counted."""
    counted, traced = (
        sweep(
            "base: gpt-2-124m\ngrid: {n_layer: {from: 1, to: 120, steps: 120, scale: linear}}\n"
            f"measure: {{device: meta, quantities: [{quantity}]}}"
        )
        for quantity in ("parameters", "activation_bytes")
    )
    assert [targets.tracing_threads([one], 8) for one in (counted, traced)] == [4, 8]
    assert targets.tracing_threads([counted, traced], 8) == 8


def test_on_slurm_every_rule_is_a_job_by_itself_or_part_of_one(make_project):
    """By itself with threads, memory and time of its own; a new rule must be put on one side."""
    project = make_project()
    project.write_sweep("five.yaml", SWEEP)
    rules = set(project.snakemake("--list-rules").stdout.split()) - {"all", "chart_files"}
    profile = yaml.safe_load((ROOT / "profiles/slurm/config.yaml").read_text())
    alone, together = profile["set-resources"].keys(), profile["groups"].keys()
    assert not alone & together
    assert alone | together == rules
    pods = yaml.safe_load((ROOT / "profiles/kubernetes/config.yaml").read_text())
    named = {
        re.split("[:=]", one)[0] for key in ("set-threads", "set-resources") for one in pods[key]
    }
    assert named <= rules
    # A cluster has no number of cores that threads could follow from.
    follow = set()
    for file in (ROOT / "workflow/rules").glob("*.smk"):
        blocks = re.split(r"^(?:use )?rule (\w+)", file.read_text(), flags=re.MULTILINE)[1:]
        rules_of_file = zip(blocks[::2], blocks[1::2], strict=True)
        follow |= {name for name, text in rules_of_file if "workflow.cores" in text}
    assert profile["set-threads"].keys() == alone | follow
