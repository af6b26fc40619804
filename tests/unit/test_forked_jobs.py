"""Runs of Snakemake fork their jobs; here is what happens where that is impossible."""

import subprocess
import sys

from modelbudget.workflow.forked_jobs import SCRIPTS, client_of_server, fork_jobs


def test_a_client_without_its_server_starts_the_interpreter(tmp_path):
    script = tmp_path / SCRIPTS.strip("/") / "job.py"
    script.parent.mkdir(parents=True)
    script.write_text("import sys; sys.exit(7)")
    folder = tmp_path / "client"
    folder.mkdir()
    with client_of_server(folder, SCRIPTS) as (client, _):
        pass
    assert subprocess.run([client, str(script)], check=False).returncode == 7


def test_no_client_stands_where_snakemake_could_not_start_it(tmp_path, monkeypatch):
    """Snakemake does not quote the path of the interpreter."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary files"))
    (tmp_path / "temporary files").mkdir()
    python = sys.executable
    fork_jobs()
    assert sys.executable == python
