"""Counted operations beside 6·N·D, model by model."""

from types import SimpleNamespace

import polars as pl

from modelbudget.architecture.run_config import tokens
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
    """One row for each point, where both passes of a step were counted and points are few."""
    counted = sweep.comparison.filter(
        pl.col("quantity").is_in(STEP), pl.col("measured").is_not_null()
    )
    if counted["quantity"].n_unique() < len(STEP) or sweep.points.height > MOST_MODELS:
        return None
    rows, errors = [], []
    for point in sweep.points.iter_rows(named=True):
        # Summed in Python: a step may hold more operations than 64 bits.
        operations = sum(counted.filter(pl.col("point") == point["point"])["measured"].to_list())
        whole, bare = _estimates(point)
        errors += [error(whole, operations)]
        rows.append(
            {
                "model": point["label"],
                "tokens": tokens(SimpleNamespace(**point)),
                "counted": operations,
                "6·N·D": whole,
                "error": signed_percent(errors[-1]),
                "error without embeddings": signed_percent(error(bare, operations)),
                "10¹² tokens": _of_a_trillion(point, operations),
            }
        )
    numbers = tuple(name for name in rows[0] if name != "model")
    return {
        "summary": "6·N·D against the count: "
        f"{signed_percent(min(errors))} to {signed_percent(max(errors))}",
        "table": tables.table(rows, "Operations of one step, forward and backward", numbers),
    }


def _estimates(point: dict) -> tuple[int, int]:
    """6·N·D with all parameters, and without embeddings; with experts, N is what a token uses."""
    family, of_point = families()[point["family"]], SimpleNamespace(**point)
    parameters = getattr(family, "active_parameters", family.parameters)(of_point)
    n_token = tokens(of_point)
    return six_n_d(total(parameters), n_token), six_n_d(without_embeddings(parameters), n_token)


def _of_a_trillion(point: dict, operations: int) -> str:
    """What training on 10¹² tokens takes, in such steps."""
    return scientific(over(operations, tokens(SimpleNamespace(**point)), TRILLION))
