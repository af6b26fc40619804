"""Strict, bounded reading of YAML, and atomic writing of results."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from modelbudget.common.errors import InputError
from modelbudget.common.printable import has_control, printable

MAX_BYTES = 2**22
"""Size of the largest file that is read: enough for 100,000 points listed one by one."""
MAX_DEPTH = 20
MAX_DIGITS = 100
MAX_TWICE = 500
"""Characters of the longest text that a YAML alias may repeat."""


_KINDS = {type(None): "nothing", list: "a list", str: "text without keys"}
_Loader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _StrictLoader(_Loader):
    """YAML loader that rejects duplicate keys, keys that are not text, and huge numbers."""

    def construct_mapping(self, node, deep=False):
        seen = {}
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise _mistake(f"key {key!r} is not text", key_node)
            if key in seen:
                raise _mistake(f"duplicate key {key!r}, first in line {seen[key]}", key_node)
            seen[key] = key_node.start_mark.line + 1
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node):
        if len(node.value) > MAX_DIGITS:
            raise _mistake(f"a number of {len(node.value):,} digits", node)
        return super().construct_yaml_int(node)

    def construct_object(self, node, deep=False):
        try:
            return super().construct_object(node, deep)
        except ValueError as error:  # looks like a date or a number, and is not one
            raise _mistake(f"{node.value!r}: {error}", node) from None


_StrictLoader.add_constructor("tag:yaml.org,2002:int", _StrictLoader.construct_yaml_int)


def _mistake(problem: str, node) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(problem=problem, problem_mark=node.start_mark)


def yaml_files(folder: Path) -> list[Path]:
    """Return the YAML files of a folder, sorted.

    Files of editors and operating systems are skipped: `.#x.yaml`, `._x.yaml`, `#x.yaml#`,
    `x.yaml~`.
    """
    paths = folder.iterdir() if folder.is_dir() else ()
    return sorted(
        path
        for path in paths
        if path.suffix.lower() in (".yaml", ".yml") and path.name[0] not in ".#"
    )


def load_yaml(path: Path) -> dict:
    """Return the mapping in a YAML file. Raises InputError with file and line for anything else."""
    try:
        text = read_text(path)
        _check_events(text)
        data = yaml.load(text, Loader=_StrictLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}: " if mark else ""
        problem = error.problem or error.context
        if mark and _begins_with_tab(text, mark.line):
            problem = "indented with a tab; YAML allows spaces alone"
        raise InputError([f"{path}: {line}{problem}"]) from None
    except yaml.YAMLError as error:
        raise InputError([f"{path}: not readable as UTF-8 YAML: {error}"]) from None
    if not isinstance(data, dict):
        contents = _KINDS.get(type(data), type(data).__name__)
        raise InputError([f"{path}: holds {contents}, allowed: keys with values"])
    if wrong := [f"{path}: {line}" for line in _with_control(data)]:
        raise InputError(wrong)
    return data


def _with_control(value: Any, key: str = "") -> Iterator[str]:
    """Yield a line for each text with a control character, which YAML writes as an escape.

    A terminal would execute it, and the renderer of charts aborts.
    """
    if isinstance(value, str) and has_control(value):
        yield f"{key} = '{printable(value)}': contains a control character"
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _with_control(item, f"{key}.{name}".removeprefix("."))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from _with_control(item, f"{key}[{i}]")


def _begins_with_tab(text: str, line: int) -> bool:
    lines = text.splitlines()
    return line < len(lines) and lines[line].lstrip(" ").startswith("\t")


def read_json(path: str | Path):
    """Read a result of the pipeline."""
    return json.loads(Path(path).read_text(encoding="utf-8"))


def read_text(path: Path, most: int = MAX_BYTES) -> str:
    """Return the text of a file.

    Raises InputError if it is not a file, not UTF-8, not readable, or longer than `most` bytes.
    """
    try:
        if not path.is_file() and path.exists():
            raise InputError([f"{path}: not a file"])
        with path.open("rb") as file:
            content = file.read(most + 1)
        if len(content) > most:
            raise InputError([f"{path}: longer than {most:,} bytes"])
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError([f"{path}: not readable as UTF-8: {error}"]) from None
    except FileNotFoundError:
        raise InputError([f"{path}: no such file"]) from None
    except OSError as error:
        raise InputError([f"{path}: {error.strerror}"]) from None
    except ValueError as error:  # of a name that no file can have
        raise InputError([f"{path}: {error}"]) from None


def _check_events(text: str) -> None:
    """Raise YAMLError for tags, aliases of lists or of long texts, and deep nesting.

    Tags construct objects, a few lines of aliases can stand for billions of values, and deep
    nesting crashes libyaml's parser.
    """
    depth, short = 0, set()
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.AliasEvent) and event.anchor not in short:
            raise _mistake(f"*{event.anchor}: only a short text may be repeated", event)
        if isinstance(event, yaml.ScalarEvent) and len(event.value) <= MAX_TWICE:
            short.add(event.anchor)
        if (tag := getattr(event, "tag", None)) is not None:
            raise _mistake(f"{tag}: tags are not read; write the value alone", event)
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise _mistake(f"nested more than {MAX_DEPTH} deep", event)


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary file that replaces `path` if the block ends without an exception."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.part")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def replacing_folder(path: str | Path) -> Iterator[Path]:
    """Yield a temporary folder that replaces `path` if the block ends without an exception."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.part")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        shutil.rmtree(path, ignore_errors=True)
        temporary.replace(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write(path: str | Path, text: str) -> None:
    """Write a text in one step."""
    with replacing(path) as new:
        new.write_text(text, encoding="utf-8")


def write_json(path: str | Path, value: Any, **how) -> None:
    """Write plain values in one step; `how`: arguments of `json.dumps`."""
    write(path, json.dumps(value, **how))
