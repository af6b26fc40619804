"""What all pages of a test run share."""

import pickle
import shutil
from functools import cache
from pathlib import Path

import pytest
from filelock import FileLock
from helpers.made_once import made_once
from helpers.project import ROOT

from modelbudget.common import store
from modelbudget.common.files import replacing
from modelbudget.common.fingerprint import code, digest
from modelbudget.common.paths import files_in
from modelbudget.report import page
from modelbudget.report.assets import Assets, assets

STATIC = "static_parts"


@pytest.fixture(scope="session", autouse=True)
def static_parts(catalogue, shared, request):
    """Return the parts of the catalogue's pages that do not depend on sweeps, computed once.

    One process computes them for all of the test run; pytest's cache keeps them for the next runs
    of the same code and models. A function of a catalogue returns them.
    """
    cached = getattr(request.config, "cache", None)  # not with -p no:cacheprovider

    def make(folder: Path) -> None:
        made_of = store.key(code("assets"), digest(files_in(ROOT / "configs" / "models")))
        kept = cached.mkdir("assets") if cached else folder
        path = kept / f"{made_of}.pickle"
        with FileLock(kept / "lock"):
            if not path.exists():
                for old in kept.glob("*.pickle"):
                    old.unlink()
                with replacing(path) as new:
                    new.write_bytes(pickle.dumps(assets(catalogue)))
            shutil.copy(path, folder / STATIC)

    @cache
    def of_catalogue(other) -> Assets:
        if other is not catalogue:
            return assets(other)
        return pickle.loads((made_once(shared / "assets", make) / STATIC).read_bytes())

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(page, "assets", of_catalogue)
        yield of_catalogue
