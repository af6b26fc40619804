"""The zoo: what formula, own module, transformers' class, the public and the press say of a model.

The last three are the outside witnesses. A difference has a reason, in words, or is unexplained.
"""

import polars as pl

from modelbudget.catalogue import Base, Catalogue
from modelbudget.expand import named_architecture
from modelbudget.expressions import Expression
from modelbudget.huggingface.classes import TRANSLATIONS
from modelbudget.terms import total

AGREES, EXPLAINED, UNEXPLAINED = "agrees", "differs, explained", "differs, unexplained"

COUNTS = ("measured", "witness", "exact", "published_value")
"""What is held against `predicted`; each has a column of differences."""


def zoo(
    catalogue: Catalogue, points: pl.DataFrame, comparison: pl.DataFrame, witness: pl.DataFrame
) -> pl.DataFrame:
    """One row for each named model among the points as it stands in its file.

    Columns: model, label, series, family, predicted, measured, witness (unique parameters of the
    class in transformers), class, buffers (elements that the class keeps beside its parameters),
    exact and exact_source, published (as printed), published_value, published_tolerance,
    published_source and published_checked; for each of `COUNTS` its difference from predicted;
    active, active_without_input_embedding and published_active (parameters that one token uses);
    status, and reason where something differs. Units: counts.
    """
    sums = (
        comparison.filter(pl.col("quantity") == "parameters")
        .group_by("point")
        .agg(
            pl.when(pl.col("formula").all()).then(pl.col("predicted").sum()).alias("predicted"),
            pl.col("measured").sum(),
        )
    )
    named = [base for base in catalogue.bases.values() if base.model]
    facts = pl.from_dicts([_facts(base) for base in named], schema=FACTS)
    table = (
        points.select("point", "architecture", "family", model="base")
        .join(facts, on=["model", "architecture"], maintain_order="left")
        .join(sums, on="point", maintain_order="left")
        .join(
            witness.rename({"parameters": "witness"}),
            on=["architecture", "class"],
            how="left",
            maintain_order="left",
        )
    )
    table = table.with_columns(
        (pl.col(name) - pl.col("predicted")).alias(f"{name}_difference") for name in COUNTS
    )
    judged = pl.from_dicts(
        [_judged(row) for row in table.iter_rows(named=True)],
        schema={"status": pl.String, "reason": pl.String},
    )
    return pl.concat([table, judged], how="horizontal").select(*COLUMNS)


FACTS = {
    "model": pl.String,
    "label": pl.String,
    "series": pl.String,
    "architecture": pl.String,
    "class": pl.String,
    "left_out": pl.Int64,
    "left_out_reason": pl.String,
    "active": pl.Int64,
    "active_without_input_embedding": pl.Int64,
    "published_active": pl.Int64,
    "exact": pl.Int64,
    "exact_source": pl.String,
    "published": pl.String,
    "published_value": pl.Int64,
    "published_tolerance": pl.Int64,
    "published_source": pl.String,
    "published_checked": pl.String,
    "printed_reason": pl.String,
    "remark": pl.String,
}
COLUMNS = (
    "model", "label", "series", "family", "predicted", *COUNTS,
    *(f"{name}_difference" for name in COUNTS), "class", "buffers", "exact_source", "published",
    "published_tolerance", "published_source", "published_checked", "active",
    "active_without_input_embedding", "published_active", "status", "reason", "remark",
)  # fmt: skip


def _facts(base: Base) -> dict:
    """What the model's file says, and what its class is known to leave out."""
    a, model = named_architecture(base), base.model
    expression, reason = ("0", None)
    if base.transformers and TRANSLATIONS[base.transformers].left_out:
        expression, reason = TRANSLATIONS[base.transformers].left_out
    copied = ("exact", "exact_source", "published", "published_value", "published_tolerance",
              "published_source", "published_checked", "published_active", "remark")  # fmt: skip
    return {
        "model": base.name,
        "label": base.label,
        "series": base.series,
        "architecture": a.digest(),
        "class": base.transformers,
        "left_out": int(Expression(expression)(a.model_dump())),
        "left_out_reason": reason,
        "printed_reason": model.reason,
        **_active(a),
        **{name: getattr(model, name) for name in copied},
    }


def _active(a) -> dict[str, int | None]:
    """With the input embedding, as Mixtral and Qwen count, and without, as DeepSeek does."""
    if not getattr(a, "n_expert", 0):
        return {"active": None, "active_without_input_embedding": None}
    terms = a.active_parameters(a)
    words = terms["embedding.token"].total * (1 - a.tied)
    return {"active": total(terms), "active_without_input_embedding": total(terms) - words}


def _judged(row: dict) -> dict[str, str | None]:
    """Status and reason of one model: every difference asks for a reason."""
    reasons = []
    if row["measured_difference"]:
        reasons.append("unexplained: our own module differs from the formula")
    if row["witness_difference"]:
        explained = row["witness_difference"] == -row["left_out"]
        reason = row["left_out_reason"] if explained else "unexplained"
        reasons.append(f"{row['class']}: {reason}")
    elif row["refusal"]:
        reasons.append(f"unexplained: {row['refusal']}")
    if row["exact_difference"]:
        reasons.append("unexplained: the public count differs")
    if abs(row["published_value_difference"] or 0) > (row["published_tolerance"] or 0):
        reasons.append(f"printed: {row['printed_reason'] or 'unexplained'}")
    if not reasons:
        return {"status": AGREES, "reason": None}
    unexplained = any("unexplained" in reason for reason in reasons)
    return {
        "status": UNEXPLAINED if unexplained else EXPLAINED,
        "reason": "; ".join(reasons),
    }
