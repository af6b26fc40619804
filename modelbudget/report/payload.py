"""Compressed JSON data embedded in the page for its scripts."""

import json
import zlib

import numpy as np
import polars as pl

from modelbudget.architecture.evaluators.graph import EXACT_BELOW
from modelbudget.architecture.terms import is_peak
from modelbudget.report.charts.grouped_values import evenly_spaced, share_room
from modelbudget.report.component_order import sort_key
from modelbudget.report.page_results import SweepResult
from modelbudget.report.symbolic_formulas import general_formulas

MOST_ROWS = 3_000
"""Most rows of all tables of a page together. The result files have all rows."""
_SAFE = {code: code + 256 for code in map(ord, "\0\r<")}
"""Characters that HTML would read as others, and what stands for them in the page."""
SAME = "="
"""Replaces a prediction that equals each × instances, and a measurement that equals it."""


def packed(data) -> str:
    """Return the data as compressed JSON. Equal data give equal text."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    return packed_bytes(text.encode())


def packed_bytes(content: bytes) -> str:
    """Return compressed bytes as text, seven bits a character.

    Base85 would take 7 % more. The characters of a script are not parsed: `<` alone could end it.
    """
    bits = np.unpackbits(np.frombuffer(zlib.compress(content, 9), np.uint8))
    bits = np.pad(bits, (0, -bits.size % 7)).reshape(-1, 7)
    return (np.packbits(bits, axis=1) >> 1).tobytes().decode("ascii").translate(_SAFE)


def comparison_tables(sweeps: list[SweepResult]) -> dict[str, dict]:
    """Return each sweep's comparison as the data of its table in the page.

    Small tables are whole. The remaining rows are distributed over the larger ones, which have
    evenly spaced points.
    """
    rows = share_room({sweep.name: sweep.comparison.height for sweep in sweeps}, MOST_ROWS)
    return {
        sweep.name: _table(_at_most(sweep.comparison, rows[sweep.name]), sweep.points)
        for sweep in sweeps
    }


def _at_most(comparison: pl.DataFrame, rows: int) -> pl.DataFrame:
    if comparison.height <= rows:
        return comparison
    points = comparison["point"].unique(maintain_order=True).to_list()
    kept = evenly_spaced(points, max(2, len(points) * rows // comparison.height))
    return comparison.filter(pl.col("point").is_in(kept))


def _table(rows: pl.DataFrame, architectures: pl.DataFrame) -> dict:
    """Return columns of points and rows, and formulas.

    `of` has the index of each row's point; `kinds` has the formulas of groups of points.
    """
    place = rows.columns.index("component")
    points = rows.select(rows.columns[:place]).unique("point", maintain_order=True)
    of = rows.select("point").join(
        points.select("point", of=pl.int_range(pl.len())), on="point", maintain_order="left"
    )
    quantities = sorted(rows["quantity"].drop_nulls().unique())
    shown = architectures.filter(pl.col("point").is_in(points["point"].implode()))
    return {
        "kinds": general_formulas(shown, quantities),
        "points": {name: _exact(points[name]) for name in points.columns},
        "order": points.columns,
        "of": of["of"].to_list(),
        "rows": _rows(rows.select(rows.columns[place:])),
        "columns": rows.columns[place:],
        "numbers": [name for name in rows.columns if rows[name].dtype.is_numeric()],
        "components": sorted(
            rows["component"].drop_nulls().unique(maintain_order=True), key=sort_key
        ),
        "peaks": list(filter(is_peak, quantities)),
    }


def _rows(rows: pl.DataFrame) -> dict[str, list]:
    columns = {name: _exact(rows[name]) for name in rows.columns}
    product = _exact(rows["each"] * rows["instances"])
    columns["measured"] = _same(columns["measured"], columns["predicted"])
    columns["predicted"] = _same(columns["predicted"], product)
    return columns


def _same(values: list, expected: list) -> list:
    pairs = zip(values, expected, strict=True)
    return [SAME if value is not None and value == other else value for value, other in pairs]


def _exact(column: pl.Series) -> list:
    if column.dtype.is_float():  # as the file writes them
        return [text or None for text in column.to_frame().write_csv().splitlines()[1:]]
    if not column.dtype.is_integer():
        return column.to_list()
    return [n if n is None or abs(n) < EXACT_BELOW else str(n) for n in column.to_list()]
