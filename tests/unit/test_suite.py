"""The tests' own tools: what processes share, and the budget of CPU seconds."""

import json
import os
import subprocess
import sys
import time
from itertools import combinations, product
from types import SimpleNamespace

import pytest
from helpers import cpu_seconds
from helpers.cpu_seconds import RECORD, Budget, Timer, allowed, of_process
from helpers.made_once import made_once
from helpers.moved_tests import moved_tests
from helpers.project import ROOT
from helpers.tiers import pairwise


def test_a_folder_that_could_not_be_made_is_deleted_and_its_error_kept(tmp_path):
    made = []

    def make(folder):
        made.append(folder)
        (folder / "half").touch()
        raise TimeoutError("no answer in 600 s")

    with pytest.raises(TimeoutError):
        made_once(tmp_path / "shared", make)
    assert not (tmp_path / "shared").exists()
    with pytest.raises(pytest.fail.Exception, match="no answer in 600 s"):
        made_once(tmp_path / "shared", make)
    assert len(made) == 1


def test_a_folder_is_made_once(tmp_path):
    made = []
    folders = {made_once(tmp_path / "shared", made.append) for _ in range(3)}
    assert folders == set(made)
    assert len(made) == 1


def test_few_combinations_have_every_pair():
    axes = [["a", "b"], [1, 2, 3], [{}, {"x": 1}], [True, False], "uvw"]
    allowed = [one for one in product(*axes) if one[:2] != ("a", 1)]
    chosen = pairwise(allowed)
    assert set(map(repr, chosen)) <= set(map(repr, allowed))
    assert len(chosen) <= 12 < len(allowed) == 60
    for i, j in combinations(range(len(axes)), 2):
        pairs = [[(repr(one[i]), repr(one[j])) for one in some] for some in (allowed, chosen)]
        assert set(pairs[0]) == set(pairs[1])


def test_what_stands_for_a_moved_case_is_no_moved_case():
    """Else a chain of moves may leave nothing in `make test`. Only here is a renamed file seen."""
    moved = moved_tests()
    files = {name.partition("::")[0] for pair in moved.items() for name in pair}
    assert all((ROOT / file).is_file() for file in files)
    assert not {*moved.values()} & moved.keys()


@pytest.mark.parametrize(
    ("cases", "marks", "outcome"),
    [
        ("ab", "not slow", "1 passed, 2 deselected"),
        ("ab", "slow or not slow", "3 passed"),
        ("a", "not slow", "there is no case test_some.py::test_it[b]"),
        ("b", "not slow", "there is no case test_some.py::test_it[a]"),
    ],
)
def test_a_moved_case_is_left_to_test_all(tmp_path, cases, marks, outcome):
    """A list is refused that names a case which is gone, or a gone one that stands for another."""
    listed = tmp_path / "list.yaml"
    listed.write_text(
        "test_some.py:\n  test_it:\n    b: a\n  test_other:\n    c: test_some.py::test_it[a]\n"
    )
    (tmp_path / "test_some.py").write_text(
        f"import pytest\n@pytest.mark.parametrize('x', {[*cases]})\ndef test_it(x): pass\n"
        "@pytest.mark.parametrize('x', 'c')\ndef test_other(x): pass\n"
    )
    (tmp_path / "conftest.py").write_text(
        "from pathlib import Path\n"
        "from helpers import moved_tests\n"
        f"moved_tests.LIST = Path({str(listed)!r})\n"
        "pytest_plugins = ['helpers.moved_tests']\n"
    )
    options = ["-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", ".", "-m", marks]
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "pytest", *options, "."],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "tests")))},
        capture_output=True,
        text=True,
    )
    assert outcome in run.stdout + run.stderr


BUSY = "import time\nwhile time.process_time() < {}: pass\n"


def test_cpu_seconds_hold_those_of_processes_that_others_start():
    """One that still runs, and one that ended in another process."""
    before = of_process(os.getpid())
    inner = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY.format(0.3)!r}])"
    outer = inner + "; print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", outer], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as running:
        running.stdout.readline()
        start = time.process_time()
        assert of_process(os.getpid()) - before >= 0.25
        assert time.process_time() - start < 0.2
        running.communicate(b"\n")
    assert of_process(os.getpid()) - before >= 0.25


def test_a_thread_that_ends_meanwhile_hides_no_seconds(monkeypatch):
    """A process and all that it had started counted 0 then, and the next test as much as all."""
    read, vanished = cpu_seconds._read, ["children"]

    def read_once_too_late(path):
        if vanished and path.endswith(vanished[0]):
            raise FileNotFoundError(vanished.pop())
        return read(path)

    before = of_process(os.getpid())
    monkeypatch.setattr(cpu_seconds, "_read", read_once_too_late)
    assert of_process(os.getpid()) >= before > 0
    assert not vanished


def test_a_slower_machine_may_take_longer():
    record = {"cpu_s": 100, "calibration_s": 0.02}
    assert allowed(record, 0.02) == 300
    assert allowed(record, 0.03) == pytest.approx(450)


@pytest.mark.parametrize(("in_ci", "times", "fails"), [(1, 3.1, 1), (1, 2.9, 0), (0, 3.1, 0)])
def test_ci_fails_at_three_times_the_record(monkeypatch, in_ci, times, fails):
    monkeypatch.setenv("CI", "1") if in_ci else monkeypatch.delenv("CI", raising=False)
    record = json.loads(RECORD.read_text())["runs"]["not slow"]
    option = SimpleNamespace(
        keyword="", check=False, lf=False, markexpr="not slow", record_cpu_seconds=False
    )
    budget = Budget(SimpleNamespace(args_source=pytest.Config.ArgsSource.TESTPATHS, option=option))
    report = SimpleNamespace(
        when="teardown",
        nodeid="a test",
        cpu_s=times * record["cpu_s"],
        fixtures={},
        calibration_s=record["calibration_s"],
    )
    budget.pytest_runtest_logreport(report)
    session = SimpleNamespace(exitstatus=pytest.ExitCode.OK)
    budget.pytest_sessionfinish(session)
    assert session.exitstatus == (pytest.ExitCode.TESTS_FAILED if fails else pytest.ExitCode.OK)


TESTS = """import pytest
import time

def busy(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end: pass

@pytest.fixture(scope="module")
def shared():
    busy(0.4)

def test_first(shared): pass
def test_second(shared): pass
def test_alone(): busy(0.3)
"""


def test_a_fixture_of_many_tests_is_not_charged_to_the_first_of_them(tmp_path, monkeypatch):
    """Else `make check` leaves out the first alone, and the second pays."""
    (tmp_path / "test_some.py").write_text(TESTS)
    timer, budget = Timer(), Budget(SimpleNamespace(option=None, args_source=None))
    monkeypatch.chdir(tmp_path)
    options = ["-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(tmp_path)]
    assert pytest.main([*options, str(tmp_path)], plugins=[timer, budget]) == pytest.ExitCode.OK
    own = {name.rpartition("::")[2]: seconds for name, seconds in budget.without_fixtures.items()}
    assert own["test_first"] < 0.2 < own["test_alone"]
    ((name, seconds),) = [one for one in budget.fixtures.items() if one[0].endswith("shared")]
    assert name == "test_some.py::shared"
    assert seconds >= 0.3
