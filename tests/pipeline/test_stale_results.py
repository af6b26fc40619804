"""After any change of sources or results, the next run leaves what a run from scratch leaves."""

import json
import os
import shutil
import socket
import subprocess
import time
from base64 import urlsafe_b64encode
from pathlib import Path

import polars as pl
import pytest
from helpers.project import SMALL, Project, start
from helpers.tiers import ALL

TARGETS = ("results/small/comparison.parquet", "results/small/comparison.csv")


OF_RUN = {"logs", "measurements", ".checksums", ".records"}


def contents(project, folder: str = "results") -> dict[str, bytes]:
    """All results by path, but logs and what may differ between two runs."""
    return {
        str(path.relative_to(project.folder)): path.read_bytes()
        for path in (project.folder / folder).rglob("[!.]*")
        if path.is_file() and not OF_RUN & {*path.parts}
        and path.name != "provenance.json"
    }  # fmt: skip


def run(project, *arguments: str) -> str:
    done = project.snakemake(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def whole(copy_of_reported):
    """A project whose report was made, and its results."""
    project = copy_of_reported()
    return project, contents(project)


def damage(path: Path, kind: str) -> None:
    """Delete, cut or overwrite a file, or change numbers in it so that it can still be read."""
    if kind == "deleted":
        path.unlink()
    elif kind == "truncated":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif kind == "garbage":
        path.write_bytes(b"\0garbage\xff" * 10)
    elif path.suffix == ".parquet":
        table = pl.read_parquet(path)
        table.with_columns(pl.col(pl.Int64) + 1).write_parquet(path)
    else:
        path.write_bytes(path.read_bytes().replace(b"1", b"2"))
    if path.exists():
        os.utime(path, (time.time() - 10**6,) * 2)  # as old as an archive's


KINDS = ("deleted", "truncated", "garbage", "edited")


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 2])
def test_damaged_results_are_made_again(whole, first):
    """Every file under results/, each with one kind of damage, the next with the next kind. So
    this is also a second run from scratch, in another folder.
    """
    project, before = whole
    results = project.folder / "results"
    files = sorted(path for path in results.rglob("*") if path.is_file())
    for i, path in enumerate(files):
        damage(path, KINDS[(i + first) % len(KINDS)])
    output = run(project)
    assert "was changed after it was made, and is made again" in output
    assert contents(project) == before
    assert "Nothing to be done" in run(project)


@pytest.mark.parametrize(
    ("kinds", "planned"),
    [({"small/points": "truncated", "zoo/reference_counts": "edited"},
      ["Write out the points", "count the same models"]),
     ({"small/comparison": "deleted"}, ["small: predict and compare"])],
)  # fmt: skip
def test_damage_is_noticed_though_all_that_follows_is_there(whole, kinds, planned):
    """Also of a result of a job after one that runs, of which Snakemake asks no more."""
    project, before = whole
    names = {f"results/{name}.parquet": kind for name, kind in kinds.items()}
    for name, kind in names.items():
        damage(project.folder / name, kind)
    plan = run(project, "-n")
    for name in names:
        (project.folder / name).write_bytes(before[name])
    assert [line for line in (*planned, "Write the report") if line not in plan] == []
    assert "Nothing to be done" in run(project, "-n")


def test_a_damaged_record_is_as_one_that_is_not_there(whole):
    """Snakemake itself ends with a traceback."""
    project, _ = whole
    records = project.folder / "results" / ".records"
    record = records / urlsafe_b64encode(b"results/report.html").decode()
    run(project, "-n")  # in a copy, records are in .snakemake before
    content = record.read_bytes()
    damage(record, "garbage")
    assert "missing metadata: report" in run(project, "-n")
    assert not record.exists()
    record.write_bytes(content)


@pytest.fixture(scope="module")
def carried(whole, tmp_path_factory):
    """The same folder without .snakemake and with other times, as `git clone` and `cp` leave it."""
    folder = tmp_path_factory.mktemp("carried")
    without = shutil.ignore_patterns(".snakemake")
    shutil.copytree(
        whole[0].folder, folder, dirs_exist_ok=True, ignore=without, copy_function=shutil.copyfile
    )
    return Project(folder)


def test_results_carry_what_they_were_made_of(carried):
    """Only content decides: not times, and not the folder in which Snakemake ran."""
    for script in (carried.folder / "scripts").iterdir():
        script.touch()
    assert "Nothing to be done" in run(carried, "-n")


@pytest.mark.parametrize(
    ("file", "old", "new", "planned"),
    [
        ("configs/sweeps/small.yaml", "[8, 16]", "[8, 24]", "Write out the points"),
        ("modelbudget/architecture/arithmetic.py", "-(-x // y)", "-(-x // y) + 1",
         "small: predict and compare"),
        ("configs/accelerators.yaml", "driver_gib: 79.11", "driver_gib: 80.11",
         "Write the report's calculator"),
    ],
)  # fmt: skip
def test_what_changed_is_noticed_without_the_folder_of_snakemake(carried, file, old, new, planned):
    """The last file is opened by a library function, and is no input of that rule."""
    shutil.rmtree(carried.folder / ".snakemake", ignore_errors=True)
    path = carried.folder / file
    before = path.read_text()
    assert old in before
    path.write_text(before.replace(old, new))
    plan = run(carried, "-n")
    path.write_text(before)
    assert planned in plan


def test_a_missing_result_is_made_although_a_job_before_it_runs(carried):
    """As after a kill while classes were being traced: Snakemake looks for no reason of a job of
    which it knows that one before it runs.

    A result that was edited and has lost all that says so is as one that is missing.
    """
    results, before = carried.folder / "results", contents(carried)
    damage(results / "small" / "comparison.csv", "edited")
    (results / ".checksums" / "small" / "comparison.csv.json").unlink()
    (results / ".records" / urlsafe_b64encode(TARGETS[1].encode()).decode()).unlink()
    (results / "measured" / "1-of-1.json").unlink()
    run(carried, *TARGETS)
    assert contents(carried) == before


def test_a_lock_of_a_killed_run_is_removed(carried):
    locks = carried.folder / ".snakemake" / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    (locks / "0.output.lock").write_text(TARGETS[0])
    ended = subprocess.Popen(["true"])
    ended.wait()
    owner = {"process": ended.pid, "started": 0.0, "host": socket.gethostname()}
    (carried.folder / ".snakemake" / "owner.json").write_text(json.dumps(owner))
    (carried.folder / TARGETS[1]).unlink()
    output = run(carried, *TARGETS)
    assert f"locks: of process {ended.pid}, which was killed; removed" in output


def test_a_sweep_replaced_by_an_older_file(copy_of_reported):
    project = copy_of_reported("small")
    path = project.write_sweep("small.yaml", SMALL.replace("[8, 16]", "[8, 24]"))
    os.utime(path, (time.time() - 10**7,) * 2)
    run(project, *TARGETS)
    os.utime(path)  # newer, and the same
    assert "Nothing to be done" in run(project, *TARGETS)
    assert unlike_from_scratch(project) == []


def unlike_from_scratch(project) -> list[str]:
    """Which files a run without any results leaves that are not those there were before."""
    before = contents(project)
    shutil.rmtree(project.folder / "results")
    run(project, *TARGETS)
    return [name for name, content in contents(project).items() if before.get(name) != content]


LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 100,
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "rms_norm_eps": 1e-5, "bos_token_id": 1,
}  # fmt: skip
MODELS = """title: Mine
family: decoder
source: made up
models: {own-llama: {label: Own, config: mine.json}}
"""


def test_a_config_edited_in_place(make_project):
    """Of a model of the catalogue, and of a sweep."""
    project = make_project()
    models = project.folder / "configs" / "models"
    shutil.rmtree(models)
    models.mkdir()
    (models / "mine.yaml").write_text(MODELS)
    own = project.folder / "configs" / "sweeps" / "own.json"
    configs = (models / "mine.json", own)
    for path in configs:
        path.write_text(json.dumps(LLAMA))
    project.write_sweep("small.yaml", "points: [{base: own-llama}, {base: own.json}]\n")
    run(project, *TARGETS)
    assert "Nothing to be done" in run(project, *TARGETS)
    for path, targets in zip(configs, (["results/small/points.parquet"], TARGETS), strict=True):
        stamp = path.stat()
        path.write_text(json.dumps(LLAMA | {"num_hidden_layers": 3}))
        os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
        run(project, *targets)
        table = pl.read_parquet(project.folder / "results/small/points.parquet")
        assert 3 in table["n_layer"]
    assert table["n_layer"].to_list() == [3, 3]
    comparison = pl.read_parquet(project.folder / TARGETS[0])
    counted = comparison.filter(quantity="parameters").group_by("point").agg(pl.sum("predicted"))
    # Two vocabularies, three layers of four projections, a gated MLP and two norms, and a norm.
    assert counted["predicted"].to_list() == [2 * 3200 + 3 * (4096 + 3 * 1536 + 64) + 32] * 2
    if ALL:
        assert unlike_from_scratch(project) == []


@pytest.mark.slow
def test_a_sweep_edited_while_a_run_is_going_on(make_project):
    """The run that was planned with the old file either ends with it or rejects the new one."""
    project = make_project()
    project.write_sweep("small.yaml", SMALL)
    going_on = start(project, *TARGETS)
    locks = project.folder / ".snakemake" / "locks"
    while not (locks.exists() and any(locks.iterdir())):
        time.sleep(0.02)
        assert going_on.poll() is None
    project.write_sweep("small.yaml", SMALL.replace("[8, 16]", "[8, 24, 32]"))
    output, _ = going_on.communicate(timeout=300)
    assert going_on.returncode == 0 or "changed after the run had started; run again" in output
    assert "Traceback" not in output
    run(project, *TARGETS)
    table = pl.read_parquet(project.folder / TARGETS[0])
    assert table["d_model"].unique().sort().to_list() == [8, 24, 32]
    assert unlike_from_scratch(project) == []


def test_a_broken_formula_is_noticed_by_the_next_run(copy_of_reported):
    """It reaches predictions, and with them the verdict."""
    project, target = copy_of_reported("other"), "results/other/comparison.parquet"
    operations = project.folder / "modelbudget/architecture/arithmetic.py"
    operations.write_text(operations.read_text().replace("-(-x // y)", "-(-x // y) + 1"))
    run(project, target)
    table = pl.read_parquet(project.folder / target)
    wrong = table.filter(~pl.col("agrees"))["component"].unique().to_list()
    assert "embedding.token" in wrong


@pytest.mark.parametrize(
    ("file", "starts", "spares"),
    [
        ("compare/comparison.py", "predict and compare", "Instantiate and count"),
        ("report/charts/theme.py", "Write the report", "predict and compare"),
        ("report/templates/style.css", "Write the report", "predict and compare"),
        ("measurement/trace/module_trace.py", "Instantiate and count", "Write out the points"),
    ],
)
def test_a_change_of_code_makes_again_what_reaches_it(whole, file, starts, spares):
    project, _ = whole
    path = project.folder / "modelbudget" / file
    before = path.read_bytes()
    path.write_bytes(before + b"\n")
    planned = run(project, "-n")
    path.write_bytes(before)
    assert f"small: {starts}" in planned or starts in planned
    assert spares not in planned
