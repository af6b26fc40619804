"""Reading YAML strictly and within bounds, and writing results so that a killed run leaves nothing
half-written.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from modelbudget.common.errors import InputError

MAX_BYTES = 2**22
"""Of a file that is read: 100,000 points written out one by one."""
MAX_DEPTH = 20
MAX_DIGITS = 100
MAX_TWICE = 500
"""Characters of a text that an alias may stand for."""


_KINDS = {type(None): "nothing", list: "a list", str: "text without keys"}
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _StrictLoader(_Loader):
    """YAML as people mean it: a key given twice is a mistake, not a silent choice."""

    def construct_mapping(self, node, deep=False):
        seen = {}
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise _mistake(f"key {key!r} is not a word", key_node)
            if key in seen:
                raise _mistake(f"key {key!r} stands twice, first in line {seen[key]}", key_node)
            seen[key] = key_node.start_mark.line + 1
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node):
        if len(node.value) > MAX_DIGITS:
            raise _mistake(f"a number of {len(node.value):,} digits", node)
        return super().construct_yaml_int(node)

    def construct_object(self, node, deep=False):
        try:
            return super().construct_object(node, deep)
        except ValueError as error:  # text that looks like a date or a number, and is none
            raise _mistake(f"{node.value!r}: {error}", node) from None


_StrictLoader.add_constructor("tag:yaml.org,2002:int", _StrictLoader.construct_yaml_int)


def _mistake(problem: str, node) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(problem=problem, problem_mark=node.start_mark)


def yaml_files(folder: Path) -> list[Path]:
    """The YAML files of a folder, without what editors and systems leave there: `.#x.yaml`,
    `._x.yaml`, `#x.yaml#`, `x.yaml~`.
    """
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted(
        path
        for path in found
        if path.suffix.lower() in (".yaml", ".yml") and path.name[0] not in ".#"
    )


def load_yaml(path: Path) -> dict:
    """The mapping in a YAML file. Raises InputError naming file and line for anything else."""
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
        held = _KINDS.get(type(data), type(data).__name__)
        raise InputError([f"{path}: holds {held}, allowed: keys with values"])
    return data


def _begins_with_tab(text: str, line: int) -> bool:
    lines = text.splitlines()
    return line < len(lines) and lines[line].lstrip(" ").startswith("\t")


def read_json(path: str | Path):
    """What a result of the pipeline holds as JSON."""
    return json.loads(Path(path).read_text(encoding="utf-8"))


def read_text(path: Path) -> str:
    """What stands in a file. Raises InputError for what is no file of text, or a very long one."""
    try:
        if not path.is_file() and path.exists():
            raise InputError([f"{path}: not a file"])
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise InputError([f"{path}: longer than {MAX_BYTES:,} bytes"])
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError([f"{path}: not readable as UTF-8: {error}"]) from None
    except OSError as error:
        raise InputError([f"{path}: {error.strerror}"]) from None


def _check_events(text: str) -> None:
    """Raises YAMLError for what a file of sizes and words has no need of: tags, which name
    objects; aliases of lists, of which a few lines can stand for billions of values; deep nesting,
    of which libyaml's parser dies.
    """
    depth, short = 0, set()
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.AliasEvent) and event.anchor not in short:
            raise _mistake(f"*{event.anchor}: only a short text may be said twice", event)
        if isinstance(event, yaml.ScalarEvent) and len(event.value) <= MAX_TWICE:
            short.add(event.anchor)
        if getattr(event, "tag", None) is not None:
            raise _mistake(f"{event.tag}: tags are not read; write the value alone", event)
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise _mistake(f"nested more than {MAX_DEPTH} deep", event)


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A temporary file beside `path` that takes its place when the block ends well."""
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
    """The same for a folder: it appears whole, and what stood there before is gone."""
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
