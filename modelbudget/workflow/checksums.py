"""What each result was made of, so that it is made again if that or the result has changed.

Each result has a file in results/.checksums with the digest of its content and what its job was
started with and read. The state of results is a parameter of each rule: Snakemake runs a job again
when it changes.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from modelbudget.common.files import write_json
from modelbudget.common.paths import CHECKSUMS, RESULTS, files_in

NOT_OF_SOURCES = ("state", "inputs")
"""Parameters about a job's results and its input, which every rule has."""
MADE = "made"
"""State of results that have never been changed afterwards."""


class Made(NamedTuple):
    """Digests of a result's content and of its job's parameters, and the state of its job.

    `data`, of a job's first result, has the digest of each data file that the job read and that
    is none of its inputs.
    """

    content: str
    state: str
    params: str
    data: dict[str, str]


def state(results: Iterable[str | Path]) -> str:
    """Return the state of the results of one job.

    The saved state while results and the data files read are unchanged; otherwise a digest of what
    has changed.
    """
    records = {path: _saved(path) for path in map(Path, results) if path.exists()}
    changed = [_content(path) for path in changed_results(records)]
    changed += [digest for each in records.values() if each for digest in _changed_data(each)]
    if changed:
        return _digest("".join(changed).encode())
    return next((each.state for each in records.values() if each), MADE)


def changed_results(results: Iterable[str | Path]) -> list[Path]:
    """Return the existing results that differ from their checksum or have none."""
    existing = [path for path in map(Path, results) if path.exists()]
    return [path for path in existing if not _is_unchanged(path)]


def are_current(rule, wildcards) -> bool:
    """Whether all results of a job are there, unchanged, and made with what it reads now."""
    params = {
        name: value(wildcards) if callable(value) else value
        for name, value in rule.params.items()
        if name not in NOT_OF_SOURCES
    }
    results, made_with = rule.expand_output(wildcards)[0], _of_params(params)
    return all(
        path.exists()
        and _is_unchanged(path)
        and (record := _saved(path))
        and record.params == made_with
        and not _changed_data(record)
        for path in map(Path, results)
    )


def save(results: Iterable[str | Path], params: Mapping[str, Any], read: Iterable[Path]) -> None:
    """Write what each result (a file or a folder) was made of.

    `read`: the data files that the job read and that are none of its inputs.
    """
    data = {str(path): of_data(str(path)) for path in sorted(read)}
    for path in map(Path, results):
        if path.exists():
            record = Made(_content(path), params["state"], _of_params(params), data)
            write_json(_place(path), record._asdict())
            data = {}


def of_names(names: Iterable[str]) -> str:
    return _digest("\n".join(names).encode())


def _of_params(params: Mapping[str, Any]) -> str:
    """Return a digest of a job's parameters, without those about its results and its input."""
    sources = {name: value for name, value in params.items() if name not in NOT_OF_SOURCES}
    return _digest(json.dumps(sources, sort_keys=True, default=str).encode())


def _is_unchanged(path: Path) -> bool:
    record = _saved(path)
    return record is not None and record.content == _content(path)


def _changed_data(record: Made) -> list[str]:
    """Return the present digests of the data files that were read and have changed."""
    return [of_data(name) for name, digest in record.data.items() if of_data(name) != digest]


def _saved(path: Path) -> Made | None:
    try:
        record = Made(**json.loads(_place(path).read_text(encoding="utf-8")))
        return record if isinstance(record.data, dict) else None
    except (OSError, ValueError, TypeError):
        return None


def _place(path: Path) -> Path:
    return CHECKSUMS / f"{path.relative_to(RESULTS)}.json"


@cache
def of_data(name: str) -> str:
    """Return the digest of a data file when this process first asks; empty if it cannot be read."""
    try:
        return _digest(Path(name).read_bytes())
    except OSError:
        return ""


def _content(path: Path) -> str:
    """Return the digest of a file, or of the names and contents of all files in a folder."""
    if path.is_file():
        return _digest(path.read_bytes())
    inside = (f"{file.relative_to(path)} {_content(file)}\n" for file in files_in(path))
    return _digest("".join(inside).encode())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
