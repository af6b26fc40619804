"""Measurements kept by content: what was measured once is not measured again, in any sweep.

A folder of plain Parquet files. Each holds what one job measured, every row under a `key`: the
digest of all that the measurement depends on. Files are only ever added; a file that cannot be
read is as good as none, and its measurements are made again.
"""

import hashlib
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import polars as pl

from modelbudget.files import replacing

log = logging.getLogger(__name__)


def key(*parts) -> str:
    """Names a measurement by everything that it depends on."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]


def known(folder: Path, keys: list[str]) -> set[str]:
    """Which of the keys have been measured."""
    there = {key for table in _tables(folder) for key in table["key"].unique()}
    return there & set(keys)


def load(folder: Path, keys: list[str]) -> pl.DataFrame | None:
    """The rows under these keys, without the key; None where there are none."""
    wanted = pl.Series(keys, dtype=pl.String).implode()
    parts = [
        table.filter(pl.col("key").is_in(wanted)).drop("key")
        for table in _tables(folder)
        if table["key"].is_in(wanted).any()
    ]
    return pl.concat(parts).unique(maintain_order=True) if parts else None


def save(folder: Path, table: pl.DataFrame) -> None:
    """Add a table with a `key` column. Equal tables make the same file."""
    content = "".join(table["key"].unique(maintain_order=True))
    with replacing(folder / f"{hashlib.sha256(content.encode()).hexdigest()[:24]}.parquet") as path:
        table.write_parquet(path)


def _tables(folder: Path) -> Iterator[pl.DataFrame]:
    for path in sorted(folder.glob("*.parquet")):
        try:
            table = pl.read_parquet(path)
            table["key"]
        except (OSError, pl.exceptions.PolarsError) as error:
            log.warning("%s is not a table of measurements, left aside: %s", path, error)
            continue
        yield table
