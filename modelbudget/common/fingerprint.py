"""What a result is made of: the code that its script can load, packages, and files of data.

Snakemake compares these digests with those of the last run, so that a change of content, and only
that, makes a result again. Nothing is listed by hand: the code follows from the imports.
"""

import hashlib
import importlib.metadata
import inspect
import os
import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from modelbudget.architecture.base import Architecture
from modelbudget.common.errors import InputError
from modelbudget.common.paths import files_in

ROOT = Path(__file__).parents[2]
LIBRARY = Path(__file__).parents[1].name

_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n#]+)|import[ \t]+([^\n#]+))",
    re.MULTILINE,
)
"""An import statement, at the top of a file or inside a function. In a text it may be found where
there is none, and a file more is then a dependency; tests hold it against Python's own parser.
"""
_FOR_TYPES = re.compile(r"^if TYPE_CHECKING:\n(?:(?:[ \t].*)?\n)+", re.MULTILINE)
"""Imports that only type checkers see."""
_RUN_AS_PROCESS = re.compile(rf'"-m", "({LIBRARY}[\w.]+)"')
_OTHER_NAMES = {
    "markdown_it": "markdown-it-py",
    "vl_convert": "vl-convert-python",
    "yaml": "pyyaml",
}
"""Distributions whose name is not that of the package which they install."""


def code(script: str) -> dict[str, str | None]:
    """Digest of all library code and data that `scripts/{script}.py` can load, and versions of the
    packages that this code imports.
    """
    return _made_of(ROOT / "scripts" / f"{script}.py")


@cache
def _made_of(start: Path) -> dict[str, str | None]:
    files = reached([start])
    return {"code": digest(files), **versions(*_packages(files))}


def code_of(module: str) -> str:
    """Digest of all library code that a module of the library can load."""
    return digest(reached(_files_of_module(module)))


def versions(*packages: str) -> dict[str, str | None]:
    """Installed versions of packages, None for one that is not installed."""
    return {name: _version(name) for name in packages}


@cache
def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@cache
def code_of_model(family: type[Architecture]) -> str:
    """Digest of the source that a family's torch model is built from: its `build`, the files that
    this imports, and what those import in turn.
    """
    build = textwrap.dedent(inspect.getsource(family.build))
    text = hashlib.sha256(build.encode()).hexdigest()[:16]
    return text + digest(reached(_imported_by(build)))


def digest(files: Iterable[Path]) -> str:
    """Digest of the names and contents of files."""
    found = hashlib.sha256()
    for path in sorted(files):
        found.update(os.path.relpath(path, ROOT).encode() + _content(path))
    return found.hexdigest()[:16]


def check_unchanged(files: Sequence[str], content: str) -> None:
    """Raises InputError where files are not those that the run was planned with."""
    if digest(map(Path, files)) != content:
        changed = "it, or a model in it, changed after the run had started; run again"
        raise InputError([f"{files[0]}: {changed}"])


@cache  # most scripts can load most of the library
def _content(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()


def reached(start: Iterable[Path]) -> set[Path]:
    """The files, and all files of the library that can be loaded when they are."""
    found: set[Path] = set()
    waiting = set(start)
    while waiting:
        path = waiting.pop()
        found.add(path)
        if path.suffix == ".py":
            waiting |= _uses(path) - found
    return found


@cache
def _uses(path: Path) -> frozenset[Path]:
    """What a file of code imports or reads: modules, all modules of a folder where members are
    found by their presence, and data in its own folder that it names.
    """
    text = path.read_text(encoding="utf-8")
    found = _imported_by(text)
    if path.name == "__init__.py" and "__path__" in text:
        found |= set(path.parent.glob("*.py"))
    for data in _data_in(path.parent):
        if f'"{data.name}"' in text:
            found |= set(files_in(data)) if data.is_dir() else {data}
    return frozenset(found)


@cache
def _data_in(folder: Path) -> list[Path]:
    """Files of the library that are no code, and folders that hold none."""
    inside = folder.iterdir() if folder.is_relative_to(ROOT / LIBRARY) else ()
    return [path for path in inside if path.suffix != ".py" and not any(path.glob("*.py[c]"))
            and not (path / "__init__.py").exists()]  # fmt: skip


def _imported_by(text: str) -> set[Path]:
    return {path for name in _names_imported(text) for path in _files_of_module(name)}


@cache
def _names_imported(text: str) -> set[str]:
    """Dotted names of modules, and of what is taken from them, which may be a module too."""
    names = set(_RUN_AS_PROCESS.findall(text))
    for module, members, modules in _IMPORT.findall(_FOR_TYPES.sub("", text)):
        if module:
            parts = members.strip("() \t\n").split(",")
            names |= {module} | {f"{module}.{part.split()[0]}" for part in parts if part.split()}
        else:
            names |= {part.split()[0] for part in modules.split(",") if part.split()}
    return names


@cache
def _files_of_module(name: str) -> frozenset[Path]:
    """The file of a module of the library, and the `__init__.py` of each package around it."""
    parts = name.split(".")
    if parts[0] != LIBRARY:
        return frozenset()
    places = [ROOT.joinpath(*parts[:end]) for end in range(1, len(parts) + 1)]
    files = [file for place in places for file in (place / "__init__.py", place.with_suffix(".py"))]
    return frozenset(file for file in files if file.is_file())


def _packages(files: Iterable[Path]) -> list[str]:
    """Installed distributions that some file imports."""
    names = {name for path in files for name in _packages_of(path)}
    return sorted(_OTHER_NAMES.get(name, name) for name in names)


@cache
def _packages_of(path: Path) -> set[str]:
    """What a file of code imports that is neither the library's nor Python's own."""
    text = path.read_text(encoding="utf-8") if path.suffix == ".py" else ""
    names = {name.split(".")[0] for name in _names_imported(text)}
    return names - sys.stdlib_module_names - {LIBRARY}
