"""Copies of published models, by their names: reads `configs/names_of_copies.yaml`."""

import re
from collections.abc import Iterator
from pathlib import Path

from modelbudget.catalogue.named_models import Base, find, without_owner
from modelbudget.common.paths import CONFIGS
from modelbudget.common.strict import Strict, shipped
from modelbudget.huggingface.run_settings import Note

FILE_FORMAT = "Q4_K_M"
"""Format of llama.cpp's files that is offered: on a Mac, and for a copy whose name has none."""
TAKEN_FOR = "taken for"
"""Begin of the note on a model that a name was taken for."""


class Format(Strict):
    """Names of copies in one format.

    `name` is a regular expression; a group `file` of it is the format of a GGUF file, if it has
    matched.
    """

    name: str
    tool: str
    weights: str | None = None


class NamesOfCopies(Strict):
    """Formats, and endings of names: of tuned models, and that say how weights are stored."""

    copies: list[Format]
    tuned: list[str]
    stored: list[str]


_names = shipped(CONFIGS / "names_of_copies.yaml", NamesOfCopies)


def copy_of(folder: Path, name: str) -> Base | None:
    """Return the model of which another owner has a copy under a name, with the copy's format.

    None for a name that no model's is in. Raises InputError.
    """
    if "/" in name and Path(name).parent.is_dir():  # a file or folder that is missing there
        return None
    names = _names()
    matches = ((re.fullmatch(known.name, name, re.IGNORECASE), known) for known in names.copies)
    match, known = next((of_name for of_name in matches if of_name[0]), (None, None))
    for model in _stems(without_owner(match[1] if match else name), names.tuned):
        try:
            base = find(folder, model)
        except ValueError:
            continue
        return _copy(base, name, known, match.groupdict() if match else {})
    return None


def stem(name: str) -> str:
    """Return a name without what says that a model is tuned, or how its weights are stored."""
    *_, last = _stems(name.replace("_", "-"), [*_names().tuned, *_names().stored])
    return last


def _stems(name: str, endings: list[str]) -> Iterator[str]:
    """Yield a name, and what is left of it after each ending that is taken off."""
    yield name
    if end := next((end for end in endings if name.casefold().endswith(end)), None):
        yield from _stems(name[: -len(end)], endings)


def _copy(base: Base, name: str, known: Format | None, groups: dict[str, str | None]) -> Base:
    """Return a model under the name of its copy, of which `groups` are those of the format."""
    has_name = base.label.startswith(base.name)
    label = f"{name}{base.label.removeprefix(base.name)}" if has_name else f"{name} ({base.label})"
    run, with_weights = {}, ""
    if known and known.weights:
        run = {"weights": known.weights}
        with_weights = f" with weights {known.weights}, which {known.tool} writes"
    line = f"{TAKEN_FOR} {base.name}{with_weights}, by its name; its own config.json was not read"
    if "file" in groups:
        file = (groups["file"] or FILE_FORMAT).upper()
        line += f", nor are weights those of the GGUF file: `gguf={file}`"
    notes = *base.notes, Note(line)
    return base._replace(name=name, label=label, fields=base.fields | run, notes=notes)
