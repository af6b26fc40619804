"""What a thing is made of, so that a change makes only that anew: the library's files, packages."""

import ast
import hashlib
import importlib.metadata
import inspect
import textwrap
from functools import cache
from pathlib import Path

from modelbudget.architecture import Architecture

LIBRARY = Path(__file__).parent


def code(*parts: str) -> str:
    """Digest of the library's source under these files and folders."""
    files = [path for part in parts for path in _files(LIBRARY / part)]
    return _digest(sorted(set(files)))


def versions(*packages: str) -> dict[str, str]:
    """Installed versions of packages whose code is what is measured."""
    return {name: importlib.metadata.version(name) for name in packages}


@cache
def code_of_model(family: type[Architecture]) -> str:
    """Digest of the source that a family's torch model is built from: the files that its `build`
    imports, and what those import in turn.
    """
    found: set[Path] = set()
    waiting = _imported(textwrap.dedent(inspect.getsource(family.build)))
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting |= _imported(path.read_text(encoding="utf-8"))
    return _digest(sorted(found))


def _files(root: Path) -> list[Path]:
    inside = root.rglob("*") if root.is_dir() else [root]
    return [path for path in inside if path.is_file() and "__pycache__" not in path.parts]


def _digest(paths: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.relative_to(LIBRARY).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _imported(source: str) -> set[Path]:
    """The library's files that a piece of source imports."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    paths = (LIBRARY.parent.joinpath(*name.split(".")).with_suffix(".py") for name in names)
    return {path for path in paths if path.is_relative_to(LIBRARY) and path.is_file()}
