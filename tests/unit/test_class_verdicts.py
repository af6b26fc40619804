"""The third witness: which values of `transformers` classes must agree, and what is said if not."""

import polars as pl
import pytest

from modelbudget.catalogue.accelerators import accelerators
from modelbudget.common.errors import InputError
from modelbudget.common.paths import CONFIGS
from modelbudget.compare.class_verdict import judged, values_of_classes
from modelbudget.compare.comparison import compare, verdict
from modelbudget.measurement.reference.cached_classes import (
    begin_new,
    count_all,
    needed,
    reference_table,
)
from modelbudget.predict.largest_that_fits import cells, fit_table
from modelbudget.predict.predict import predict
from modelbudget.predict.predicted_grids import predicted
from modelbudget.report.verdict import line, of_sweep
from modelbudget.sweeps.class_config import classes_of
from modelbudget.sweeps.points_table import points_table, rows
from modelbudget.sweeps.read import read

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
    points = points_table(expanded.points)
    predicted = predict(points, expanded.sweep.measure.quantities)
    return compare(points, predicted, as_measured(predicted), [], classes=values)


@pytest.fixture
def two(sweep, tmp_path):
    """A sweep of one model with our implementation and that of its class, and its traces."""
    expanded = sweep(SWEEP)
    measure = expanded.sweep.measure
    wanted = needed(classes_of(points_table(expanded.points)), measure)
    failed = begin_new(wanted.runs, [measure], 1, tmp_path)()
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
    counts, has_failed = count_all(classes_of(points_table(expanded.points)), 1, tmp_path)
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
    counts, _ = count_all(classes_of(points_table(expanded.points)), 1, tmp_path)
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


UNCOMPARED = """
fixed: {n_layer: 1, d_model: 32, n_head: 2, d_head: 16, d_ff: 48, n_vocab: 64, length: 16,
        dtype: bfloat16, attention_kernel: flash, foreach: true}
points:
  - {base: gpt-2-124m, label: own, activation: relu2}
  - {base: gpt-2-124m, label: same, implementation: transformers}
  - {base: gpt-2-124m, label: other, activation: relu2, implementation: transformers}
measure: {device: meta, quantities: [parameters, activation_bytes, peak_inference_bytes]}
"""


def test_a_sweep_shows_no_number_of_ours_under_the_name_of_a_class_that_was_not_compared(sweep):
    table = compared(sweep(UNCOMPARED), None)
    numbers = ["predicted", "measured", "difference", "agrees", "prediction"]
    hidden = table.drop_nulls("not_compared")
    reasons = hidden.select("label", "quantity", "not_compared").rows()
    prefill = "no formula of peak_inference_bytes was compared with GPT2LMHeadModel"
    assert sorted(reasons) == [
        ("other", "activation_bytes", "activation_function = 'relu2': not compared with "
         "GPT2LMHeadModel"),
        ("other", "peak_inference_bytes", prefill),
        ("same", "peak_inference_bytes", prefill),
    ]  # fmt: skip
    assert hidden.select(numbers).null_count().row(0) == (3,) * len(numbers)
    shown = table.filter(pl.col("not_compared").is_null())
    by_label = {label: set(of["quantity"]) for (label,), of in shown.group_by("label")}
    assert by_label["own"] == {"parameters", "activation_bytes", "peak_inference_bytes"}
    assert by_label["same"] == {"parameters", "activation_bytes"}
    assert by_label["other"] == {"parameters"}
    found = of_sweep("six", "Six", table)
    assert found.whole
    assert line([found]).endswith("; NOT COMPARED with the class of transformers: 3 in six")


def test_what_a_class_has_is_shown_where_nothing_was_compared(sweep):
    """The class's trace leads there, and judges nothing of ours but the parameters."""
    expanded = sweep(UNCOMPARED)
    phases = {"prefill": 700, "decode": 500}
    rows = [
        {"point": point["point"], "component": phase, "reference": value}
        for point in points_table(expanded.points).to_dicts()
        if point["label"] == "other"
        for phase, value in phases.items()
    ]
    traces = pl.DataFrame(rows).with_columns(
        built_from=pl.lit("our fields"), quantity=pl.lit("peak_inference_bytes"),
        attention=pl.lit("sdpa"), refusal=pl.lit(None, pl.String), method=pl.lit("meta"),
        replaced=pl.lit(None, pl.String), **{"class": pl.lit("GPT2LMHeadModel")},
    )  # fmt: skip
    table = compared(expanded, traces).filter(label="other", quantity="peak_inference_bytes")
    assert dict(table.select("component", "reference").iter_rows()) == phases
    assert table.select("predicted", "measured", "reference_agrees").null_count().row(0) == (2,) * 3


def test_what_fits_is_not_solved_under_the_name_of_a_class_that_was_not_compared(sweep):
    points = rows(points_table(sweep(UNCOMPARED).points))
    devices = accelerators(CONFIGS / "accelerators.yaml")[:1]
    table = fit_table(list(cells(points, ["peak_inference_bytes"], ["batch"], devices)), {}, {})
    values = dict(table.select("label", "value").iter_rows())
    assert values.pop("own") > 0
    assert values == {"same": None, "other": None}
    prefill = "no formula of peak_inference_bytes was compared with GPT2LMHeadModel"
    assert dict(table.select("label", "failure").iter_rows())["same"] == prefill


GRID = """
title: A test
question: Why?
base: gpt-2-124m
grid: {n_layer: [2, 4], implementation: [modelbudget, transformers], batch: BATCH}
measure: {device: none, quantities: [parameters, QUANTITY]}
"""


@pytest.mark.parametrize(
    ("quantity", "batch", "why"),
    [
        ("activation_bytes", "[1, 2]", None),
        ("peak_inference_bytes", "[1, 2]", "no formula of peak_inference_bytes was compared with "
         "GPT2LMHeadModel; allowed: with a device, or implementation: modelbudget"),
        ("activation_bytes", "{from: 1, to: 1500, steps: 1500}", "more than 2,000 points to hold"),
    ],
)  # fmt: skip
def test_a_grid_that_is_only_predicted_names_a_class_where_it_was_compared(
    tmp_path, catalogue, quantity, batch, why
):
    path = tmp_path / "grid.yaml"
    path.write_text(GRID.replace("QUANTITY", quantity).replace("BATCH", batch))
    if why is None:
        of_grid = predicted(read(path, catalogue))
        assert of_grid.combinations == 8
        assert sum(1 for grid in of_grid.grids for _ in grid.bounds()) == 2  # of implementations
        return
    with pytest.raises(InputError) as error:
        predicted(read(path, catalogue))
    assert why in str(error.value)
