"""Tests of budgets and of functions: the fixture `budget`, and the option `--vectors`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from modelbudget.api.vectors import Vector


@pytest.fixture
def budget() -> Callable[..., None]:
    """Return a function that compares with a budget file and fails with what has changed.

    def test_the_model_keeps_its_budget(budget):
        budget("budget.lock")

    A budget of one's own module names its function: `module="package.file:function"`.
    """

    def compare(path: str | Path = "budget.lock", module: str | None = None) -> None:
        from modelbudget.api.budget_lock import check, table
        from modelbudget.common.errors import InputError
        from modelbudget.common.number_format import counted

        try:
            changes = check(Path(path), module)
        except InputError as error:
            pytest.fail(f"{error}", pytrace=False)
        if changes:
            line = f"{path}: {counted(len(changes), 'value')} changed"
            pytest.fail(f"{line}\n{table(changes)}", pytrace=False)

    return compare


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of vectors."""
    group = parser.getgroup("modelbudget")
    what = "run modelbudget's vectors against a function, and no other test"
    group.addoption("--vectors", metavar="MODULE:FUNCTION", default=None, help=what)
    what = "only of this quantity; repeatable"
    group.addoption("--vectors-of", metavar="QUANTITY", action="append", default=[], help=what)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> bool | None:
    """Collect a test for each vector, if a function is named."""
    config = session.config
    if (name := config.getoption("--vectors")) is None:
        return None
    from modelbudget.api.vectors import vectors
    from modelbudget.common.errors import InputError

    try:
        wanted = vectors(*(config.getoption("--vectors-of") or ()))
    except InputError as error:
        raise pytest.UsageError(f"--vectors-of {error}") from None
    function = _function(name)
    session.items = [
        _Test.from_parent(session, vector=vector, function=function) for vector in wanted
    ]
    config.hook.pytest_collection_modifyitems(session=session, config=config, items=session.items)
    config.hook.pytest_collection_finish(session=session)
    session.testscollected = len(session.items)
    return True


def _function(name: str) -> Callable[[Vector], Any]:
    module, colon, function = name.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        if not colon:
            raise AttributeError("no function")
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise pytest.UsageError(f"--vectors {name}: {error}; allowed: MODULE:FUNCTION") from None


class _Test(pytest.Item):
    """Holds the answer of a function against one vector; an answer of None is skipped."""

    def __init__(self, vector: Vector, function: Callable[[Vector], Any], **of_item: Any):
        super().__init__(vector.name, **of_item)
        self.vector, self.function = vector, function

    def runtest(self) -> None:
        """Compare. Any difference fails, and so does a number that is not whole."""
        answer = self.function(self.vector)
        if answer is None:
            pytest.skip("no answer")
        if answer != self.vector.value:
            pytest.fail(self._difference(answer), pytrace=False)

    def _difference(self, answer: Any) -> str:
        vector = self.vector
        seen = "; ".join(f"{of['how']}: {of['source']}" for of in vector.witness)
        shown, off = repr(answer), ""
        if isinstance(answer, int | float):
            shown, off = f"{answer:,}", f", {answer - vector.value:+,}"
        return f"{vector.name}: {shown} {vector.unit}, not {vector.value:,}{off} ({seen})"

    def reportinfo(self) -> tuple[Path, None, str]:
        """Return where the vectors are, and the name of this one."""
        from modelbudget.api.vectors import PATH

        return PATH, None, self.name
