"""Reading YAML strictly, and writing results so that a killed run leaves nothing half-written."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from modelbudget.errors import InputError


class _StrictLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """YAML as people mean it: a key given twice is a mistake, not a silent choice."""

    def construct_mapping(self, node, deep=False):
        seen = {}
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(
                    problem=f"key {key!r} is not a word", problem_mark=key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    problem=f"key {key!r} stands twice, first in line {seen[key]}",
                    problem_mark=key_node.start_mark,
                )
            seen[key] = key_node.start_mark.line + 1
        return super().construct_mapping(node, deep)


def load_yaml(path: Path) -> dict:
    """The mapping in a YAML file. Raises InputError naming file and line for anything else."""
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=_StrictLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}: " if mark else ""
        raise InputError([f"{path}: {line}{error.problem or error.context}"]) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError([f"{path}: not readable as UTF-8 YAML: {error}"]) from None
    except OSError as error:
        raise InputError([f"{path}: {error.strerror}"]) from None
    if not isinstance(data, dict):
        raise InputError([f"{path}: holds {type(data).__name__}, allowed: keys with values"])
    return data


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
