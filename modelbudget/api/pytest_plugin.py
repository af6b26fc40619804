"""A pytest fixture that fails a test if a model has left its budget."""

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def budget() -> Callable[..., None]:
    """Return a function that compares with a budget file and fails with what has changed.

    def test_the_model_keeps_its_budget(budget):
        budget("budget.lock")

    A budget of one's own module names its function: `module="package.file:function"`.
    """

    def compare(path: str | Path = "budget.lock", module: str | None = None) -> None:
        from modelbudget.api.budget import check, table

        if found := check(Path(path), module):
            pytest.fail(f"{path}: {len(found)} values changed\n{table(found)}", pytrace=False)

    return compare
