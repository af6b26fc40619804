"""A model that cannot be measured costs itself, is reported with its reason, and is tried again."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from unittest.mock import patch

import polars as pl
import psutil
import pytest
from helpers.forked_programs import environment, snakemake_writing_to
from helpers.project import ROOT, SMALL
from helpers.risky import Risky

from modelbudget.architecture.run_config import RunConfig
from modelbudget.common.workers import spread
from modelbudget.compare.failures import by_reason, lines
from modelbudget.measurement.cached_points import measure_new
from modelbudget.measurement.measured import Measured
from modelbudget.measurement.measured_table import failures, measured_table
from modelbudget.measurement.process import measure_in_processes
from modelbudget.measurement.process.measure_in_processes import measure_all
from modelbudget.measurement.reference import class_counts
from modelbudget.measurement.reference.cached_classes import witness_table
from modelbudget.sweeps.class_config import class_config
from modelbudget.sweeps.derive import named_architecture
from modelbudget.sweeps.sweep_file import Measure

REASONS = {
    "kill": "killed by signal 9, probably out of memory",
    "crash": "crashed with signal 11 (Segmentation fault)",
    "exit": "its process ended with exit status 3",
    "raise": "RuntimeError: not enough memory",
    "hang": "no answer within 1 s",
}
ON_META = Measure(device="meta", timeout_s=1)


def measured(deeds: list[str], n_workers: int = 2, measure: Measure = ON_META):
    models = [
        (Risky(width=i, deed=deed), RunConfig(length=1)) for i, deed in enumerate(deeds, start=1)
    ]
    return measure_all(models, measure, n_workers)


@pytest.mark.parametrize("n_workers", [1, 2])
def test_a_model_that_ends_its_process_costs_itself(n_workers):
    deeds = ["nothing", *(deed for one in REASONS for deed in (one, "nothing"))] * 2
    found = measured(deeds, n_workers)
    assert [result.values.get("parameters") for result in found] == [
        {"only": i} if deed == "nothing" else None for i, deed in enumerate(deeds, start=1)
    ]
    assert [set(result.missing.values()) for result in found] == [
        set() if deed == "nothing" else {REASONS[deed]} for deed in deeds
    ]


def test_a_class_that_ends_its_process_costs_itself(catalogue, monkeypatch):
    """Reference classes are counted in processes of the same kind."""
    architectures = [named_architecture(catalogue[f"gpt-2-{n}"]) for n in ("124m", "355m")]
    build = class_counts.build

    def deadly(kind, config):
        if config["n_embd"] == 768:
            os._exit(3)
        return build(kind, config)

    monkeypatch.setattr(class_counts, "build", deadly)
    kind = "GPT2LMHeadModel"
    dead, alive = class_counts.witnesses([(kind, class_config(kind, a)) for a in architectures], 2)
    assert dead.failed
    assert dead.refusal == "not counted: its process ended with exit status 3"
    assert alive.parameters == 354_823_168
    assert not alive.failed
    assert witness_table([dead, alive])["parameters"].to_list() == [None, 354_823_168]


GROUPS = {
    "parameters": {"parameters"},
    "training": {"flops_forward", "peak_training_bytes"},
    "use": {"flops_decode"},
}
QUANTITIES = sorted(set().union(*GROUPS.values()))
WHEN = ("training", "use")
FAILS = REASONS | {"hang": "no answer within 2 s", "fill": "MemoryError: needs more than "}


@cache
def measured_when(deed: str) -> dict[str, Measured]:
    """Measure a model that fails in training and one that fails in use, at once: hangs are long.

    Models of 0.1 GB, since a hundredth of the memory has room for two.
    """
    measure = Measure(
        quantities=QUANTITIES,
        timeout_s=2 if deed == "hang" else 60,
        memory_gb=0.1,
        memory_share=0.01,
    )
    run = RunConfig(length=2, backend="cpu")
    models = [(Risky(width=4, deed=deed, when=when), run) for when in WHEN]
    with patch.object(measure_in_processes, "OBJECTS_BYTES", 2**28):
        return dict(zip(WHEN, measure_all(models, measure, 2), strict=True))


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("deed", FAILS)
def test_where_one_quantity_fails_the_others_of_that_model_are_kept(deed, when):
    found = measured_when(deed)[when]
    lost = GROUPS[when]
    assert found.missing.keys() == lost
    assert all(reason.startswith(FAILS[deed]) for reason in found.missing.values())
    assert found.method in ("cpu", "meta")
    for quantity in set(QUANTITIES) - lost:
        assert found.values[quantity], quantity
    assert {row["quantity"] for row in failures([found])} == lost
    table = measured_table([found], QUANTITIES)
    assert set(table["quantity"]) == set(QUANTITIES) - lost


def test_a_model_that_is_not_measured_whole_is_tried_again(tmp_path):
    measure = Measure(device="meta", quantities=["parameters", "flops_forward"])
    models = [
        (Risky(width=width, deed=deed, when="training"), RunConfig(length=2))
        for width, deed in ((4, "raise"), (5, "nothing"))
    ]
    for reused in (0, 1):
        found = measure_new(models, measure, 1, tmp_path)
        assert found.models == {"measured": 1 - reused, "reused": reused, "failed": 1}
        assert found.table.filter(quantity="parameters")["value"].sum() == 2 * 8 * (4 + 5)
        assert [one["failure"] for one in found.failures] == [REASONS["raise"]]


def test_what_was_measured_before_an_interrupt_is_kept(tmp_path):
    def interrupted(outcomes, _):
        yield next(outcomes)
        raise KeyboardInterrupt

    models = [
        (Risky(width=width, deed="nothing", when="training"), RunConfig()) for width in (4, 5)
    ]
    with (
        patch.object(measure_in_processes, "progress", interrupted),
        pytest.raises(KeyboardInterrupt),
    ):
        measure_new(models, ON_META, 1, tmp_path)
    found = measure_new(models, ON_META, 1, tmp_path)
    assert found.models == {"measured": 1, "reused": 1, "failed": 0}
    assert found.table.filter(quantity="parameters")["value"].sum() == 2 * 8 * (4 + 5)


def test_reasons_are_told_once_for_all_their_models():
    rows = [
        {"point": str(i), "label": f"n = {i}", "quantity": quantity, "failure": reason}
        for i in range(6)
        for quantity, reason in (
            ("flops_forward", "RuntimeError: no" if i < 5 else None),
            ("parameters", "killed" if i == 5 else None),
            ("resident_bytes", "needs 9 bytes on cpu, where 1 may be used"),
        )
    ]
    table = pl.DataFrame(rows)
    assert lines("mine", table) == [
        "mine: n = 0; n = 1; n = 2 and 2 more: flops_forward: RuntimeError: no",
        "mine: n = 5: parameters: killed",
    ]
    assert [len(one.labels) for one in by_reason(table)] == [6, 5, 1]


def test_what_failed_is_no_measurement():
    found = measured(["nothing", "exit"])
    table = measured_table(found, ON_META.quantities)
    assert table["architecture"].unique().to_list() == [found[0].architecture]
    assert failures(found) == [
        {
            "architecture": found[1].architecture, "run": found[1].run, "quantity": quantity,
            "failure": REASONS["exit"],
        }
        for quantity in ("parameters", "parameter_bytes")
    ]  # fmt: skip


def test_a_model_without_room_costs_itself():
    """2³² numbers are 16 GB: refused by a thousandth of the memory, and nothing is allocated."""
    (refused,) = measure_all(
        [(Risky(width=2**32, deed="nothing"), RunConfig(length=1))],
        Measure(device="cpu", memory_share=0.001),
        1,
    )
    assert refused.missing["parameters"].startswith(
        "MemoryError: needs 17,179,869,184 bytes on cpu, where "
    )
    (at_ease,) = measure_all(
        [(Risky(width=2**32, deed="nothing"), RunConfig(length=1))], Measure(memory_share=0.001), 1
    )
    assert at_ease.method == "meta"
    assert at_ease.values["parameter_bytes"] == {"only": 2**34}


def test_an_interrupted_run_leaves_no_process_behind(tmp_path):
    """The one at work and what it has started end with the run, as at Ctrl-C."""

    def work(name: str) -> None:
        if name == "short":
            return
        if os.fork() == 0:
            name += " child"
        (tmp_path / name).write_text(str(os.getpid()))
        time.sleep(60)

    outcomes = spread(work, ["short", "long"], 2, 600)
    assert next(outcomes) == (0, None)
    wait_until(lambda: sum(bool(path.read_text()) for path in tmp_path.iterdir()) == 2)
    outcomes.close()
    for path in (tmp_path / "long", tmp_path / "long child"):
        process = int(path.read_text())
        wait_until(lambda process=process: has_ended(process))


SPREADING = """
import os, subprocess, time
from modelbudget.common.workers import spread

def work(_):
    child = subprocess.Popen(["sleep", "600"])
    grandchild = os.fork()
    os.write(1, f"{os.getpid()} {child.pid} {grandchild}\\n".encode())
    time.sleep(600)

list(spread(work, range(3), 3, 600))
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_workers_and_all_that_they_started_end_with_their_parent(end):
    parent = subprocess.Popen(
        [sys.executable, "-c", SPREADING],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    # Each worker writes a line, and so does the process that it forks.
    lines = [parent.stdout.readline() for _ in range(6)]
    os.kill(parent.pid, end)
    parent.communicate(timeout=10)  # until nobody can write to the pipe
    processes = {int(word) for line in lines for word in line.split()} - {0}
    assert len(processes) == 9
    for process in processes:
        wait_until(lambda process=process: has_ended(process))


NOT_TERMINATED = """
import signal
from modelbudget.common.workers import spread

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
assert list(spread(abs, [-1], 1, 600)) == [(0, 1)]
"""


def test_a_process_with_workers_ends_where_no_sigterm_arrives():
    """A signal that arrives while a process is being forked can be lost, as here where the children
    block it.
    """
    subprocess.run([sys.executable, "-c", NOT_TERMINATED], cwd=ROOT, check=True, timeout=60)


LONG = """

import time
from pathlib import Path

def __init__(self, a, allocate=Embedding.__init__):
    allocate(self, a)
    Path("sleeping").touch()
    time.sleep(600)

Embedding.__init__ = __init__
"""


@pytest.mark.parametrize("end", ["SIGTERM", "Ctrl-C"])
def test_an_interrupted_run_ends_within_seconds_and_leaves_nothing(make_project, tmp_path, end):
    """SIGTERM reaches Snakemake alone, Ctrl-C every process that is not in a group of its own."""
    project = make_project()
    project.write_sweep("small.yaml", SMALL)
    with (project.folder / "modelbudget" / "modules" / "embedding.py").open("a") as modules:
        modules.write(LONG)
    printed = tmp_path / "printed"
    arguments = "--cores", "2", "results/small/comparison.parquet"
    with snakemake_writing_to(printed, project.folder, arguments, environment()) as run:
        wait_until((project.folder / "sleeping").exists, 60)
        started = processes_in(project.folder)
        assert len(started) > 3  # Snakemake, the job, its guard and its workers
        if end == "SIGTERM":
            os.kill(run.pid, signal.SIGTERM)
        else:
            os.killpg(run.pid, signal.SIGINT)
        run.join(5)
        assert run.exitcode not in (0, None)
    output = printed.read_text()
    assert "Traceback" not in output
    assert "STOPPED" in output
    assert "FAILED" not in output
    wait_until(lambda: not processes_in(project.folder))
    assert not list((project.folder / "results").rglob("*.part"))


def processes_in(folder: Path) -> list[psutil.Process]:
    """All that run there."""
    found = psutil.process_iter(["cwd", "status"])
    return [
        one
        for one in found
        if one.info["cwd"] == str(folder) and one.info["status"] != psutil.STATUS_ZOMBIE
    ]


def has_ended(process: int) -> bool:
    """Whether it is gone, or a zombie."""
    try:
        with open(f"/proc/{process}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_until(condition, seconds: int = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


DEADLY = """

import os
from pathlib import Path


def __init__(self, a, allocate=Embedding.__init__):
    allocate(self, a)
    if a.d_model == 16 and Path("deadly").exists():
        os.kill(os.getpid(), 9)

Embedding.__init__ = __init__
"""


def test_a_run_goes_on_without_what_failed_and_the_next_tries_it_again(make_project):
    project = make_project()
    project.write_sweep("small.yaml", SMALL)
    with (project.folder / "modelbudget" / "modules" / "embedding.py").open("a") as modules:
        modules.write(DEADLY)
    (project.folder / "deadly").touch()
    run = project.snakemake("results/small/comparison.parquet")
    assert run.returncode == 0, run.stderr
    assert "killed by signal 9" in project.log_of_measuring()
    table = pl.read_parquet(project.folder / "results" / "small" / "comparison.parquet")
    failed = table.filter(pl.col("failure").is_not_null())
    assert failed["d_model"].unique().to_list() == [16]
    assert failed["failure"].unique().to_list() == [REASONS["kill"]]
    assert failed["predicted"].min() > 0
    assert failed.select("measured", "difference", "agrees").null_count().row(0) == (
        failed.height, failed.height, failed.height,
    )  # fmt: skip
    others = table.filter(pl.col("failure").is_null())
    assert others["d_model"].unique().to_list() == [8]
    assert others["agrees"].all()

    (project.folder / "deadly").unlink()
    again = project.snakemake("results/small/comparison.parquet")
    assert again.returncode == 0, again.stderr
    assert "2 measured before, 2 to measure" in project.log_of_measuring()
    table = pl.read_parquet(project.folder / "results" / "small" / "comparison.parquet")
    assert table["agrees"].all()
    assert table["point"].n_unique() == 4
    done = project.snakemake("results/small/comparison.parquet")
    assert "Nothing to be done" in done.stdout + done.stderr


UNBUILDABLE = """

import os
import time


def build(architecture, device, dtype, build=build):
    d_model = getattr(architecture, "d_model", None)
    if d_model == 16:
        os.kill(os.getpid(), 9)
    if d_model == 24:
        raise RuntimeError("no <b>room</b> for it")
    if d_model == 40:
        time.sleep(600)
    return build(architecture, device, dtype)
"""
REMBERT = {
    "model_type": "rembert", "architectures": ["RemBertForCausalLM"], "is_decoder": True,
    "hidden_size": 96, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 100,
    "intermediate_size": 64, "input_embedding_size": 16, "output_embedding_size": 16,
}  # fmt: skip
SMALLEST = "{base: gpt-2-124m, n_vocab: 10, n_ctx: 4, n_layer: 1, n_head: 1, "
RISKY_SWEEPS = {
    "some": SMALL.replace("[8, 16]", "[8, 16, 24, 40]") + "measure: {timeout_s: 1}\n",
    "all-fail": SMALL.replace("[8, 16]", "[16, 24]"),
    "transformers": "points:\n  - {base: reformer.json, n_layer: 2}\n"
    + "".join(f"  - {{base: rembert.json, n_head: {n}}}\n" for n in (32, 48, 40)),
    "on-paper": f"points:\n  - {SMALLEST}d_model: 16, label: dies}}\n"
    f"  - {SMALLEST}d_model: 8, label: lives}}\n  - {{base: mlp, d_model: 5, label: ladder}}\n",
}


def test_a_model_that_cannot_be_built_ends_no_rule(make_project):
    """All rules up to the page; every other model is kept, and each reason is given."""
    project = make_project()
    for name, text in RISKY_SWEEPS.items():
        project.write_sweep(f"{name}.yaml", text)
    folder = project.folder / "configs" / "sweeps"
    (folder / "rembert.json").write_text(json.dumps(REMBERT))
    (folder / "reformer.json").write_text('{"model_type": "reformer"}')
    with (project.folder / "modelbudget" / "measurement" / "build.py").open("a") as building:
        building.write(UNBUILDABLE)
    sweeps = f"sweeps={','.join(RISKY_SWEEPS)}"  # named, so without the calculator
    run = project.snakemake("results/report.html", "results/all-fail/charts", "--config", sweeps)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "Traceback" not in run.stdout + run.stderr
    results = project.folder / "results"
    measured, failed = {}, {}
    for name in RISKY_SWEEPS:
        table = pl.read_parquet(results / name / "comparison.parquet")
        measured[name] = table.drop_nulls("measured")["point"].n_unique()
        failed[name] = table.drop_nulls("failure")["point"].n_unique()
    assert measured == {"some": 2, "all-fail": 0, "transformers": 2, "on-paper": 2}
    assert failed == {"some": 6, "all-fail": 4, "transformers": 2, "on-paper": 1}
    page = (results / "report.html").read_text(encoding="utf-8")
    assert "could not be built: killed by signal 9, probably out of memory" in page  # on paper
    assert "is not a multiple of the number of attention heads (40)" in page
    assert "no &lt;b&gt;room&lt;/b&gt; for it" in page
