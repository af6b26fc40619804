"""Known differences between `transformers` classes and our models, of the points of a sweep."""

import polars as pl

from modelbudget.huggingface.classes import translations
from modelbudget.huggingface.known_difference import known_difference
from modelbudget.sweeps.points_table import rows


def known_differences(points: pl.DataFrame) -> pl.DataFrame:
    """Return the points whose class differs: point, known (parameters), known_difference (text)."""
    kinds = [kind for kind, translation in translations().items() if translation.left_out]
    different = points.filter(pl.col("transformers").cast(pl.String).is_in(kinds))
    differences = [
        (row.point, known.parameters, known.text)
        for row in rows(different)
        if (known := known_difference(row.transformers, row.architecture))
    ]
    schema = {"point": pl.String, "known": pl.Int64, "known_difference": pl.String}
    return pl.DataFrame(differences, schema, orient="row")
