"""What all pages of a test run share."""

import pickle
from functools import cache

import pytest
from filelock import FileLock

from modelbudget.report import page
from modelbudget.report.assets import Assets, assets


@pytest.fixture(scope="session", autouse=True)
def static_parts(catalogue, shared):
    """Compute the parts of the catalogue's pages that do not depend on sweeps once.

    One process computes them for all of the test run. A function of a catalogue returns them.
    """

    @cache
    def of_catalogue(other) -> Assets:
        if other is not catalogue:
            return assets(other)
        path = shared / "assets.pickle"
        with FileLock(path.with_suffix(".lock")):
            if not path.exists():
                path.write_bytes(pickle.dumps(assets(catalogue)))
        return pickle.loads(path.read_bytes())

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(page, "assets", of_catalogue)
        yield of_catalogue
