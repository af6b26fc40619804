"""Counting conventions applied to the components that were counted on modules."""

from collections.abc import Sequence
from types import SimpleNamespace

import polars as pl

from modelbudget.architecture.counting_conventions import BY_NAME, FLOPS
from modelbudget.architecture.evaluators.polars_columns import Column, series
from modelbudget.architecture.terms import Term

KEYS = ["architecture", "run"]


def with_conventions(
    points: pl.DataFrame, measured: pl.DataFrame, quantities: Sequence[str]
) -> pl.DataFrame:
    """Add the value of each convention among `quantities`, for each model that was counted.

    There is none where no counted component enters the value, since nothing of it was measured, nor
    for FLOPs of a model with experts, which has more parameters than a token uses.
    """
    wanted = [BY_NAME[name] for name in dict.fromkeys(quantities) if name in BY_NAME]
    counted = measured.filter(quantity="parameters")
    if not wanted or counted.is_empty():
        return measured
    counts = counted.pivot("component", index=[*KEYS, "method"], values="value").fill_null(0)
    of_models = points.unique(KEYS, keep="first")
    fields = counts.select(KEYS).join(of_models, on=KEYS, how="left", maintain_order="left")
    a = SimpleNamespace(**{name: Column(fields[name]) for name in fields.columns})
    components = {
        name: Term(Column(counts[name])) for name in counts.columns if name not in (*KEYS, "method")
    }
    has_experts = fields["n_expert"].fill_null(0) > 0 if "n_expert" in fields else False
    added = []
    for convention in wanted:
        value, estimate = (
            series(convention.value(terms, a, Column(fields["length"])), counts.height)
            for terms in (components, {})
        )
        is_measured = (value != estimate) & ~(pl.lit(convention.unit == FLOPS) & has_experts)
        added.append(
            counts.select(*KEYS, "method")
            .with_columns(component=pl.lit("model"), quantity=pl.lit(convention.name), value=value)
            .filter(is_measured)
        )
    return pl.concat([measured, *added], how="diagonal")
