"""The arguments of every formula."""

from typing import Any

Fields = Any
"""The fields of an architecture as attributes: a record, Polars columns, SymPy symbols, intervals
or nodes of the calculator's graph. Sizes and switches only take part in arithmetic. Categories are
text in every reading and may be compared.
"""
Run = Any
"""The same of a run's fields (`RunConfig`)."""
