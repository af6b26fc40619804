"""The third witness: which values of `transformers` classes must agree, and what is said if not."""

import polars as pl
import pytest

from modelbudget.compare.classes import judged, values_of_classes
from modelbudget.compare.comparison import compare, verdict
from modelbudget.measurement.reference.cached import count_all, needed, reference_table, trace_new
from modelbudget.predict.predict import predict
from modelbudget.report.verdict import line, of_sweep
from modelbudget.sweeps.class_config import classes_of
from modelbudget.sweeps.points_table import points_table

SWEEP = """
fixed: {n_layer: 1, d_model: 32, n_head: 2, d_head: 16, d_ff: 48, n_vocab: 64, length: 16,
        dtype: bfloat16, attention_kernel: flash, foreach: true}
points:
  - {base: gpt-2-124m, label: own}
  - {base: gpt-2-124m, label: named, implementation: transformers}
measure: {device: meta, quantities: [parameters, activation_bytes, peak_training_bytes]}
"""
PHASES = 4
DEEPSEEK = """
base: deepseek-v3
points: [{n_layer: 5}]
measure: {quantities: [parameters]}
"""
BIASES = 2 * 256
"""Of the routers of two layers, which the class of DeepSeek V3 holds as buffers."""


def as_measured(predicted: pl.DataFrame) -> pl.DataFrame:
    """Predictions as the measurements of modules that agree with them."""
    return predicted.drop_nulls("component").select(
        "architecture", "run", "component", "quantity", value="predicted",
        method=pl.lit("meta"), shared_with=pl.lit(None, pl.String),
    )  # fmt: skip


def compared(expanded, values: pl.DataFrame | None) -> pl.DataFrame:
    points = points_table(expanded)
    predicted = predict(points, expanded.sweep.measure.quantities)
    return compare(points, predicted, as_measured(predicted), [], classes=values)


@pytest.fixture
def two(sweep, tmp_path):
    """A sweep of one model with our implementation and that of its class, and its traces."""
    expanded = sweep(SWEEP)
    measure = expanded.sweep.measure
    wanted = needed(classes_of(points_table(expanded)), measure)
    failed = trace_new(wanted.runs, [measure], 1, tmp_path)
    return expanded, reference_table(wanted, failed, tmp_path)


def test_a_class_judges_parameters_and_what_is_said_under_its_name(two):
    table = compared(*two)
    by_label = judged(table).group_by("label", maintain_order=True).agg("quantity", "agrees")
    own, named = by_label.sort("label", descending=True).iter_rows(named=True)
    assert (own["quantity"], own["agrees"]) == (["parameters"], [True])
    assert len(named["agrees"]) == 2 + PHASES
    assert all(named["agrees"])
    # Our own module holds less than the class, which is no disagreement.
    memory = table.filter(label="own", quantity="peak_training_bytes")
    assert (memory["predicted"] < memory["reference"]).any()
    assert memory["reference_agrees"].is_null().all()
    assert (verdict(table)["of_class"], verdict(table)["of_class_agreed"]) == (3 + PHASES,) * 2


def test_another_value_of_a_class_is_a_disagreement(two):
    expanded, traces = two
    is_peak = pl.col("component") == "second.optimizer"
    changed = traces.with_columns(reference=pl.col("reference") + 8 * is_peak.cast(pl.Int64))
    table = compared(expanded, changed)
    (wrong,) = judged(table).filter(~pl.col("agrees")).iter_rows(named=True)
    assert (wrong["label"], wrong["component"]) == ("named", "second.optimizer")
    assert wrong["reference"] == wrong["predicted"] + 8
    assert table["agrees"].all()
    found = of_sweep("sweep", "A sweep", table)
    assert not found.right
    assert f"{found.compared + 2 + PHASES} of {found.compared + 3 + PHASES} compar" in line([found])
    assert line([found]).endswith("NOT WHAT THE CLASS OF transformers HAS in sweep")


@pytest.mark.parametrize("other", [0, 1, -1, BIASES])
def test_a_known_difference_of_another_number_disagrees(sweep, tmp_path, other):
    expanded = sweep(DEEPSEEK)
    counts, has_failed = count_all(classes_of(points_table(expanded)), 1, tmp_path)
    assert not has_failed
    counts = counts.with_columns(parameters=pl.col("parameters") + other)
    (row,) = judged(compared(expanded, values_of_classes(None, counts))).iter_rows(named=True)
    assert row["reference"] == row["predicted"] - BIASES + other
    assert row["agrees"] == (other == 0)
    reason = "-512: the router's bias is a buffer there, not a parameter"
    assert row["known_difference"] == (None if other else reason)


def test_a_class_is_not_counted_for_a_share_of_a_model(sweep, tmp_path):
    expanded = sweep(
        "points: [{base: gpt-2-124m, n_layer: 2, n_vocab: 64, tensor_parallel: 2}]\n"
        "measure: {quantities: [parameters]}\n"
    )
    counts, _ = count_all(classes_of(points_table(expanded)), 1, tmp_path)
    assert counts["refusal"].item().startswith("tensor_parallel = 2: GPT2LMHeadModel is")
    assert judged(compared(expanded, values_of_classes(None, counts))).is_empty()


def test_a_count_stands_in_for_parameters_that_were_not_traced(two):
    expanded, traces = two
    refused = traces.filter(pl.col("quantity") != "parameters")
    counts = traces.filter(quantity="parameters").group_by("point", "built_from", "class").agg(
        parameters=pl.col("reference").sum(), refusal=pl.lit(None, pl.String)
    )  # fmt: skip
    both = compared(expanded, values_of_classes(refused, counts))
    columns = ["point", "quantity", "component", "reference", "agrees"]
    assert judged(both).select(columns).equals(judged(compared(*two)).select(columns))
