"""Measured FLOPs of a training step against the estimate 6·N·D, model by model."""

from fractions import Fraction
from types import SimpleNamespace

import polars as pl

from modelbudget.architecture.run_values import tokens
from modelbudget.families import families
from modelbudget.predict.counts_by_convention import BY_NAME, relative_error
from modelbudget.report import tables
from modelbudget.report.charts.format import count, scientific, signed_percent
from modelbudget.report.charts.grouped_values import evenly_spaced
from modelbudget.report.page_results import SweepResult

STEP = ("flops_forward", "flops_backward")
TRILLION = 10**12
MOST_MODELS, MOST_ROWS = 24, 8
"""Points of a sweep that has a table, and its rows: evenly spaced points."""
ERRORS = {"6n": "error", "6n_without_embeddings": "error without embeddings"}
"""Conventions of the table, and the heads of their errors."""


def six_n_d_section(sweep: SweepResult) -> dict | None:
    """Return a table with one row for each point whose whole training step was measured.

    N is a count by formula: points without one have no row. None if there is no such point, or if
    there are too many points.
    """
    counted = sweep.comparison.filter(
        pl.col("quantity").is_in(STEP), pl.col("measured").is_not_null()
    )
    passes = counted.group_by("point").agg(pl.col("quantity").n_unique())
    whole = passes.filter(pl.col("quantity") == len(STEP))["point"]
    has_formula = pl.col("family").is_in([n for n, one in families().items() if one.has_formula])
    points = sweep.points.filter(pl.col("point").is_in(whole.implode()), has_formula)
    if points.is_empty() or sweep.points.height > MOST_MODELS:
        return None
    rows, errors = [], []
    for point in points.iter_rows(named=True):
        # Summed in Python: the FLOPs of a step may exceed 64 bits.
        flops = sum(counted.filter(pl.col("point") == point["point"])["measured"].to_list())
        estimates = _estimates(point)
        errors += [relative_error(estimates["6n"], flops)]
        rows.append(
            {
                "model": point["label"],
                "tokens": tokens(SimpleNamespace(**point)),
                "measured FLOPs": flops,
                "6·N·D": estimates["6n"],
                **{
                    head: signed_percent(relative_error(estimates[name], flops))
                    for name, head in ERRORS.items()
                },
                "FLOPs for 10¹² tokens": _for_a_trillion_tokens(point, flops),
            }
        )
    numbers = tuple(name for name in rows[0] if name != "model")
    return {
        "summary": "6·N·D against measured FLOPs: "
        f"{signed_percent(min(errors))} to {signed_percent(max(errors))}",
        "shown": None if len(rows) <= MOST_ROWS else f"{MOST_ROWS} of {count(len(rows))} models",
        "table": tables.table(
            evenly_spaced(rows, MOST_ROWS),
            "FLOPs of a training step, forward and backward",
            numbers,
        ),
    }


def _estimates(point: dict) -> dict[str, int]:
    """Return the FLOPs of the step by convention, from the parameters that a token uses.

    Python integers throughout: 10¹² tokens of PaLM 540B exceed 64 bits.
    """
    family, of_point = families()[point["family"]], SimpleNamespace(**point)
    parameters = getattr(family, "active_parameters", family.parameters)(of_point)
    return {
        name: BY_NAME[name].value(parameters, of_point, of_point.length) * tokens(of_point)
        for name in ERRORS
    }


def _for_a_trillion_tokens(point: dict, flops: int) -> str:
    """Return the FLOPs of training on 10¹² tokens in steps like this one."""
    return scientific(round(Fraction(flops * TRILLION, tokens(SimpleNamespace(**point)))))
