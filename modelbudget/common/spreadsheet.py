"""Files of tables: Parquet, and CSV that is safe to open in a spreadsheet."""

import io
from pathlib import Path

import polars as pl
from polars import selectors

from modelbudget.common.files import replacing, write

_FORMULA = r"^[=+\-@＝＋－＠\t\r\n]"


def csv(table: pl.DataFrame) -> str:
    """Return the table as CSV without spreadsheet formulas (OWASP, CSV Injection).

    Text that a spreadsheet would compute is prefixed with an apostrophe, and all text is quoted.
    """
    text = selectors.string()
    safe = pl.when(text.str.contains(_FORMULA)).then("'" + text).otherwise(text)
    return table.with_columns(safe.name.keep()).write_csv(quote_style="non_numeric")


def write_table(path: str, table: pl.DataFrame) -> None:
    """Write a table in one step: as CSV if the path ends so, otherwise as Parquet."""
    if Path(path).suffix == ".csv":
        write(path, csv(table))
        return
    content = io.BytesIO()  # of a full disk Polars says that Thrift has an error
    table.write_parquet(content)
    with replacing(path) as new:
        new.write_bytes(content.getvalue())
