"""Checksums of results, so that a result that was changed afterwards is made again.

Each result has a file in results/.checksums with the digest of its content and the state that its
job was started with. The state is a parameter of the rule: Snakemake reruns it when it changes.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from modelbudget.common.files import replacing
from modelbudget.common.paths import CHECKSUMS, RESULTS, SHARDS, files_in

MADE = "made"
"""State of results that have never been changed afterwards."""


def state(results: Iterable[str | Path]) -> str:
    """Return the state of the results of one job.

    The saved state while all are unchanged; otherwise a digest of the changed content.
    """
    changed = changed_results(results)
    if changed:
        return _digest("".join(map(_content, changed)).encode())
    return next((state for _, state in map(_saved, map(Path, results)) if state), MADE)


def changed_results(results: Iterable[str | Path]) -> list[Path]:
    """Return the existing results that differ from their checksum or have none."""
    there = [path for path in map(Path, results) if path.exists()]
    return [path for path in there if _saved(path)[0] != _content(path)]


def save(results: Iterable[str | Path], state: str) -> None:
    """Write the checksum of each result (a file or a folder) and the state of its job.

    Temporary results get none.
    """
    for path in map(Path, results):
        if path.exists() and not path.is_relative_to(SHARDS):
            with replacing(_place(path)) as checksum:
                checksum.write_text(f"{_content(path)} {state}", encoding="utf-8")


def _saved(path: Path) -> tuple[str, str]:
    try:
        content, state = _place(path).read_text(encoding="utf-8").split()
    except (OSError, ValueError):
        return "", ""
    return content, state


def _place(path: Path) -> Path:
    return CHECKSUMS / f"{path.relative_to(RESULTS)}.sha256"


def _content(path: Path) -> str:
    """Return the digest of a file, or of the names and contents of all files in a folder."""
    if path.is_file():
        return _digest(path.read_bytes())
    inside = (f"{file.relative_to(path)} {_content(file)}\n" for file in files_in(path))
    return _digest("".join(inside).encode())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
