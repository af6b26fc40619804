"""What a second run, or a change of files, finds while a run is going on."""

import json
import logging
import os
import socket
from types import SimpleNamespace

import psutil
import pytest
from snakemake.exceptions import LockException

from modelbudget.common.errors import InputError
from modelbudget.sweeps.sweep_json import check_planned, content
from modelbudget.workflow import records
from modelbudget.workflow.terminal.handler import Terminal
from modelbudget.workflow.terminal.run_summary import WorkflowRun


@pytest.mark.parametrize(("started", "is_kept"), [(0.0, True), (-100.0, False)])
def test_only_the_lock_of_a_run_that_has_ended_is_removed(tmp_path, monkeypatch, started, is_kept):
    """A process of the same number that started at another time is not that run."""
    monkeypatch.chdir(tmp_path)
    locks = records.OF_SNAKEMAKE / "locks"
    locks.mkdir(parents=True)
    (locks / "0.output.lock").touch()
    process = psutil.Process()
    owner = {
        "process": os.getpid(),
        "started": process.create_time() + started,
        "host": socket.gethostname(),
    }
    records.OWNER.write_text(json.dumps(owner))
    line = records.remove_lock_of_ended_run()
    assert locks.exists() is is_kept
    assert (line is None) is is_kept


@pytest.mark.parametrize(
    ("host", "advice"),
    [
        (socket.gethostname(), "wait for it, or end it, and run again"),
        ("another", "wait for it, or if it has ended: snakemake --unlock"),
        (None, "by another run; if it has ended: snakemake --unlock"),
    ],
)
def test_a_run_beside_another_names_its_process_in_one_line(
    tmp_path, monkeypatch, capsys, host, advice
):
    """The text is that of Snakemake's own exception: another version may word it otherwise."""
    monkeypatch.chdir(tmp_path)
    owner = {"process": 123, "started": 0.0, "host": host}
    records.OF_SNAKEMAKE.mkdir()
    records.OWNER.write_text(json.dumps(owner) if host else "")
    record = logging.makeLogRecord({"msg": str(LockException()), "levelno": logging.ERROR})
    Terminal(WorkflowRun(SimpleNamespace()), nocolor=True).emit(record)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"Nothing was started: {tmp_path} is locked by ")
    assert line.endswith(advice)
    assert ("process 123 on " in line) is (host is not None)


@pytest.mark.parametrize(
    "error",
    [
        "Traceback (most recent call last):\n  File \nOSError: [Errno 28] No space left on device",
        "WorkflowError:\nError recording metadata for finished job ([Errno 28] No space left on "
        "device). Please ensure write permissions for the directory /x/.snakemake",
    ],
)
def test_a_full_disk_is_one_line_with_the_folder(tmp_path, monkeypatch, capsys, error):
    """The texts are those of Snakemake 9 where a lock or a record is not written."""
    monkeypatch.chdir(tmp_path)
    record = logging.makeLogRecord({"msg": error, "levelno": logging.ERROR})
    Terminal(WorkflowRun(SimpleNamespace()), nocolor=True).emit(record)
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        f"{tmp_path}: No space left on device for results and records. What was computed is kept; "
        "free some and run again."
    )


def test_a_sweep_that_is_no_longer_what_was_planned_is_refused(sweep):
    text = "base: gpt-2-124m\ngrid: {{n_layer: [1, {}]}}\n"
    planned = content(sweep(text.format(2)))
    check_planned(sweep(text.format(2)), planned)
    with pytest.raises(InputError, match="changed after the run had started; run again"):
        check_planned(sweep(text.format(3)), planned)
