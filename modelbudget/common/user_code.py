"""Code of a user that a sweep names: where it is, and whether the command line allows it.

A file of a sweep or of a model never runs code: only the names that are given to a run by
`--config modules=package.file:function` do, or by `modelbudget sweep --module`.
"""

import hashlib
import importlib
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from modelbudget.common.paths import STARTED_IN

ALLOWED = "MODELBUDGET_MODULES"
"""Environment variable with the allowed names; jobs inherit it from the run."""


def allow(names: Iterable[str]) -> None:
    """Allow these names, and no others, in this process and in those that it starts."""
    os.environ[ALLOWED] = ",".join(names)


def refusal(name: str) -> str | None:
    """Return why a name is refused, if it is."""
    if name not in os.environ.get(ALLOWED, "").split(","):
        option = f"--module {name}" if STARTED_IN in os.environ else f"--config modules={name}"
        return f"module = '{name}': is code, which only the command line allows to run: {option}"
    if not files_of(name):
        return f"module = '{name}': no such file in this folder or in those of PYTHONPATH"
    return None


def load(name: str) -> Callable[..., Any]:
    """Import a function. Raises ValueError if the name is not allowed or has no such function."""
    if why := refusal(name):
        raise ValueError(why)
    sys.path[:0] = [str(folder) for folder in _folders() if str(folder) not in sys.path]
    path, function = name.split(":")
    loaded = getattr(importlib.import_module(path), function, None)
    if not callable(loaded):
        raise ValueError(f"module = '{name}': {path} has no function {function}")
    return loaded


def digest(name: str) -> str:
    """Return a digest of the code of a name: empty if it is not on this machine."""
    content = [path.read_bytes() for path in files_of(name)]
    return hashlib.sha256(b"\0".join(content)).hexdigest()[:16] if content else ""


def files_of(name: str) -> list[Path]:
    """Return the files of a name's package, or the files next to its file if it has no package.

    Nothing is imported.
    """
    parts = name.split(":")[0].split(".")
    for folder in _folders():
        if folder.joinpath(*parts).with_suffix(".py").is_file():
            package = folder / parts[0] if len(parts) > 1 else folder
            pattern = "**/*.py" if len(parts) > 1 else "*.py"
            return sorted(package.glob(pattern))
    return []


def _folders() -> list[Path]:
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    named = (os.environ.get(STARTED_IN, ""), *folders)
    return [Path.cwd(), *(Path(folder) for folder in named if folder)]
