"""Memory is what the tightest limit leaves: the machine's, a container's, a job's, the shell's."""

import os
import subprocess
import sys

import polars as pl
import psutil
import pytest

from modelbudget.measurement.process.device import room
from modelbudget.measurement.process.free_memory import Limit, control_groups, limits, slurm_job
from modelbudget.sweeps.sweep_file import Measure

MB, GB = 10**6, 10**9
NO_LIMIT = 9_223_372_036_854_771_712
"""The limit that version 1 of the control groups has where there is none."""


def tree(root, mine: str, groups: dict[str, dict[str, int | str]]):
    """A machine whose files have these groups."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(mine)
    for folder, files in groups.items():
        group = root / "sys/fs/cgroup" / folder
        group.mkdir(parents=True, exist_ok=True)
        for name, value in files.items():
            (group / name).write_text(f"{value}\n")
    return root


def second(limit: int | str, used: int, cached: int = 0) -> dict[str, int | str]:
    stat = f"anon 5\nfile 7\ninactive_file {cached}\nactive_file 11"
    return {"memory.max": limit, "memory.current": used, "memory.stat": stat}


def first(limit: int, used: int, cached: int = 0) -> dict[str, int | str]:
    stat = f"cache 5\ninactive_file 3\ntotal_inactive_file {cached}"
    return {
        "memory.limit_in_bytes": limit, "memory.usage_in_bytes": used, "memory.stat": stat,
    }  # fmt: skip


OF_A_JOB = "0::/system.slice/slurmstepd.scope/job_7/step_0\n"
OF_DOCKER = "12:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n0::/docker/abc\n"
MACHINES = {
    "second version, no limit anywhere": (
        OF_A_JOB,
        {"system.slice": second("max", 9), "system.slice/slurmstepd.scope/job_7": second("max", 5)},
        None,
    ),
    "the job around the step is tighter": (
        OF_A_JOB,
        {
            "system.slice": second(64 * GB, 8 * GB),
            "system.slice/slurmstepd.scope/job_7": second(4 * GB, 1 * GB),
            "system.slice/slurmstepd.scope/job_7/step_0": second("max", 1 * GB),
        },
        (4 * GB, 3 * GB),
    ),
    "others in the group around have taken more": (
        OF_A_JOB,
        {
            "system.slice": second(64 * GB, 63 * GB),
            "system.slice/slurmstepd.scope/job_7": second(4 * GB, 1 * GB),
        },
        (64 * GB, 1 * GB),
    ),
    "files that were read give way": (
        "0::/\n", {"": second(4 * GB, 3 * GB, cached=2 * GB)}, (4 * GB, 3 * GB),
    ),
    "more is taken than allowed": ("0::/\n", {"": second(4 * GB, 5 * GB)}, (4 * GB, 0)),
    "a container that sees its own group at the top": (
        OF_DOCKER, {"memory": first(2 * GB, 1 * GB, cached=500 * MB)}, (2 * GB, 1500 * MB),
    ),
    "a container that sees its host's groups": (
        OF_DOCKER,
        {"memory": first(NO_LIMIT, 30 * GB), "memory/docker/abc": first(2 * GB, 1 * GB)},
        (2 * GB, 1 * GB),
    ),
    "first version next to the second": (
        "4:memory:/a\n0::/b\n",
        {"unified/b": {"cgroup.procs": 1}, "memory/a": first(2 * GB, 1 * GB)},
        (2 * GB, 1 * GB),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MACHINES)
def test_the_tightest_of_the_control_groups(name, tmp_path):
    mine, groups, expected = MACHINES[name]
    found = list(control_groups(tree(tmp_path, mine, groups)))
    if expected is None:
        assert found == []
    else:
        tightest = min(found, key=lambda limit: limit.free)
        assert (tightest.total, tightest.free) == expected
        assert tightest.name.startswith("the container's or job's limit (cgroup memory.")


def test_a_system_without_control_groups(tmp_path):
    assert list(control_groups(tmp_path)) == []


def test_all_limits_are_looked_at(tmp_path):
    container = tree(tmp_path, "0::/\n", {"": second(4 * GB, 1 * GB)})
    machine, group, job = limits(container, {"SLURM_MEM_PER_NODE": "9", "SLURM_JOB_ID": "none"})
    assert machine.total == psutil.virtual_memory().total
    assert (group.total, job.total) == (4 * GB, 9 * 2**20)


@pytest.mark.parametrize(
    ("given", "total"),
    [
        ({}, None),
        ({"SLURM_MEM_PER_NODE": "0"}, None),  # all of the node
        ({"SLURM_MEM_PER_NODE": "3000", "SLURM_CPUS_ON_NODE": "2"}, 3000 * 2**20),
        ({"SLURM_MEM_PER_CPU": "1500", "SLURM_CPUS_ON_NODE": "4"}, 6000 * 2**20),
    ],
)
def test_what_a_job_of_slurm_asked_for(given, total):
    found = list(slurm_job(given | {"SLURM_JOB_ID": "no such job"}))
    name = "what the Slurm job asked for (--mem)"
    assert found == ([] if total is None else [Limit(name, total, total)])


@pytest.fixture
def job():
    """A process of a job, which holds 200 MB; its environment has the requested memory."""
    held = "held = bytearray(200_000_000); print(len(held), flush=True); input()"
    of_job = {"SLURM_JOB_ID": "of this test", "SLURM_MEM_PER_NODE": "1000"}
    child = subprocess.Popen(
        [sys.executable, "-c", held],
        env=os.environ | of_job,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout.readline() == b"200000000\n"
    yield of_job["SLURM_JOB_ID"]
    child.communicate(b"\n")


def test_what_the_processes_of_a_job_hold_is_not_free(job):
    (first,) = slurm_job({"SLURM_MEM_PER_NODE": "500", "SLURM_JOB_ID": job})
    (full,) = slurm_job({"SLURM_MEM_PER_NODE": "100", "SLURM_JOB_ID": job})
    assert 200 * MB < first.total - first.free < 300 * MB
    assert (full.total, full.free) == (100 * 2**20, 0)


def test_a_step_that_was_not_told_asks_its_job(job):
    (found,) = slurm_job({"SLURM_JOB_ID": job})
    assert found.total == 1000 * 2**20


def test_under_auto_what_is_free_decides_nothing(monkeypatch):
    """The stated limit does, or a share of all memory; what is free where a device is named."""
    job, process = Limit("a job", 100 * GB, 8 * GB), Limit("a process", 90 * GB, 60 * GB)
    monkeypatch.setattr("modelbudget.measurement.process.device.limits", lambda: [job, process])
    by_default, small, share = (
        room(Measure(**settings)) for settings in ({}, {"memory_gb": 1.5}, {"memory_share": 0.01})
    )
    assert (by_default.cpu, by_default.at_once) == (4 * 10**9, 90 * GB * 4 // 10 // (4 * 10**9))
    assert small.cpu == 1_500_000_000
    assert (share.cpu, share.limit, share.at_once) == (90 * GB // 100, "a process", 1)
    named = room(Measure(device="cpu"))
    assert (named.cpu, named.limit) == (8 * GB * 4 // 10, "a job")


ALLOWED, SHARE = 6 * GB, 0.02
"""Of all the addresses that a process may take 120 MB; less than 110 of those that are left when
torch is there.
"""
WIDTHS = {"small": 8, "fits no longer": 2650, "could never fit": 2800}
"""Models of 1 kB, 112 MB and 125 MB."""


def write_sweep_of_widths(project, name: str, device: str, *labels: str) -> None:
    points = "\n".join(f"  - {{label: {label}, d_model: {WIDTHS[label]}}}" for label in labels)
    project.write_sweep(
        f"{name}.yaml",
        "base: gpt-2-124m\n"
        "fixed: {n_vocab: 4, n_ctx: 4, n_head: 1, n_layer: 1, d_ff: 1, dtype: float32}\n"
        f"points:\n{points}\nmeasure: {{device: {device}, memory_share: {SHARE}}}\n",
    )


def run_with_few_addresses(project, *sweeps: str) -> subprocess.CompletedProcess:
    return project.snakemake(
        *(f"results/{name}/comparison.parquet" for name in sweeps), addresses=ALLOWED
    )


def test_auto_keeps_to_the_addresses_and_what_needs_more_is_refused_and_told_why(make_project):
    """One run of two sweeps: its log refuses the model of 112 MB alone, where a device is named."""
    project = make_project()
    write_sweep_of_widths(project, "auto", "auto", "small", "could never fit")
    write_sweep_of_widths(project, "cpu", "cpu", "small", "fits no longer")
    run = run_with_few_addresses(project, "auto", "cpu")
    assert run.returncode == 0, run.stderr
    found = pl.read_parquet(project.folder / "results/auto/comparison.parquet")
    methods = dict(found.select("label", "method").unique().rows())
    assert methods == {"small": "cpu", "could never fit": "meta"}
    limit = "may be used of the address space of a process (ulimit -v)"
    refused = [line for line in project.log_of_measuring().splitlines() if limit in line]
    assert refused
    assert all("needs 112," in line for line in refused), refused
    write_sweep_of_widths(project, "cpu", "cpu", "small", "could never fit")
    run = run_with_few_addresses(project, "cpu")
    assert run.returncode == 1
    assert "2% of the address space of a process (ulimit -v) is 120,000,000" in run.stderr
