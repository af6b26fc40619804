"""The table of 6·N·D has the points whose whole training step was measured, and no others."""

import polars as pl
import pytest
from helpers.results import compared

from modelbudget.report.page_results import SweepResult
from modelbudget.report.six_nd import STEP, six_n_d_section

SWEEP = """title: Two
question: What is measured?
points: [{base: gpt-2-124m, n_layer: 1, label: measured}, {base: gpt-2-124m, label: failed}]
measure: {quantities: [parameters, flops_forward, flops_backward]}
"""


def section(sweep: SweepResult, lost: tuple[str, ...], points: int = 1) -> dict | None:
    """The section where some passes of the last points were not measured."""
    failed = sweep.points["point"].to_list()[-points:]
    is_lost = pl.col("point").is_in(failed) & pl.col("quantity").is_in(lost)
    measured = pl.when(~is_lost).then("measured").alias("measured")
    return six_n_d_section(sweep._replace(comparison=sweep.comparison.with_columns(measured)))


@pytest.mark.parametrize("lost", [STEP, STEP[:1], STEP[1:]])
def test_points_that_were_not_measured_cost_only_their_rows(tmp_path, catalogue, lost):
    path = tmp_path / "two.yaml"
    path.write_text(SWEEP)
    _, points, comparison = compared(path, catalogue)
    sweep = SweepResult({"name": "two"}, points, comparison, {})
    alone = sweep._replace(points=points.head(1))
    assert section(sweep, lost) == section(alone, ()) != section(sweep, ())
    assert section(sweep, lost, points=2) is None


def test_points_without_a_formula_have_no_row(tmp_path, catalogue):
    """Their N is not known: it was 0 and the error −100 %."""
    path = tmp_path / "two.yaml"
    path.write_text(SWEEP)
    _, points, comparison = compared(path, catalogue)
    points = points.with_columns(family=pl.lit("module"))
    assert six_n_d_section(SweepResult({"name": "two"}, points, comparison, {})) is None
