"""Memory of a process that holds a model on a real CPU."""

import mmap
import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch

from modelbudget.common.workers import Failure
from modelbudget.measurement.build import build
from modelbudget.measurement.measured_table import failures
from modelbudget.measurement.process import resident_memory as module
from modelbudget.measurement.process.fresh_process import fresh
from modelbudget.measurement.process.measure_in_processes import measure_all
from modelbudget.sweeps.sweep_file import Measure

TELLING = ["resident_bytes", "resident_error_bytes", "resident_peak_bytes"]
SETTINGS = "base: gpt-2-124m\nfixed: {backend: cpu, n_vocab: 1024, n_ctx: 64, length: 16}\n"
SMALL = "{d_model: 64, n_head: 2, n_layer: 1}"
LARGE = "{d_model: 512, n_head: 2, n_layer: 3}"
DOUBLE = "{d_model: 64, n_head: 2, n_layer: 1, dtype: float64}"
PARENT = "__import__('os').getppid()"


@pytest.fixture
def models(sweep):
    def of(*points: str) -> list:
        found = sweep(f"{SETTINGS}points: [{', '.join(points)}]").points
        return [(point.architecture, point.run) for point in found]

    return of


@pytest.fixture
def server_of_processes():
    """Marks what starts a Python that imports torch, which `make check` leaves out.

    It ends with the process that started it, so that its seconds are not always counted.
    """


def own_bytes(architecture, dtype: str = "float32") -> int:
    """By torch alone: this project neither counts nor predicts here."""
    model = build(architecture, "meta", dtype)
    return sum(parameter.numel() * parameter.itemsize for parameter in model.parameters())


@pytest.mark.usefixtures("server_of_processes")
def test_the_system_gives_what_parameters_and_training_take(models, monkeypatch, tmp_path):
    """Small models by the slope of many copies, with its error; large ones as they are.

    All are measured in forks of one server, which ends with the process that started it.
    """
    servers = tmp_path / "servers"

    def noted(work, item):
        with servers.open("a") as file:
            file.write(f"{fresh(eval, PARENT)}\n")
        return fresh(work, item)

    monkeypatch.setattr(module, "fresh", noted)
    wanted = models(SMALL, LARGE, DOUBLE)
    found = measure_all(wanted, Measure(quantities=[*TELLING, "peak_training_bytes"]), 2)
    for (architecture, run), one in zip(wanted, found, strict=True):
        assert one.method == "cpu"
        n_bytes, error = own_bytes(architecture, run.dtype), one.values["resident_error_bytes"]
        assert one.values["resident_bytes"]["model"] == pytest.approx(n_bytes, rel=0.01)
        assert 0 < error["model"] < n_bytes / 100
        peak = max(one.values["peak_training_bytes"].values())
        assert abs(one.values["resident_peak_bytes"]["model"] - peak) < 2**22
    small, _, double = wanted
    assert own_bytes(double[0], "float64") == 2 * own_bytes(small[0])
    (server,) = set(servers.read_text().split())
    deadline = time.monotonic() + 10
    while not has_ended(int(server)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert has_ended(int(server))


def test_without_room_auto_leaves_it_out_and_a_device_by_name_fails(models):
    scarce = {"memory_share": 1e-6, "quantities": ["parameters", *TELLING]}
    (left_out,) = measure_all(models(LARGE), Measure(**scarce), 1)
    assert left_out.method == "meta"
    assert set(left_out.values) & {"parameters", *TELLING} == {"parameters"}
    reasons = {row["quantity"]: row["failure"] for row in failures([left_out])}
    assert set(reasons) == set(TELLING)
    assert reasons["resident_bytes"].startswith(f"needs {own_bytes(models(LARGE)[0][0]):,} bytes")
    (failed,) = measure_all(models(LARGE), Measure(device="cpu", **scarce), 1)
    assert failed.method is None
    assert set(failed.missing) == {"parameters", *TELLING}


def test_a_process_that_dies_while_it_is_asked_costs_that_model(models, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    (failed,) = measure_all(models(SMALL), Measure(quantities=["resident_bytes"]), 1)
    assert failed.missing == {
        "resident_bytes": "RuntimeError: its process ended with exit status 1"
    }


def test_the_status_is_read_in_bytes():
    """Memory is there once it is written to. It is mapped anew: an allocator may reuse its own."""
    before = module.status("RssAnon")
    memory = mmap.mmap(-1, 2**26, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    tensor = torch.frombuffer(memory, dtype=torch.uint8)
    assert module.status("RssAnon") - before < 2**22
    tensor.fill_(1)
    assert module.status("RssAnon") - before == pytest.approx(2**26, rel=0.02)


@pytest.mark.usefixtures("server_of_processes")
def test_each_call_has_a_fresh_process_and_one_import_of_torch():
    """Forks of one server: what one call leaves in memory, no other finds."""
    pids = [fresh(eval, "__import__('os').getpid()") for _ in range(2)]
    parents = [fresh(eval, PARENT) for _ in range(2)]
    assert len({os.getpid(), *pids, *parents}) == 4
    assert parents[0] == parents[1]
    fresh(exec, "import torch; torch.left = 1")
    assert fresh(eval, "hasattr(__import__('torch'), 'left')") is False


@pytest.mark.usefixtures("server_of_processes")
def test_the_server_has_this_library_and_the_folders_of_its_process():
    """It had the library's own folder in place of the one around it, and lost the user's."""
    folders = fresh(eval, "__import__('os').environ['PYTHONPATH']").split(os.pathsep)
    assert (Path(folders[0]) / "modelbudget" / "common").is_dir()
    assert folders[1:] == [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]


@pytest.mark.usefixtures("server_of_processes")
def test_a_call_that_fails_or_crashes_leaves_the_others():
    assert fresh(eval, "1 / 0") == Failure("ZeroDivisionError: division by zero")
    crashed = fresh(exec, "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert crashed == Failure("crashed with signal 11 (Segmentation fault)")
    server = fresh(eval, PARENT)
    os.kill(server, signal.SIGKILL)
    assert fresh(eval, "2 + 2") == Failure("killed by signal 9, probably out of memory")
    assert fresh(eval, "2 + 2") == 4


def has_ended(process: int) -> bool:
    """Whether a process has ended: the first of the machine may collect it seconds later."""
    try:
        return psutil.Process(process).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
