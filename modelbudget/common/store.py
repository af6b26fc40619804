"""Cache of measurements, addressed by content and shared by all sweeps.

A folder of plain Parquet files, one for each job that measured. Each row has a `key`: the digest
of everything that the measurement depends on. Files are only added. A file is named by the digest
of its bytes; a file whose name does not match is removed, and its measurements are repeated.
"""

import hashlib
import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import polars as pl

from modelbudget.common.files import replacing

log = logging.getLogger(__name__)


def key(*parts) -> str:
    """Return a digest of everything that a measurement depends on."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]


def known(folder: Path, keys: list[str]) -> set[str]:
    """Return those of the keys that have been measured."""
    there = {key for table in _tables(folder) for key in table["key"].unique()}
    return there & set(keys)


def load(folder: Path, keys: list[str]) -> pl.DataFrame | None:
    """Return the rows with these keys; None if there are none."""
    wanted = pl.Series(keys, dtype=pl.String).implode()
    parts = [
        table.filter(pl.col("key").is_in(wanted))
        for table in _tables(folder)
        if table["key"].is_in(wanted).any()
    ]
    return pl.concat(parts).unique(maintain_order=True) if parts else None


def save(folder: Path, table: pl.DataFrame) -> None:
    """Add a table with a `key` column. Equal tables give the same file."""
    content = io.BytesIO()
    table.write_parquet(content)
    with replacing(folder / _name(content.getvalue())) as path:
        path.write_bytes(content.getvalue())


def _name(content: bytes) -> str:
    return f"{hashlib.sha256(content).hexdigest()[:24]}.parquet"


def _tables(folder: Path) -> Iterator[pl.DataFrame]:
    for path in sorted(folder.glob("*.parquet")):
        content = path.read_bytes()
        if path.name == _name(content):
            yield pl.read_parquet(io.BytesIO(content))
        else:
            log.warning("%s: content was changed, removed", path)
            path.unlink()
