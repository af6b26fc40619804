"""Digests of library code, packages and data files, for Snakemake's rerun triggers.

A result is made again if and only if a digest differs from that of the last run. The code that a
script depends on is found by following its imports; there is no list to maintain.
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
from itertools import accumulate
from pathlib import Path

from modelbudget.common.errors import InputError
from modelbudget.common.paths import CONFIGS, HOME, files_in

ROOT = Path(__file__).parents[2]
LIBRARY = Path(__file__).parents[1].name

_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n#]+)|import[ \t]+([^\n#]+))",
    re.MULTILINE,
)
"""An import statement, at the top of a file or inside a function. It may also match inside a text,
which adds a dependency too many; tests compare it with Python's own parser.
"""
_READ_FROM_CONFIGS = re.compile(r'CONFIGS / "(\w[^"]*)"')
"""Name of a file or folder of `configs/` that a module reads.

A pattern that begins with a text, and not with a place, takes `re` a thirtieth of the time.
"""
_FOR_TYPES = re.compile(r"\nif TYPE_CHECKING:.*\n(?:(?:[ \t].*)?\n)+")
"""Imports for type checkers only."""
_RUN_AS_PROCESS = re.compile(rf'"-m", "({LIBRARY}[\w.]+)"')
_OTHER_NAMES = {
    "markdown_it": "markdown-it-py",
    "vl_convert": "vl-convert-python",
    "yaml": "pyyaml",
}
"""Distributions whose name differs from that of the package that they install."""


@cache
def code(script: str) -> dict[str, str | None]:
    """Return what `scripts/{script}.py` depends on.

    A digest of all library code and data that it can load, and the versions of the packages that
    this code imports.
    """
    files = reached([HOME / "scripts" / f"{script}.py"])
    return {"code": digest(files), **versions(*_packages(files))}


def code_of(module: str) -> str:
    """Return a digest of all library code that a module of the library can load."""
    return digest(reached(_files_of_module(module)))


def measured_by(module: str) -> tuple[str, dict[str, str | None]]:
    """Return what a measurement is made of: the code of a module, and the packages measured."""
    return code_of(module), versions("torch", "transformers")


def versions(*packages: str) -> dict[str, str | None]:
    """Return installed versions of packages; None for a package that is not installed."""
    return {name: _version(name) for name in packages}


@cache
def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@cache
def code_of_model(family: type) -> str:
    """Return a digest of the source of a family's torch model.

    Covers its `build`, the files that this imports, and their imports in turn.
    """
    build = textwrap.dedent(inspect.getsource(family.build))
    text = hashlib.sha256(build.encode()).hexdigest()[:16]
    return text + digest(reached(_imported_by(build)))


def digest(files: Iterable[Path]) -> str:
    """Return a digest of the names and contents of files."""
    checksum = hashlib.sha256()
    for path in sorted(files, key=_place):
        checksum.update(_place(path) + _content(path))
    return checksum.hexdigest()[:16]


def check_unchanged(files: Sequence[str], content: str) -> None:
    """Raise InputError if files have changed since the run was planned."""
    if digest(map(Path, files)) != content:
        changed = "it, or a model in it, changed after the run had started; run again"
        raise InputError([f"{files[0]}: {changed}"])


@cache  # most scripts can load most of the library
def _place(path: Path) -> bytes:
    return os.path.relpath(path, ROOT).encode()


@cache
def _content(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()


def reached(start: Iterable[Path]) -> set[Path]:
    """Return the files and all files of the library that they can load, directly or not."""
    files: set[Path] = set()
    waiting = set(start)
    while waiting:
        path = waiting.pop()
        files.add(path)
        if path.suffix == ".py":
            waiting |= _uses(path) - files
    return files


@cache
def _uses(path: Path) -> frozenset[Path]:
    """Return the files of the library that a file of code imports or reads.

    Modules, all files of a folder whose members are discovered (a section has a template), and data
    files in its own folder that it names.
    """
    text = path.read_text(encoding="utf-8")
    files = _imported_by(text)
    if path.name == "__init__.py" and "__path__" in text:
        files |= {file for file in path.parent.iterdir() if file.is_file()}
    named = [data for data in _data_in(path.parent) if f'"{data.name}"' in text]
    for data in (*named, *(CONFIGS / name for name in _READ_FROM_CONFIGS.findall(text))):
        files |= set(files_in(data)) if data.is_dir() else {data}
    return frozenset(files)


@cache
def _data_in(folder: Path) -> list[Path]:
    """Return the data files and the folders without code in a folder."""
    inside = folder.iterdir() if folder.is_relative_to(ROOT / LIBRARY) else ()
    return [path for path in inside if path.suffix != ".py" and not any(path.glob("*.py[c]"))
            and not (path / "__init__.py").exists()]  # fmt: skip


def _imported_by(text: str) -> set[Path]:
    return {path for name in _names_imported(text) for path in _files_of_module(name)}


@cache
def _names_imported(text: str) -> set[str]:
    """Return dotted names of imported modules, and of imported names, which may be modules too."""
    names = set(_RUN_AS_PROCESS.findall(text))
    for module, members, modules in _IMPORT.findall(_FOR_TYPES.sub("\n", text)):
        if module:
            parts = re.sub("#.*", "", members).strip("() \t\n").split(",")
            names |= {module} | {f"{module}.{part.split()[0]}" for part in parts if part.split()}
        else:
            names |= {part.split()[0] for part in modules.split(",") if part.split()}
    return names


@cache
def _files_of_module(name: str) -> frozenset[Path]:
    """Return the file of a module and the `__init__.py` of each package that contains it."""
    modules, names = _modules(), accumulate(name.split("."), "{}.{}".format)
    return frozenset(modules[each] for each in names if each in modules)


@cache
def _modules() -> dict[str, Path]:
    """Map the dotted name of each module of the library to its file."""
    files = (ROOT / LIBRARY).rglob("*.py")
    places = {file: file.relative_to(ROOT).with_suffix("").parts for file in files}
    return {".".join(p[:-1] if p[-1] == "__init__" else p): file for file, p in places.items()}


def _packages(files: Iterable[Path]) -> list[str]:
    """Return the installed distributions that the files import."""
    names = {name for path in files for name in _packages_of(path)}
    return sorted(_OTHER_NAMES.get(name, name) for name in names)


@cache
def _packages_of(path: Path) -> set[str]:
    """Return the imports of a file from outside the library and the standard library."""
    text = path.read_text(encoding="utf-8") if path.suffix == ".py" else ""
    names = {name.split(".")[0] for name in _names_imported(text)}
    return names - sys.stdlib_module_names - {LIBRARY}
