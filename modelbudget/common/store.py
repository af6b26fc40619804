"""Cache of measurements, addressed by content and shared by all sweeps.

A folder of plain Parquet files, one for each job that measured. Each row has a `key`: the digest
of everything that the measurement depends on. Files are only added. A file is named by the digest
of its bytes; a file whose name does not match is removed, and its measurements are repeated.
"""

import hashlib
import io
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TypeVar

import polars as pl

from modelbudget.common.files import replacing

log = logging.getLogger(__name__)
Value = TypeVar("Value")
SAVED_EVERY_S = 30
"""Seconds of measurements that a killed job loses at most."""


def key(*parts) -> str:
    """Return a digest of everything that a measurement depends on."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]


def missing(folder: Path, wanted: Mapping[str, Value]) -> dict[str, Value]:
    """Return what has not been measured of what is wanted, by key."""
    measured = {key for table in _tables(folder) for key in table["key"].unique()}
    new = {key: value for key, value in wanted.items() if key not in measured}
    log.info("%s: %d measured before, %d to measure", folder, len(wanted) - len(new), len(new))
    return new


def load(folder: Path, keys: Iterable[str]) -> pl.DataFrame:
    """Return the rows with these keys; with `key` alone if there are none."""
    wanted = pl.Series(list(keys), dtype=pl.String).implode()
    parts = [
        table.filter(pl.col("key").is_in(wanted))
        for table in _tables(folder)
        if table["key"].is_in(wanted).any()
    ]
    empty = pl.DataFrame(schema={"key": pl.String})
    return pl.concat(parts).unique(maintain_order=True) if parts else empty


@contextmanager
def adding(folder: Path) -> Iterator[Callable[[str, pl.DataFrame], None]]:
    """Return what adds the rows of one key; written at the end, also of what is interrupted.

    If that takes long, they are written every `SAVED_EVERY_S` seconds.
    """
    tables: dict[str, pl.DataFrame] = {}
    last_saved = monotonic()

    def add(key: str, table: pl.DataFrame) -> None:
        nonlocal last_saved
        tables[key] = table.with_columns(key=pl.lit(key))
        if monotonic() - last_saved > SAVED_EVERY_S:
            write()
            last_saved = monotonic()

    def write() -> None:
        if tables:
            save(folder, pl.concat([tables[key] for key in sorted(tables)]))
            tables.clear()

    try:
        yield add
    finally:
        write()


def save(folder: Path, table: pl.DataFrame) -> None:
    """Add the rows of a table with a `key` column. Equal tables give the same file."""
    if table.is_empty():
        return
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
