"""A folder that the first process that needs it makes for all processes of a test run."""

import shutil
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Return the folder, which `make` has filled.

    If `make` fails, the folder is deleted, and every user fails with that error at once.
    """
    error = folder.with_suffix(".error")
    with FileLock(folder.with_suffix(".lock")):
        if error.exists():
            pytest.fail(f"{folder.name} could not be made:\n{error.read_text()}", pytrace=False)
        if not folder.exists():
            folder.mkdir()
            try:
                make(folder)
            except BaseException:
                error.write_text(traceback.format_exc())
                shutil.rmtree(folder)
                raise
    return folder
