"""What a run prints: in a pipe, on a terminal, when a job fails, when few targets are requested."""

import json
import logging
import os
import pty
import re
import select
import time
from types import SimpleNamespace

import pytest
from helpers.forked_programs import environment, snakemake_writing_to
from helpers.project import SMALL, SWEEPS, Project
from helpers.tiers import some
from snakemake_interface_logger_plugins.common import LogEvent

from modelbudget.api.results import results
from modelbudget.common.errors import InputError
from modelbudget.common.paths import STARTED_IN
from modelbudget.common.progress import progress, read_progress, write_progress_to
from modelbudget.workflow.chosen_sweeps import chosen_sweeps
from modelbudget.workflow.terminal.handler import Terminal
from modelbudget.workflow.terminal.run_summary import WorkflowRun, duration, verdict

TARGET = "results/small/comparison.parquet"
JOB = re.compile(r" *(\d+)/(\d+) +(\d+ h \d+ min|\d+ min \d+ s|[\d.]+ s)  (.+)")
HEAD = "Using workflow specific profile"  # Snakemake prints it before it reads a Snakefile


@pytest.fixture
def project(make_project) -> Project:
    project = make_project()
    project.write_sweep("small.yaml", SMALL)
    return project


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith(HEAD)]


def insert(project: Project, path: str, after: str, line: str) -> None:
    file = project.folder / path
    text = file.read_text()
    assert text.count(after) == 1
    file.write_text(text.replace(after, f"{after}\n{line}"))


def compared(project: Project, page: str) -> tuple[str, set[str]]:
    """The line of the verdict of a page, and the sweeps that it covers."""
    found = json.loads((project.folder / "results" / f"verdict{page}.json").read_text())
    tables = {section["source"] for section in found["sections"]}
    return found["line"], tables - {"gpt-2-ledger", "tying-surgery"}


def test_in_a_pipe_each_job_is_a_line(reported):
    jobs = [JOB.fullmatch(line) for line in lines(reported.run.stderr)]
    assert all(jobs), reported.run.stderr
    total = len(jobs)
    assert [(int(job[1]), int(job[2])) for job in jobs] == [(i, total) for i in range(1, total + 1)]
    assert {
        "Instantiate and count the models of all sweeps",
        "small: predict and compare",
    } <= {job[4] for job in jobs}
    assert max(map(len, lines(reported.run.stderr))) <= 80


def test_a_run_ends_with_verdict_page_and_time(reported):
    verdict, page, work = lines(reported.run.stdout)
    assert re.fullmatch(r"([\d,]+) of \1 comparisons agree", verdict)
    assert page == "results/report.html"
    assert re.fullmatch(r"(\d+) of \1 jobs in (\d+ min )?[\d.]+ s", work)


def test_a_run_prints_the_verdict_of_the_sweeps_that_it_was_asked_for(reported, copy_of_reported):
    """Whether it has something to do or nothing, and in turn with runs of all sweeps."""
    project = copy_of_reported()
    verdicts = {}
    page = (project.folder / "results" / "report.html").read_bytes()
    for sweeps in ("small", "small", "small,other"):
        run = project.snakemake("--config", f"sweeps={sweeps}")
        assert run.returncode == 0, run.stderr
        names = "-".join(sorted(sweeps.split(",")))
        line, tables = compared(project, f"-{names}")
        assert tables == set(sweeps.split(","))
        assert lines(run.stdout)[:2] == [line, f"results/report-{names}.html"]
        verdicts[sweeps] = line
    of_all = lines(reported.run.stdout)[0]
    assert len({verdicts["small"], verdicts["small,other"], of_all}) == 3
    assert (project.folder / "results" / "report.html").read_bytes() == page
    for name in SWEEPS.keys() - {"small", "other"}:
        (project.folder / f"configs/sweeps/{name}.yaml").unlink()
    again = project.snakemake()
    line, tables = compared(project, "")
    assert tables == {"small", "other"}
    assert line != verdicts["small,other"]  # with those of GPT-2
    assert lines(again.stdout)[:2] == [line, "results/report.html"]
    assert "results/zoo: its sweep file is gone; moved to results/.orphans/zoo" in again.stderr
    assert results(project.folder / "results").sweeps() == ["other", "small"]


def test_a_run_that_was_asked_for_files_names_these(copy_of_reported):
    project = copy_of_reported("small")
    for _ in range(2):
        run = project.snakemake(TARGET)
        assert lines(run.stdout)[0] == TARGET
        assert "comparison.csv" not in run.stdout
        assert "agree" not in run.stdout
        (project.folder / TARGET).unlink()


def test_verbose_is_what_snakemake_prints(project):
    run = project.snakemake("--verbose", "results/small/points.parquet")
    assert "Reason: Missing output files: results/small/points.parquet" in run.stderr
    assert "Job stats:" in run.stderr
    assert not any(JOB.fullmatch(line) for line in lines(run.stderr))


def test_a_dry_run_shortens_reasons(project):
    """The report's reason names the files of all sweeps."""
    for name in ("first", "second", "third"):
        project.write_sweep(f"{name}.yaml", SMALL)
    planned = project.snakemake("-n").stdout
    reasons = re.findall(r"^Reason: (.*)$", planned, re.MULTILINE)
    assert reasons
    assert max(map(len, reasons)) <= 200
    assert any(reason.endswith(" …") for reason in reasons)


@pytest.mark.parametrize(
    ("does", "reason"),
    [
        (
            "raise OSError(28, 'No space left')",
            "the job failed: [Errno 28] No space left. No partial file was left; "
            "fix that and run again.",
        ),
        ("raise KeyError('x')", "the job failed: KeyError: 'x'"),
        (
            "import os; os.kill(os.getpid(), 9)",
            "no reason is in its log: was it killed, or out of memory?",
        ),
    ],
)
def test_a_job_that_fails_is_named_with_its_reason_and_its_log(project, does, reason):
    insert(project, "scripts/points.py", "start_log(snakemake)", does)
    run = project.snakemake("results/small/points.parquet")
    assert run.returncode != 0
    failed, why, log = lines(run.stderr)
    job = "rule points, Write out the points of all sweeps"
    assert re.fullmatch(rf"FAILED after [\d.]+ s: {job}", failed)
    assert why == reason
    assert log == "log: results/logs/points.log"
    ended, details = lines(run.stdout)
    assert re.match(r"FAILED: 1 job\(s\); done: 0 of 1 jobs in ", ended)
    assert (project.folder / details.removeprefix("Snakemake's log: ")).is_file()


def test_what_a_job_prints_stands_in_its_log(project):
    insert(
        project,
        "scripts/points.py",
        "start_log(snakemake)",
        "import subprocess; print('printed'); subprocess.run(['sh', '-c', 'echo below >&2'])",
    )
    run = project.snakemake("results/small/points.parquet")
    assert run.returncode == 0, run.stderr
    assert all(JOB.fullmatch(line) for line in lines(run.stderr))
    log = (project.folder / "results/logs/points.log").read_text()
    assert "printed" in log
    assert "below" in log


def on_a_terminal(project: Project, *arguments: str) -> str:
    """What 80 columns of a pseudo-terminal get."""
    ours, theirs = pty.openpty()
    of_run = environment() | {"TERM": "xterm-256color", "COLUMNS": "80"}
    arguments = ("--cores", "2", *arguments)
    output = b""
    with snakemake_writing_to(os.ttyname(theirs), project.folder, arguments, of_run) as run:
        while run.is_alive() or select.select([ours], [], [], 0)[0]:
            if select.select([ours], [], [], 0.1)[0]:
                output += os.read(ours, 65536)
    for end in (ours, theirs):
        os.close(end)
    assert run.exitcode == 0, output.decode()
    return output.decode()


def test_a_terminal_shows_bars_of_the_run_and_of_long_jobs(project):
    insert(
        project,
        "modelbudget/measurement/process/measure_in_processes.py",
        "    use_one_core()",
        "    __import__('time').sleep(0.6)",
    )
    output = on_a_terminal(project, TARGET)
    plain = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", output)
    # A line that is drawn again may follow the one before, which ends where the terminal does.
    shown = re.findall(r"[^\r\n]+", plain.replace("all jobs", "\nall jobs"))
    bars = [line for line in shown if "━" in line]
    assert any(re.match(r"all jobs .* 0/3", line) for line in bars)
    assert any(re.match(r"all jobs .* [12]/3 .* left", line) for line in bars)
    inside = "Instantiate and count the models"
    assert any(re.match(rf"{inside}.* [1-3]/4 +[\d.]+ s left", line) for line in bars)
    assert max(map(len, bars)) <= 80
    jobs = [JOB.fullmatch(line) for line in shown]
    assert [int(job[1]) for job in jobs if job] == [1, 2, 3]
    assert plain.rstrip().splitlines()[-2] == TARGET
    assert output.rindex("\x1b[?25h") > output.rindex("\x1b[?25l")  # the cursor is there again
    assert not list((project.folder / "results").rglob("*.progress"))


def test_progress_is_in_a_file_while_items_come(tmp_path, monkeypatch):
    monkeypatch.setattr("modelbudget.common.progress.SECONDS_BETWEEN_WRITES", 0)
    monkeypatch.setattr("modelbudget.common.progress._file", None)
    file = tmp_path / "measure.progress"
    file.write_text("[3, 4")
    assert read_progress(file) is None
    assert list(progress("ab", 2)) == ["a", "b"]
    write_progress_to(file)
    assert not file.exists()
    seen = [read_progress(file) for _ in progress("abc", 3)]
    assert [(each.done, each.total) for each in seen] == [(0, 3), (1, 3), (2, 3)]
    assert not file.exists()
    write_progress_to(tmp_path / "missing" / "folder.progress")
    assert list(progress("ab", 2)) == ["a", "b"]


def test_of_a_group_that_fails_those_jobs_are_named_that_left_a_reason(tmp_path, capsys):
    """Slurm runs several jobs as one; Snakemake then reports each of them as failed."""
    terminal = Terminal(WorkflowRun(SimpleNamespace()), nocolor=True)

    def send(event: LogEvent, **of_record) -> None:
        record = logging.makeLogRecord({"levelno": logging.ERROR, "event": event, **of_record})
        terminal.emit(record)

    infos = []
    for number, rule in enumerate(("points", "predict")):
        log = str(tmp_path / f"{rule}.log")
        infos.append({"jobid": number, "rule_name": rule, "log": [log]})
        send(LogEvent.JOB_INFO, rule_msg=f"small: {rule}", **infos[-1])
    time.sleep(0.05)
    (tmp_path / "points.log").write_text("all went well")
    (tmp_path / "predict.log").write_text("CRITICAL root: the job failed: ValueError: no")
    send(LogEvent.GROUP_ERROR, job_error_info=infos, aux_logs=["slurm.log"], groupid="sweep")
    send(LogEvent.JOB_ERROR, indent=True, rule_msg=None, **infos[0])
    output = capsys.readouterr().err
    assert output.count("FAILED") == 1
    assert "rule predict, small: predict\nthe job failed: ValueError: no\n" in output


def test_what_an_executor_says_of_a_job_is_its_reason_where_it_left_none(capsys):
    terminal = Terminal(WorkflowRun(SimpleNamespace()), nocolor=True)
    job = {"jobid": 1, "rule_name": "measure", "log": []}
    for event, of_event in (
        (LogEvent.JOB_INFO, {"rule_msg": "small: measure"}),
        (LogEvent.JOB_ERROR, {"rule_msg": "sbatch: Invalid generic resource", "indent": False}),
    ):
        terminal.emit(logging.makeLogRecord({"event": event, **job, **of_event}))
    assert "sbatch: Invalid generic resource\nlog: none\n" in capsys.readouterr().err


def test_paths_lead_from_the_folder_where_a_run_was_started(tmp_path, monkeypatch):
    """`modelbudget sweep` runs Snakemake in a folder of the sweep: its reader is in another."""
    place = tmp_path / "my-sweep"
    place.mkdir()
    monkeypatch.chdir(place)
    target = "results/my-sweep/points.parquet"
    dag = SimpleNamespace(jobs=[], targetfiles=[target], targetjobs=[])
    shown = []
    for start in (tmp_path, place, tmp_path / "elsewhere"):
        monkeypatch.setenv(STARTED_IN, str(start))
        shown += WorkflowRun(SimpleNamespace(dag=dag)).results()
    assert shown == [f"my-sweep/{target}", target, f"{place}/{target}"]


def test_failures_stand_under_the_verdict_at_most_ten(tmp_path):
    file = tmp_path / "verdict.json"
    failures = [f"small: m{i}: parameters: killed" for i in range(13)]
    file.write_text(json.dumps({"line": "2 of 2 agree", "failures": failures}))
    first, *shown = verdict(file)
    assert first == "2 of 2 agree"
    assert shown == [*(f"  {line}" for line in failures[:10]), "  and 3 more, in the report"]
    file.write_text("{")
    assert verdict(file) == [f"{file}: cannot be read; delete it and run again"]


def test_durations():
    texts = [duration(s) for s in (0.04, 9.94, 9.96, 59.6, 61, 3599.7, 3700)]
    assert texts == ["0.0 s", "9.9 s", "10 s", "1 min 0 s", "1 min 1 s", "1 h 0 min", "1 h 1 min"]


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        ("sweeps=123", "--config sweeps=123: unknown sweep"),
        ("sweeps=0", "--config sweeps=0: unknown sweep"),
        ("sweep=small", "--config sweep: unknown key; did you mean sweeps? (allowed: sweeps, s"),
        ("sweeps=", "--config sweeps=: empty; leave it out, or give names of sweeps"),
    ],
)
def test_a_mistake_in_config_starts_nothing(project, given, refused):
    run = project.snakemake("--config", given)
    assert run.returncode != 0
    assert f"Nothing was started. 1 mistake:\n{refused}" in run.stderr
    assert "Traceback" not in run.stderr


def test_names_that_read_as_numbers_are_names(project):
    for name in some(("1e3", "123", "0", "true"), 2):
        project.write_sweep(f"{name}.yaml", SMALL)
        run = project.snakemake("-n", "--config", f"sweeps={name}")
        assert run.returncode == 0, run.stderr
        assert f"{name}: predict and compare" in run.stdout
        assert "small: " not in run.stdout


@pytest.mark.parametrize(
    ("wanted", "name"), [(1.5, "1.5"), ([7, ["x"]], "7"), ({"a": 1}, "{'a': 1}"), (True, "True")]
)
def test_values_of_every_type_are_names(wanted, name):
    with pytest.raises(InputError, match=re.escape(f"--config sweeps={name}: unknown sweep")):
        chosen_sweeps(wanted)


@pytest.mark.parametrize("wanted", ["", " , ", [""]])
def test_no_name_is_no_choice(wanted):
    with pytest.raises(InputError, match="sweeps="):
        chosen_sweeps(wanted)
