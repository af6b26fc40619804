"""Strict, bounded reading of YAML, and atomic writing of results."""

import json
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
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


FILES_READ: set[Path] = set()
"""What `read_text` and `read_json` have read in this process, or looked for."""

_CONTENTS = {
    type(None): "nothing", list: "a list", str: "text without keys", int: "a number",
    float: "a number", bool: "true or false",
}  # fmt: skip
_OF_OTHER_BASE = re.compile(r"[-+]?(0b|0[0-9_]+$|[0-9_]+:)")
"""Numbers to base 2, 8 and 60, in YAML 1.1: 1:30 is 90, and 010 is 8."""
_Loader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _StrictLoader(_Loader):
    """YAML loader that makes values while it parses, and stops at the first that is not allowed.

    These are duplicate keys, keys that are not text, and huge numbers; tags, which construct
    objects; aliases of lists or of long texts, of which a few lines stand for billions of values;
    second values of one anchor; and deep nesting.
    """

    def read(self):
        """Return the one document's value, None of an empty one. Raises YAMLError."""
        self.anchors: set[str] = set()
        self.repeatable: dict[str, Any] = {}
        self.get_event()
        if self.check_event(yaml.StreamEndEvent):
            return None
        self.get_event()
        value = self._value(self.get_event(), 0)
        self.get_event()
        if not self.check_event(yaml.StreamEndEvent):
            raise _mistake("a second document; a file has one", self.get_event())
        return value

    def _value(self, event, depth: int):
        """Return the value that begins with an event, inside of `depth` lists and mappings."""
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self.repeatable:
                raise _mistake(f"*{event.anchor}: only a short text may be repeated", event)
            return self.repeatable[event.anchor]
        if event.tag is not None:
            raise _mistake(f"{event.tag}: tags are not read; write the value alone", event)
        if event.anchor in self.anchors:
            raise _mistake(f"&{event.anchor}: names a second value; a name has one", event)
        if event.anchor is not None:
            self.anchors.add(event.anchor)
        if isinstance(event, yaml.ScalarEvent):
            value = self._scalar(event)
            if event.anchor is not None and len(event.value) <= MAX_TWICE:
                self.repeatable[event.anchor] = value
            return value
        if depth == MAX_DEPTH:
            raise _mistake(f"nested more than {MAX_DEPTH} deep", event)
        if isinstance(event, yaml.SequenceStartEvent):
            items = []
            while not isinstance(event := self.get_event(), yaml.SequenceEndEvent):
                items.append(self._value(event, depth + 1))
            return items
        return self._mapping(depth)

    def _mapping(self, depth: int) -> dict:
        values, lines = {}, {}
        while not isinstance(event := self.get_event(), yaml.MappingEndEvent):
            key = self._value(event, depth + 1)
            if not isinstance(key, str):
                raise _mistake(f"key {json.dumps(key, default=str)} is not text", event)
            if key in values:
                raise _mistake(f"duplicate key {key!r}, first in line {lines[key]}", event)
            lines[key] = event.start_mark.line + 1
            values[key] = self._value(self.get_event(), depth + 1)
        return values

    def _scalar(self, event):
        """Return a number, a date or a boolean where a text without quotes looks like one."""
        tag = self.resolve(yaml.ScalarNode, event.value, event.implicit)
        if tag == self.DEFAULT_SCALAR_TAG or tag.endswith(":merge"):  # `<<` is a key as others
            return event.value
        if tag.endswith(":int") and len(event.value) > MAX_DIGITS:
            raise _mistake(f"a number of {len(event.value):,} digits", event)
        try:
            value = self.construct_object(yaml.ScalarNode(tag, event.value, event.start_mark))
        except ValueError as error:  # looks like a date or a number, and is not one
            raise _mistake(f"{event.value!r}: {error}", event) from None
        if type(value) in (int, float) and _OF_OTHER_BASE.match(event.value):
            other = f"{event.value}: YAML 1.1 reads {value}; write that, or quotes around a text"
            raise _mistake(other, event)
        return value


def _mistake(problem: str, event) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(problem=problem, problem_mark=event.start_mark)


def yaml_files(folder: Path) -> list[Path]:
    """Return the YAML files of a folder, sorted by name.

    Files of editors and operating systems are skipped: `.#x.yaml`, `._x.yaml`, `#x.yaml#`,
    `x.yaml~`.
    """
    names = os.listdir(folder) if folder.is_dir() else ()
    return [
        folder / name
        for name in sorted(names)
        if name.lower().endswith((".yaml", ".yml")) and name[0] not in ".#"
    ]


def load_yaml(path: Path) -> dict:
    """Return the mapping in a YAML file. Raises InputError with file and line for anything else."""
    return mapping_in(read_text(path), path)


def mapping_in(text: str, path: Path) -> dict:
    """Return the mapping in the text of a YAML file, as `load_yaml`."""
    try:
        data = _StrictLoader(text).read()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}: " if mark else ""
        problem = error.problem or error.context
        if mark and _begins_with_tab(text, mark.line):
            problem = "indented with a tab; YAML allows spaces alone"
        raise InputError([f"{path}: {line}{problem}"]) from None
    except yaml.YAMLError as error:
        raise InputError([f"{path}: not readable as UTF-8 YAML: {error}"]) from None
    if wrong := [f"{path}: {line}" for line in _with_control(must_be_mapping(data, path))]:
        raise InputError(wrong)
    return data


def must_be_mapping(data: Any, path: Path) -> dict:
    """Return what a file holds. Raises InputError unless it is keys with values."""
    if isinstance(data, dict):
        return data
    contents = _CONTENTS.get(type(data), type(data).__name__)
    raise InputError([f"{path}: holds {contents}, allowed: keys with values"])


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
    """Read a result of the pipeline, or data."""
    FILES_READ.add(Path(path))
    return json.loads(Path(path).read_text(encoding="utf-8"))


def read_text(path: Path, most: int = MAX_BYTES) -> str:
    """Return the text of a file.

    Raises InputError if it is not a file, not UTF-8, not readable, or longer than `most` bytes.
    """
    FILES_READ.add(path)
    try:
        state = path.stat()
        if not stat.S_ISREG(state.st_mode):
            raise InputError([f"{path}: not a file"])
        with path.open("rb") as file:  # a buffer of `most` bytes would take longer than the rest
            content = file.read(min(state.st_size, most) + 1)
            if len(content) > state.st_size:  # it grows, or has no size, as in /proc
                content += file.read(most + 1 - len(content))
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


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a place for a file or a folder, which replaces `path` if the block raises nothing."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.part")
    shutil.rmtree(temporary, ignore_errors=True)  # a folder of a killed job
    try:
        yield temporary
        if temporary.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        temporary.replace(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.unlink(missing_ok=True)


def write(path: str | Path, text: str) -> None:
    """Write a file in one step; into a pipe or a device, which nothing may replace, directly."""
    is_other = os.path.exists(path) and not os.path.isfile(path)
    with nullcontext(Path(path)) if is_other else replacing(path) as new:
        new.write_text(text, encoding="utf-8")


def write_json(path: str | Path, value: Any, **how) -> None:
    """Write plain values in one step; `how`: arguments of `json.dumps`."""
    write(path, json.dumps(value, **how))
