"""Measured FLOPs of a training step against the estimate 6·N·D, model by model."""

from types import SimpleNamespace

import polars as pl

from modelbudget.architecture.run_values import tokens
from modelbudget.architecture.terms import total
from modelbudget.families import families
from modelbudget.predict.six_nd import error, over, six_n_d, without_embeddings
from modelbudget.report import tables
from modelbudget.report.charts.format import scientific, signed_percent
from modelbudget.report.results import SweepResult

STEP = ("flops_forward", "flops_backward")
TRILLION = 10**12
MOST_MODELS = 24


def six_n_d_section(sweep: SweepResult) -> dict | None:
    """Return a table with one row for each point.

    None if a pass of the training step was not measured, or if there are too many points.
    """
    counted = sweep.comparison.filter(
        pl.col("quantity").is_in(STEP), pl.col("measured").is_not_null()
    )
    if counted["quantity"].n_unique() < len(STEP) or sweep.points.height > MOST_MODELS:
        return None
    rows, errors = [], []
    for point in sweep.points.iter_rows(named=True):
        # Summed in Python: the FLOPs of a step may exceed 64 bits.
        flops = sum(counted.filter(pl.col("point") == point["point"])["measured"].to_list())
        whole, bare = _estimates(point)
        errors += [error(whole, flops)]
        rows.append(
            {
                "model": point["label"],
                "tokens": tokens(SimpleNamespace(**point)),
                "measured FLOPs": flops,
                "6·N·D": whole,
                "error": signed_percent(errors[-1]),
                "error without embeddings": signed_percent(error(bare, flops)),
                "FLOPs for 10¹² tokens": _for_a_trillion_tokens(point, flops),
            }
        )
    numbers = tuple(name for name in rows[0] if name != "model")
    return {
        "summary": "6·N·D against measured FLOPs: "
        f"{signed_percent(min(errors))} to {signed_percent(max(errors))}",
        "table": tables.table(rows, "FLOPs of a training step, forward and backward", numbers),
    }


def _estimates(point: dict) -> tuple[int, int]:
    """Return 6·N·D with all parameters, and without embeddings; N is the active parameters."""
    family, of_point = families()[point["family"]], SimpleNamespace(**point)
    parameters = getattr(family, "active_parameters", family.parameters)(of_point)
    n_token = tokens(of_point)
    return six_n_d(total(parameters), n_token), six_n_d(without_embeddings(parameters), n_token)


def _for_a_trillion_tokens(point: dict, flops: int) -> str:
    """Return the FLOPs of training on 10¹² tokens in steps like this one."""
    return scientific(over(flops, tokens(SimpleNamespace(**point)), TRILLION))
