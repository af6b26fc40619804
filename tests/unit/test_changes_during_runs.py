"""What a second run, or a change of files, finds while a run is going on."""

import json
import os
import socket

import psutil
import pytest

from modelbudget.common.errors import InputError
from modelbudget.plan import records
from modelbudget.sweeps.sweep_json import check_planned, content


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


def test_a_sweep_that_is_no_longer_what_was_planned_is_refused(sweep):
    text = "base: gpt-2-124m\ngrid: {{n_layer: [1, {}]}}\n"
    planned = content(sweep(text.format(2)))
    check_planned(sweep(text.format(2)), planned)
    with pytest.raises(InputError, match="changed after the run had started; run again"):
        check_planned(sweep(text.format(3)), planned)
