"""The zoo: predicted, measured, Hugging Face, reference and published counts of each named model.

The last three are independent of this project. A difference has a reason or is unexplained.
"""

import polars as pl

from modelbudget.architecture.terms import total
from modelbudget.catalogue.named_models import Base, Catalogue, Model
from modelbudget.compare.comparison import has_prediction
from modelbudget.huggingface.classes import known_difference
from modelbudget.sweeps.derive import named_architecture

AGREES, EXPLAINED, UNEXPLAINED = "agrees", "differs, explained", "differs, unexplained"
NO_REASON = "unexplained"
"""First word of the reason of an unexplained difference."""

COUNTS = ("measured", "reference", "exact", "published_value")
"""Columns compared with `predicted`; each has a column of differences and one of reasons."""


def zoo(
    catalogue: Catalogue, points: pl.DataFrame, comparison: pl.DataFrame, counts: pl.DataFrame
) -> pl.DataFrame:
    """Return one row for each named model among the points with unchanged fields.

    Columns: point, model, label, series, family, predicted, measured, reference (unique parameters
    of the class in transformers), class, built_from (whose keys), buffers (elements that the class
    has in addition to its parameters), exact and exact_source, published (as printed),
    published_value, published_tolerance, published_source and published_checked; for each of
    `COUNTS` its difference from predicted and, where it does not agree, the reason, which begins
    with `unexplained` if none is known; active, active_without_input_embedding and published_active
    (parameters that one token uses);
    status, and all reasons together where something differs. Units: counts.
    """
    sums = (
        comparison.filter(pl.col("quantity") == "parameters")
        .group_by("point")
        .agg(
            pl.when(has_prediction().all()).then(pl.col("predicted").sum()).alias("predicted"),
            pl.col("measured").sum(),
        )
    )
    facts = pl.from_dicts(
        [_facts(base, base.model) for base in catalogue.bases.values() if base.model], schema=FACTS
    )
    table = (
        points.select("point", "architecture", "family", model="base")
        .join(facts, on=["model", "architecture"], maintain_order="left")
        .join(sums, on="point", maintain_order="left")
        .join(
            counts.drop("class").rename({"parameters": "reference"}),
            on="point",
            how="left",
            maintain_order="left",
        )
    )
    table = table.with_columns(
        (pl.col(name) - pl.col("predicted")).alias(f"{name}_difference") for name in COUNTS
    )
    judged = pl.from_dicts(
        [_judged(row) for row in table.iter_rows(named=True)],
        schema=dict.fromkeys(JUDGED, pl.String),
    )
    return pl.concat([table, judged], how="horizontal").select(*COLUMNS)


FACTS = {
    "model": pl.String, "label": pl.String, "series": pl.String, "architecture": pl.String,
    "class": pl.String, "known": pl.Int64, "known_reason": pl.String, "active": pl.Int64,
    "active_without_input_embedding": pl.Int64, "published_active": pl.Int64, "exact": pl.Int64,
    "exact_source": pl.String, "published": pl.String, "published_value": pl.Int64,
    "published_tolerance": pl.Int64, "published_source": pl.String, "published_checked": pl.String,
    "printed_reason": pl.String, "remark": pl.String,
}  # fmt: skip
JUDGED = (*(f"{name}_reason" for name in COUNTS), "status", "reason")
COLUMNS = (
    "point", "model", "label", "series", "family", "predicted", *COUNTS,
    *(f"{name}_difference" for name in COUNTS), "class", "built_from", "buffers", "exact_source",
    "published", "published_tolerance", "published_source", "published_checked", "active",
    "active_without_input_embedding", "published_active", *JUDGED, "remark",
)  # fmt: skip


def _facts(base: Base, model: Model) -> dict:
    """Return the numbers in a model's file, and a known difference of its `transformers` class."""
    a = named_architecture(base)
    known = known_difference(base.transformers, a)
    copied = ("exact", "exact_source", "published", "published_value", "published_tolerance",
              "published_source", "published_checked", "published_active", "remark")  # fmt: skip
    return {
        "model": base.name,
        "label": base.label,
        "series": base.series,
        "architecture": a.digest(),
        "class": base.transformers,
        "known": known.parameters if known else 0,
        "known_reason": known.reason if known else None,
        "printed_reason": model.reason,
        **_active(a),
        **{name: getattr(model, name) for name in copied},
    }


def _active(a) -> dict[str, int | None]:
    """Count active parameters with the input embedding (Mixtral, Qwen) and without (DeepSeek)."""
    if not getattr(a, "n_expert", 0):
        return {"active": None, "active_without_input_embedding": None}
    terms = a.active_parameters(a)
    embedding = terms["embedding.token"].total * (1 - a.tied)
    return {"active": total(terms), "active_without_input_embedding": total(terms) - embedding}


def _judged(row: dict) -> dict[str, str | None]:
    """Return the reason of each difference and the status of the model."""
    reasons = _reasons(row)
    sources = {"measured": "own module", "reference": row["class"], "exact": "public count",
           "published_value": "printed"}  # fmt: skip
    texts = [f"{sources[name]}: {reason}" for name, reason in reasons.items() if reason]
    unexplained = any((reason or "").startswith(NO_REASON) for reason in reasons.values())
    return {
        **{f"{name}_reason": reason for name, reason in reasons.items()},
        "status": UNEXPLAINED if unexplained else EXPLAINED if texts else AGREES,
        "reason": "; ".join(texts) or None,
    }


def _reasons(row: dict) -> dict[str, str | None]:
    """Return the reason for each of `COUNTS`; None if it agrees or is missing."""
    reasons: dict[str, str | None] = dict.fromkeys(COUNTS)
    if row["measured_difference"]:
        reasons["measured"] = f"{NO_REASON}: our own module differs from the formula"
    if row["reference_difference"]:
        explained = row["reference_difference"] == row["known"]
        reasons["reference"] = row["known_reason"] if explained else NO_REASON
    elif row["refusal"]:
        reasons["reference"] = f"{NO_REASON}: {row['refusal']}"
    if row["exact_difference"]:
        reasons["exact"] = f"{NO_REASON}: the public count differs"
    if abs(row["published_value_difference"] or 0) > (row["published_tolerance"] or 0):
        reasons["published_value"] = row["printed_reason"] or NO_REASON
    return reasons


def agreement(name: str) -> pl.Expr:
    """Return the status of one of `COUNTS`: agrees, explained, unexplained, or null if missing."""
    reason = pl.col(f"{name}_reason")
    return (
        pl.when(reason.str.starts_with(NO_REASON)).then(pl.lit(UNEXPLAINED))
        .when(reason.is_not_null()).then(pl.lit(EXPLAINED))
        .when(pl.col(f"{name}_difference").is_not_null()).then(pl.lit(AGREES))
    )  # fmt: skip
