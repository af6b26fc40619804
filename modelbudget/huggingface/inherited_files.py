"""Files of a folder of which most say only how they differ from another, as `like: llama`.

Sections are joined key by key, and lists by their entries; `without` names what the other has and
this file has not. A file's `classes` are always its own.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from modelbudget.common.errors import InputError, noted
from modelbudget.common.files import load_yaml, yaml_files
from modelbudget.common.suggestions import offered
from modelbudget.common.validation_messages import show

Files = dict[str, dict[str, Any]]
"""Contents by name: that of the file without its suffix."""


def class_files(folder: Path) -> tuple[Files, list[str]]:
    """Return all files that can be read, with what they inherit, and the mistakes of the others."""
    files: Files = {}
    wholes: Files = {}
    mistakes: list[str] = []
    for path in yaml_files(folder):
        with noted(mistakes):
            files[path.stem] = load_yaml(path)
    for name in files:
        with noted(mistakes):
            wholes[name] = _whole(folder, files, (name,))
    return wholes, list(dict.fromkeys(mistakes))


def without_inherited(
    mistakes: Mapping[str, list[str]], like: Mapping[str, str | None]
) -> Iterator[tuple[str, str]]:
    """Yield the mistakes with their file, but those that it has from the file that it is like."""
    for name, lines in mistakes.items():
        inherited = mistakes.get(like[name] or "", [])
        yield from ((name, line) for line in lines if line not in inherited)


def _whole(folder: Path, files: Files, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the content of the last of `names` with what it inherits; the others wait for it.

    Raises InputError with the mistake, without one if that is in a file that has been reported.
    """
    content = files[names[-1]]
    if "like" not in content:
        return content
    path, like, without = folder / f"{names[-1]}.yaml", content["like"], content.get("without", [])
    if not isinstance(without, list):
        raise InputError([f"{path}: without = {show(without)}: must be a list"])
    if like in names:
        raise InputError([f"{path}: like = {show(like)}: that file is itself like this one"])
    if like not in [*files]:
        is_reported = (folder / f"{like}.yaml").is_file()
        line = f"{path}: like = {show(like)}: no such file{offered(str(like), files, str(folder))}"
        raise InputError([] if is_reported else [line])
    whole = _whole(folder, files, (*names, like)) | {"classes": {}}
    for place in without:
        if not _removed(whole, str(place)):
            raise InputError([f"{path}: without: {show(place)}: is not in {like}.yaml"])
    for section, value in content.items():
        if section != "without":
            whole[section] = _joined(whole.get(section), value)
    return whole


def _removed(content: dict[str, Any], place: str) -> bool:
    """Take `section` or `section.entry` out of a file's content; return whether it was there."""
    name, _, entry = place.partition(".")
    section = content.get(name)
    if not entry:
        return content.pop(name, None) is not None
    if not isinstance(section, dict | list) or entry not in section:
        return False
    if isinstance(section, dict):
        content[name] = {key: value for key, value in section.items() if key != entry}
    else:
        content[name] = [item for item in section if item != entry]
    return True


def _joined(inherited: Any, value: Any) -> Any:
    if isinstance(inherited, dict) and isinstance(value, dict):
        return inherited | value
    return inherited + value if isinstance(inherited, list) and isinstance(value, list) else value
