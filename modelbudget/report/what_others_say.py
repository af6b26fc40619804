"""What others say: classes, public counts and printed sizes against the predictions."""

import polars as pl

from modelbudget.compare.zoo import NO_REASON
from modelbudget.report.charts.format import count, short, signed_percent
from modelbudget.report.implementation_tables import class_values
from modelbudget.report.page_results import SweepResult
from modelbudget.report.zoo_tables import tallies

OUTSIDERS = {
    "reference": "Classes of Hugging Face <code>transformers</code>, instantiated",
    "exact": "Exact counts that others have published",
    "published_value": "Sizes that papers and model cards print",
}

TRACED = (
    "Memory of training steps of {}, by quantity and phase, predicted with the settings of "
    "<code>transformers</code> and traced on the class"
)


def trust_section(sweeps: list[SweepResult]) -> dict | None:
    """Return what outsiders count, and every printed size that nothing explains.

    None without a sweep of all published models.
    """
    published = next((sweep for sweep in sweeps if sweep.zoo is not None), None)
    if published is None or published.zoo is None:
        return None
    tally = tallies(published.zoo)
    outside = [tally[name] | {"witness": text} for name, text in OUTSIDERS.items()]
    traced = class_values(sweeps)
    if traced:
        outside.insert(1, traced | {"witness": TRACED.format(" and ".join(traced["classes"]))})
    agreed, values, unexplained = (
        sum(int(tallied[name]) for tallied in outside)
        for name in ("agrees", "models", "unexplained")
    )
    return {
        "title": f"{count(agreed)} of {count(values)} numbers of others equal our formulas"
        + (f"; {count(unexplained)} are unexplained" if unexplained else ""),
        "outside": [tallied for tallied in outside if tallied["models"]],
        "section": published.name,
        "open": _open(published.zoo),
    }


def _open(zoo: pl.DataFrame) -> list[dict]:
    rows = zoo.filter(pl.col("published_value_reason").str.starts_with(NO_REASON))
    return [
        {
            "label": row["label"],
            "printed": row["published"],
            "source": row["published_source"],
            "predicted": count(row["predicted"]),
            "short": short(row["predicted"]),
            "difference": signed_percent(row["published_value"] / row["predicted"] - 1),
            "reason": row["published_value_reason"].removeprefix(NO_REASON).lstrip(": "),
        }
        for row in rows.iter_rows(named=True)
    ]
