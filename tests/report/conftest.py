"""What all pages of a test run share."""

import pickle
import shutil
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import vl_convert
from filelock import FileLock
from helpers.made_once import made_once
from helpers.project import ROOT

from modelbudget.common import store
from modelbudget.common.files import replacing
from modelbudget.common.fingerprint import code, code_of, digest
from modelbudget.common.paths import files_in
from modelbudget.compare.readings_of_gpus import rows
from modelbudget.report import page
from modelbudget.report.assets import Assets, assets
from modelbudget.report.assets import calculator as calculator_of_page
from modelbudget.report.sections import gpu_readings
from modelbudget.report.vega import vega

PART = "part.pickle"
VEGA = "vega", vega, store.key(vl_convert.__version__, code_of("modelbudget.report.vega"))


@pytest.fixture(scope="session")
def kept(shared, request):
    """Return a part of pages that depends on no sweep, computed once for what it is made of.

    One process computes it for all of the test run; pytest's cache keeps it for the next runs.
    """
    cached = getattr(request.config, "cache", None)  # not with -p no:cacheprovider

    @cache
    def part(name: str, compute: Callable[[], Any], made_of: str):
        def make(folder: Path) -> None:
            place = cached.mkdir(name) if cached else folder
            path = place / f"{made_of}.pickle"
            with FileLock(place / "lock"):
                if not path.exists():
                    for old in place.glob("*.pickle"):
                        old.unlink()
                    with replacing(path) as new:
                        new.write_bytes(pickle.dumps(compute()))
                shutil.copy(path, folder / PART)

        return pickle.loads((made_once(shared / name, make) / PART).read_bytes())

    return part


@pytest.fixture(scope="session")
def static_parts(catalogue, kept):
    """Return the parts of the page of all sweeps that depend on none, of a catalogue."""

    @cache
    def of_catalogue(other) -> Assets:
        if other is not catalogue:
            return assets(other)
        made_of = store.key(code("calculator"), digest(files_in(ROOT / "configs" / "models")))
        calculator = kept("calculator", partial(calculator_of_page, catalogue), made_of)
        return Assets(kept(*VEGA), calculator)

    return of_catalogue


@pytest.fixture(scope="session", autouse=True)
def readings_once(catalogue, kept):
    """Let all processes predict the published readings of GPUs once: 13 CPU s of a whole page."""

    def rows_of(readings, other):
        if other is not catalogue:
            return rows(readings, other)
        files = *files_in(ROOT / "configs" / "models"), gpu_readings.READINGS
        made_of = store.key(code("report"), digest(files))
        return kept("readings", partial(rows, readings, catalogue), made_of)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(gpu_readings, "rows", rows_of)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_calculator(kept):
    """Let pages be those of named sweeps, unless a test renders one with `static_parts`.

    The calculator and what else depends on no sweep take most of the time of a small page, in
    Python and in the browser.
    """
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(page, "assets", lambda catalogue: Assets(kept(*VEGA)))
        yield
