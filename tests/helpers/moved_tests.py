"""A pytest plugin: cases that only `make test-all` runs, each with one of `make test` instead.

`moved_tests.yaml` has for each moved case a case of the same test, or a test with its file, that
enters the same code.
"""

from pathlib import Path

import pytest
import yaml

LIST = Path(__file__).parents[1] / "moved_tests.yaml"


def moved_tests() -> dict[str, str]:
    """Return the test that stands for each moved case, both as pytest names them."""
    listed = yaml.load(LIST.read_text(encoding="utf-8"), yaml.CSafeLoader)
    return {
        f"{file}::{test}[{moved}]": kept if "::" in kept else f"{file}::{test}[{kept}]"
        for file, tests in listed.items()
        for test, cases in tests.items()
        for moved, kept in cases.items()
    }


@pytest.hookimpl(tryfirst=True)  # before those marked `slow` are left out
def pytest_collection_modifyitems(config, items):
    """Mark moved cases `slow`. In files that are collected whole, each that is listed must be."""
    moved = moved_tests()
    by_name = {item.nodeid: item for item in items}
    if not any("::" in argument for argument in config.args):
        files = {name.partition("::")[0] for name in by_name}
        listed = {*moved, *moved.values()}
        if missing := sorted(n for n in listed - {*by_name} if n.partition("::")[0] in files):
            raise pytest.UsageError(f"{LIST.name}: there is no case {', '.join(missing)}")
    for name in moved.keys() & by_name.keys():
        by_name[name].add_marker(pytest.mark.slow)
