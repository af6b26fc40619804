"""CSV files that are safe to open in a spreadsheet."""

import polars as pl
from polars import selectors

_FORMULA = r"^[=+\-@＝＋－＠\t\r\n]"


def csv(table: pl.DataFrame) -> str:
    """Return the table as CSV without spreadsheet formulas (OWASP, CSV Injection).

    Text that a spreadsheet would compute is prefixed with an apostrophe, and all text is quoted.
    """
    text = selectors.string()
    safe = pl.when(text.str.contains(_FORMULA)).then("'" + text).otherwise(text)
    return table.with_columns(safe.name.keep()).write_csv(quote_style="non_numeric")
