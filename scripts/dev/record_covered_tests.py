"""List tests that `make check` need not run, in tests/cpu_seconds.json (minutes).

    python scripts/dev/record_covered_tests.py

Runs what `make check` would run without that list, and notes which functions of the library each
test enters. Of the dearest tests, dearest first, it leaves out those all of whose functions others
enter. Functions of worker processes are not seen. `make test` runs every test.
"""

import json
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from types import CodeType

import pytest

ROOT = Path(__file__).parents[2]
RECORD, LIBRARY = ROOT / "tests" / "cpu_seconds.json", f"{ROOT / 'modelbudget'}/"
COVERED = "covered by other tests of make check"
"""As in tests/helpers/cpu_seconds.py, which pytest has to import first."""
DEAREST = 100


class Entered:
    """A pytest plugin: the functions of the library that each test enters, and its CPU seconds."""

    def __init__(self):
        self.functions: dict[str, set[tuple[str, int]]] = {}
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item, nextitem):
        codes: dict[int, CodeType] = {}  # by id: a code object computes its hash from its content

        def note(frame, event, _):
            if event == "call":
                codes[id(frame.f_code)] = frame.f_code

        with ExitStack() as stack:
            stack.callback(sys.setprofile, None)
            sys.setprofile(note)
            result = yield
        self.functions[item.nodeid.partition("[")[0]] = {
            (code.co_filename, code.co_firstlineno)
            for code in codes.values()
            if code.co_filename.startswith(LIBRARY)
        }
        return result

    def pytest_runtest_logreport(self, report):
        if report.when == "teardown":
            self.seconds[report.nodeid.partition("[")[0]] = report.cpu_s


def covered(functions: dict[str, set], seconds: dict[str, float]) -> list[str]:
    """Return which of the dearest tests enter no function that only they enter."""
    times = Counter(function for entered in functions.values() for function in entered)
    left_out = []
    for test in sorted(seconds, key=seconds.__getitem__, reverse=True)[:DEAREST]:
        if all(times[function] > 1 for function in functions[test]):
            times.subtract(functions[test])
            left_out.append(test)
    return sorted(left_out)


if __name__ == "__main__":
    before = RECORD.read_text()
    records = json.loads(before) | {COVERED: []}
    RECORD.write_text(json.dumps(records, indent=1) + "\n")
    entered = Entered()
    status = pytest.main(["--check", "-n", "0", *sys.argv[1:]], plugins=[entered])
    is_whole = status == pytest.ExitCode.OK and not sys.argv[1:]
    if is_whole:
        records[COVERED] = covered(entered.functions, entered.seconds)
    RECORD.write_text(json.dumps(records, indent=1) + "\n" if is_whole else before)
    sys.exit(status)
