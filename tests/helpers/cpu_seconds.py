"""A pytest plugin: CPU seconds of each test with all processes that it starts, and their budget.

The budget of a run of all tests is three times what `tests/cpu_seconds.json` records. Machines
differ: the record is scaled by a loop of Python that both runs repeat among their tests.
"""

import json
import os
import time
from collections import Counter
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import pytest

RECORD = Path(__file__).parents[1] / "cpu_seconds.json"
FACTOR = 3
SHOWN = 20
CHEAP, CHEAP_FIXTURE = 6, 34
"""What the first case of a function, and what a fixture of many tests, may take in `make check`.

In loops of `calibration`: an eighth of a second and three quarters where that takes 22 ms.
"""
TESTS_BETWEEN_CALIBRATIONS = 250
SHORT_S = 0.02
"""Seconds of the clock in which other processes than that of the tests take hardly any time."""
TICKS = os.sysconf("SC_CLK_TCK")
NOT_IN_CHECK = {"chromium", "reported", "make_project", "static_parts", "server_of_processes"}
"""Fixtures that start a browser, Snakemake or torch, or need the calculator unless it is kept."""
EXPENSIVE, FIXTURES = "not in make check", "fixtures not in make check"
COVERED = "covered by other tests of make check"
"""Tests all of whose functions of the library others enter: scripts/dev/record_covered_tests.py."""


def of_process(pid: int) -> float:
    """Return the CPU seconds of a process and of all that it has started, ended or not.

    Servers that fork others collect them, so what resource.getrusage says of children lacks them.
    """
    try:
        stat = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        threads = [f"/proc/{pid}/task/{thread}" for thread in os.listdir(f"/proc/{pid}/task")]
        started = [int(child) for each in threads for child in _read(f"{each}/children").split()]
    except (FileNotFoundError, ProcessLookupError):  # of the process, or of a thread alone
        return of_process(pid) if os.path.exists(f"/proc/{pid}") else 0.0
    return sum(map(int, stat[11:15])) / TICKS + sum(map(of_process, started))


class Reading(NamedTuple):
    """CPU seconds of this process with all that it has started, and when they were read."""

    cpu_s: float
    alone_s: float
    at_s: float

    @classmethod
    def now(cls) -> "Reading":
        return cls(of_process(os.getpid()), time.process_time(), time.perf_counter())

    @classmethod
    def after(cls, before: "Reading") -> "Reading":
        """Return that after a test; of a short one other processes count in the next reading."""
        alone_s, at_s = time.process_time(), time.perf_counter()
        if at_s - before.at_s > SHORT_S:
            return cls.now()
        return cls(before.cpu_s + alone_s - before.alone_s, alone_s, at_s)


def _read(path: str) -> bytes:
    """Return what is in a file, in half the time of `Path.read_text`: each test reads dozens."""
    with open(path, "rb", buffering=0) as file:
        return file.read()


def calibration() -> float:
    """Return the CPU seconds of a loop that is the same on every machine."""
    start = time.process_time()
    text = json.dumps({str(n): [n, n / 7] for n in range(2_000)})
    for _ in range(5):
        json.dumps(json.loads(text), sort_keys=True, indent=1)
    return time.process_time() - start


def allowed(record: dict, calibration_s: float) -> float:
    """Return the CPU seconds that a run may take whose calibration loop takes this long."""
    return FACTOR * record["cpu_s"] * calibration_s / record["calibration_s"]


def function_of(test: str) -> str:
    return test.partition("[")[0]


def fixture_id(definition) -> str:
    """Return where a fixture is defined, and its name: several files have one of that name."""
    return f"{definition.baseid}::{definition.argname}"


class Timer:
    """Add CPU seconds to the report of each test, in the process that runs it.

    And those of the fixtures that were set up for it and for other tests.
    """

    def __init__(self):
        self.before, self.tests = Reading.now(), 0
        self.fixtures: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef):
        if fixturedef.scope == "function":
            return (yield)
        before = of_process(os.getpid())
        try:
            return (yield)
        finally:
            self.fixtures[fixture_id(fixturedef)] = of_process(os.getpid()) - before

    def pytest_collection_finish(self):
        self.before = Reading.now()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        if call.when == "teardown":
            after = Reading.after(self.before)
            report.cpu_s = max(0.0, after.cpu_s - self.before.cpu_s)
            report.fixtures, self.fixtures = self.fixtures, {}
            if self.tests % TESTS_BETWEEN_CALIBRATIONS == 0:
                report.calibration_s = calibration()
                after = Reading.now()
            self.before, self.tests = after, self.tests + 1
        return report


class Budget:
    """Sum the CPU seconds of all processes of the run, show them and compare with the record."""

    def __init__(self, config):
        self.config = config
        self.seconds: Counter[str] = Counter()
        self.without_fixtures: dict[str, float] = {}
        self.fixtures: dict[str, float] = {}
        self.calibrations: list[float] = []
        self.excess = ""

    def pytest_runtest_logreport(self, report):
        if report.when == "teardown":
            self.seconds[report.nodeid] += report.cpu_s
            own = report.cpu_s - sum(report.fixtures.values())
            self.without_fixtures.setdefault(function_of(report.nodeid), own)
            for name, seconds in report.fixtures.items():
                self.fixtures[name] = max(seconds, self.fixtures.get(name, 0))
            if hasattr(report, "calibration_s"):
                self.calibrations.append(report.calibration_s)

    @property
    def of_all_tests(self) -> bool:
        option = self.config.option
        from_testpaths = self.config.args_source == pytest.Config.ArgsSource.TESTPATHS
        return (
            from_testpaths
            and not option.keyword
            and not option.check
            and not getattr(option, "lf", False)
        )

    def pytest_sessionfinish(self, session):
        if not self.of_all_tests or not self.calibrations:
            return
        records = json.loads(RECORD.read_text())
        tests, cpu_s = self.config.option.markexpr, self.seconds.total()
        calibration_s = mean(self.calibrations)
        if self.config.option.record_cpu_seconds:
            records["runs"][tests] = {
                "cpu_s": round(cpu_s), "calibration_s": round(calibration_s, 4)
            }  # fmt: skip
            records[EXPENSIVE] = _above(CHEAP * calibration_s, self.without_fixtures)
            records[FIXTURES] = _above(CHEAP_FIXTURE * calibration_s, self.fixtures)
            RECORD.write_text(json.dumps(records, indent=1) + "\n")
        elif tests in records["runs"] and "CI" in os.environ:
            limit = allowed(records["runs"][tests], calibration_s)
            if cpu_s > limit:
                self.excess = f"{cpu_s:,.0f} CPU s; {RECORD.name} allows {limit:,.0f} here"
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter):
        if len(self.seconds) < 2:
            return
        title = f"CPU seconds with children: {self.seconds.total():,.1f}"
        if self.calibrations:
            title += f"; the calibration loop took {1_000 * mean(self.calibrations):.0f} ms"
        terminalreporter.section(title)
        for test, seconds in self.seconds.most_common(SHOWN):
            terminalreporter.line(f"{seconds:8.2f}  {test}")
        if self.excess:
            terminalreporter.line(f"Too expensive: {self.excess}", red=True)


def _above(limit: float, seconds: dict[str, float]) -> list[str]:
    return sorted(name for name, taken in seconds.items() if taken > limit)


def pytest_addoption(parser):
    group = parser.getgroup("CPU seconds")
    group.addoption(
        "--record-cpu-seconds", action="store_true", help=f"write {RECORD.name} after all tests"
    )
    group.addoption(
        "--check", action="store_true", help="one case of each test function that is cheap"
    )


def pytest_configure(config):
    is_worker = hasattr(config, "workerinput")
    if is_worker or not config.getoption("numprocesses", None):
        config.pluginmanager.register(Timer(), "cpu-seconds-timer")
    if not is_worker:
        config.pluginmanager.register(Budget(config), "cpu-seconds-budget")


def _starts(item, fixtures: set[str]) -> bool:
    """Whether a test needs a fixture that is not in `make check`."""
    known = getattr(item, "_fixtureinfo", None)
    if known is None:
        return False
    return any(
        name in NOT_IN_CHECK or fixture_id(definitions[-1]) in fixtures
        for name, definitions in known.name2fixturedefs.items()
    )


def pytest_collection_modifyitems(config, items):
    """With --check, keep the first case of each cheap function without expensive fixtures."""
    if not config.option.check:
        return
    record = json.loads(RECORD.read_text())
    left_out, fixtures = {*record[EXPENSIVE], *record[COVERED]}, set(record[FIXTURES])
    seen, kept, left = set(), [], []
    for item in items:
        function = function_of(item.nodeid)
        is_kept = function not in seen | left_out and not _starts(item, fixtures)
        seen.add(function)
        (kept if is_kept else left).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left)
