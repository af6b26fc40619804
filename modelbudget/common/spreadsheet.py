"""Tables as CSV, for people who open them in a spreadsheet."""

import polars as pl
from polars import selectors

_FORMULA = r"^[=+\-@＝＋－＠\t\r\n]"


def csv(table: pl.DataFrame) -> str:
    """The table as CSV in which no text is a formula: an apostrophe stands before what a
    spreadsheet would compute, and all text is quoted, so that no separator begins a cell of its
    own (OWASP, CSV Injection).
    """
    text = selectors.string()
    safe = pl.when(text.str.contains(_FORMULA)).then("'" + text).otherwise(text)
    return table.with_columns(safe.name.keep()).write_csv(quote_style="non_numeric")
