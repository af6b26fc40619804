"""Formula, our module and the `transformers` class of the models of a sweep: tables."""

import polars as pl

from modelbudget.catalogue.implementations import TRANSFORMERS
from modelbudget.common.number_format import times
from modelbudget.compare.class_table import implementations, peaks
from modelbudget.compare.class_verdict import judged
from modelbudget.report.page_results import SweepResult

EQUAL = 1e-6
"""Largest relative difference that is shown as 1: tensors of a few bytes, such as step counts."""


def implementations_section(sweep: SweepResult) -> dict | None:
    """Return models by implementation and ratios by quantity, and reasons of missing values."""
    if sweep.classes is None:
        return None
    table = _table(sweep, sweep.classes)
    traced = table.drop_nulls("reference")
    refused = table.drop_nulls("refusal").group_by("class", "refusal", maintain_order=True)
    missing = refused.agg(
        models=pl.col("label").n_unique(), quantities=pl.col("quantity").unique(maintain_order=True)
    )
    return {
        "classes": sorted(traced["class"].unique()),
        "replaced": sorted(traced["replaced"].drop_nulls().unique()),
        "quantities": by_quantity(table).to_dicts(),
        "equal": EQUAL,
        "n_values": traced.height,
        "missing": missing.to_dicts(),
    }


def by_quantity(table: pl.DataFrame) -> pl.DataFrame:
    """Return the number of models of each implementation, and the ends of their ratios."""
    return table.group_by("quantity", maintain_order=True).agg(
        *(
            pl.col("point").filter(pl.col(name).is_not_null()).n_unique().alias(name)
            for name in ("formula", "module", "reference")
        ),
        low=pl.col("ratio").min(),
        high=pl.col("ratio").max(),
    )


def most_of_classes(sweeps: list[SweepResult]) -> str | None:
    """Return the largest ratio of classes to our modules of activations and of the cache."""
    table = _all(sweeps)
    if table.is_empty():
        return None
    largest = dict(table.group_by("quantity").agg(pl.col("ratio").max()).drop_nulls().rows())
    named = {"activation_bytes": "activations", "cache_bytes": "cache"}
    texts = [
        f"up to {times(largest[name])} the {of}"
        for name, of in named.items()
        if round(largest.get(name, 0), 2) > 1
    ]
    return " and ".join(texts) or None


def class_values(sweeps: list[SweepResult]) -> dict | None:
    """Count what is predicted with the settings of `transformers` and traced in its classes.

    Values are sums over components, or phases of a peak. None if no sweep has any.
    """
    rows = (judged(sweep.comparison).filter(_is_about_class(sweep)) for sweep in sweeps)
    verdicts = pl.concat([pl.DataFrame(), *rows], how="diagonal")
    if verdicts.is_empty():
        return None
    agreed = int(verdicts["agrees"].sum())
    return {
        "models": verdicts.height,
        "agrees": agreed,
        "differs": 0,
        "unexplained": verdicts.height - agreed,
        "classes": sorted(verdicts["class"].unique()),
    }


def sums_of_classes(sweeps: list[SweepResult]) -> list[dict]:
    """Return quantities predicted with the settings of `transformers` and traced in its classes.

    Sums over components, and of a peak the largest phase: both sides in bytes.
    """
    table = _all(sweeps)
    if table.is_empty():
        return []
    in_bytes = table.filter("is_about", pl.col("quantity").str.ends_with("bytes"))
    return in_bytes.filter(pl.col("formula") > 0, pl.col("reference") > 0).to_dicts()


def _all(sweeps: list[SweepResult]) -> pl.DataFrame:
    """Return the values of all sweeps; no columns if none has classes."""
    tables = (_table(sweep, sweep.classes) for sweep in sweeps if sweep.classes is not None)
    return pl.concat([pl.DataFrame(), *tables], how="diagonal")


def _is_about_class(sweep: SweepResult) -> pl.Expr:
    """Whether the point of a row is predicted under the name of the class."""
    return pl.col("point").is_in(
        sweep.points.filter(implementation=TRANSFORMERS)["point"].implode()
    )


def _table(sweep: SweepResult, classes: pl.DataFrame) -> pl.DataFrame:
    """Return the values of a sweep. `is_about`: those predicted under the name of the class."""
    table = peaks(implementations(sweep.points, sweep.comparison, classes))
    return table.with_columns(is_about=_is_about_class(sweep))
