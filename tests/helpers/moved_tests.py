"""A pytest plugin: cases that only `make test-all` runs, each with a test of `make test`.

`moved_tests.yaml` names for each case, or for all cases of a function, the test that `make test`
keeps, which sees the same faults: it enters the code that the moved case enters.
"""

from pathlib import Path

import pytest
import yaml

LIST = Path(__file__).parents[1] / "moved_tests.yaml"


def moved_tests() -> dict[str, str]:
    """Return the test that covers each moved one, both as pytest names them."""
    return {
        f"{file}::{moved}": covering if "::" in covering else f"{file}::{covering}"
        for file, tests in yaml.safe_load(LIST.read_text(encoding="utf-8")).items()
        for moved, covering in tests.items()
    }


@pytest.hookimpl(tryfirst=True)  # before those with `slow` are left out
def pytest_collection_modifyitems(config, items):
    """Mark moved cases `slow`. Of all tests, each that the list names must be there."""
    moved = moved_tests()
    names = {name for item in items for name in (item.nodeid, item.nodeid.partition("[")[0])}
    if config.args_source == pytest.Config.ArgsSource.TESTPATHS:
        if missing := sorted(({*moved} | {*moved.values()}) - names):
            raise pytest.UsageError(f"{LIST.name}: there is no test {', '.join(missing)}")
    for item in items:
        if item.nodeid in moved or item.nodeid.partition("[")[0] in moved:
            item.add_marker(pytest.mark.slow)
