"""Traces of classes for the points of a sweep: cached, refused, failed, and compared."""

import polars as pl
import pytest

from modelbudget.compare.class_table import implementations, peaks
from modelbudget.compare.comparison import compare
from modelbudget.measurement.measured_table import failures, measured_table
from modelbudget.measurement.process.measure_in_processes import measure_all
from modelbudget.measurement.reference import cached_classes, class_trace
from modelbudget.predict.predict import predict
from modelbudget.report.implementation_tables import by_quantity
from modelbudget.sweeps.class_config import classes_of
from modelbudget.sweeps.points_table import points_table
from modelbudget.workflow import targets

SWEEP = """
fixed: {n_layer: 2, d_model: 64, n_head: 4, d_head: 16, d_ff: 96, n_vocab: 128, length: 32,
  dtype: float32, foreach: false, attention_kernel: math}
points:
  - {base: llama-3-8b, n_kv_head: 2, label: llama}
  - {base: gpt-2-124m, label: gpt, recompute: selective}
  - {base: gpt-2-124m, label: gated, gated: true}
  - {base: palm-8b, label: palm}
measure:
  device: meta
  quantities: [parameter_bytes, activation_bytes, peak_training_bytes, unsupported_ops]
"""


@pytest.fixture
def traced(sweep, tmp_path):
    expanded = sweep(SWEEP)
    points, measure = points_table(expanded.points), expanded.sweep.measure
    needed = cached_classes.needed(classes_of(points), measure)
    failed = cached_classes.begin_new(needed.runs, [measure], 1, tmp_path)()
    assert not failed
    return points, measure, needed, cached_classes.reference_table(needed, failed, tmp_path)


@pytest.fixture
def joined(traced, sweep):
    points, measure, _, traces = traced
    found = measure_all([(p.architecture, p.run) for p in sweep(SWEEP).points], measure, 1)
    comparison = compare(
        points,
        predict(points, measure.quantities),
        measured_table(found, measure.quantities),
        [],
        failures(found),
        traces,
    )
    return comparison, implementations(points, comparison, traces)


def test_a_second_run_traces_nothing(traced, tmp_path, monkeypatch):
    _, measure, needed, table = traced
    monkeypatch.setattr(class_trace, "begin_traces", None)
    assert cached_classes.begin_new(needed.runs, [measure], 1, tmp_path)() == {}
    assert cached_classes.reference_table(needed, {}, tmp_path).equals(table)


def test_reasons_of_refusals(traced):
    table = traced[-1].filter(pl.col("refusal").is_not_null())
    reasons = dict(table.select("quantity", "refusal").rows())
    assert "cannot be this architecture: gated = true" in reasons["parameter_bytes"]
    selective = table.filter(pl.col("refusal").str.contains("selective"))
    assert set(selective["quantity"]) == {"activation_bytes", "peak_training_bytes"}
    assert "unsupported_ops" not in table["quantity"]


def test_a_process_that_dies_is_a_failure_that_is_tried_again(traced, tmp_path, monkeypatch, sweep):
    import os

    points, measure, _, table = traced
    monkeypatch.setattr(class_trace, "_trace", lambda *_: os._exit(3))
    needed = cached_classes.needed(classes_of(points), measure)
    folder = tmp_path / "empty"
    failed = cached_classes.begin_new(needed.runs, [measure], 1, folder)()
    assert failed.keys() == needed.runs.keys()
    found = cached_classes.reference_table(needed, failed, folder)
    assert "its process ended with exit status 3" in set(found["refusal"])
    monkeypatch.undo()
    assert cached_classes.begin_new(needed.runs, [measure], 1, folder)() == {}
    assert cached_classes.reference_table(needed, {}, folder).equals(table)


def test_peaks_join_by_phase_and_components_where_they_correspond(joined):
    comparison, _ = joined
    llama = comparison.filter(label="llama", quantity="peak_training_bytes")
    assert llama["reference"].null_count() == 0
    assert set(llama["attention"]) == {"sdpa"}
    saved = comparison.filter(label="llama", quantity="activation_bytes")
    by_component = dict(saved.select("component", "reference").rows())
    assert by_component["layer.attention.output"] == 2 * 32 * 64 * 4
    # The matrices of gate and up have the same input, which the first one saves.
    assert by_component["layer.norm.attention"] > 0
    assert by_component["layer.attention.core"] is None
    assert (
        comparison.filter(label="palm")["reference"].null_count()
        == comparison.filter(label="palm").height
    )


def test_totals_are_those_of_all_parts_of_the_class(traced, joined):
    points, _, _, traces = traced
    table = joined[1]
    row = table.filter(label="llama", quantity="activation_bytes").row(0, named=True)
    of_llama = traces.join(points.filter(label="llama"), on="point", how="semi")
    assert row["reference"] == of_llama.filter(quantity="activation_bytes")["reference"].sum()
    assert row["formula"] == row["module"] < row["reference"]
    assert row["ratio"] == row["reference"] / row["module"]
    parameters = table.filter(label="llama", quantity="parameter_bytes").row(0, named=True)
    assert parameters["ratio"] == 1


def test_each_quantity_has_the_number_of_models_of_each_implementation(joined):
    found = {quantity: numbers for quantity, *numbers in by_quantity(joined[1]).rows()}
    assert found["activation_bytes"][:3] == [3, 3, 1]
    assert found["parameter_bytes"][:3] == [3, 3, 2]


def test_of_a_peak_the_largest_phase_of_each_implementation_counts(joined):
    table = joined[1].filter(label="llama", quantity="peak_training_bytes")
    (row,) = peaks(table).iter_rows(named=True)
    assert table.height == 4
    for name in ("formula", "module", "reference"):
        assert row[name] == table[name].max()
    assert row["ratio"] == row["reference"] / row["module"]
    assert table.filter(phase=row["phase"])["reference"].item() == row["reference"]


def test_longer_sequences_are_not_tried_after_too_many_operations(monkeypatch):
    from modelbudget.architecture.run_config import RunConfig

    monkeypatch.setattr(class_trace, "LIMIT", 2_000)
    config = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}
    tried = []
    trace = class_trace._trace
    monkeypatch.setattr(
        class_trace, "_trace", lambda one, n: tried.append(one.quantities) or trace(one, n)
    )
    quantities = frozenset({"cache_bytes", "parameters"})
    lengths = [RunConfig(length=length) for length in (8, 400, 800)]
    runs = [cached_classes.ClassRun("MambaForCausalLM", config, run, quantities) for run in lengths]
    found = class_trace._trace_runs(runs, 0)
    assert tried == [quantities, quantities, {"parameters"}]
    assert "cache_bytes" in found[0].values
    for one in found[1:]:
        assert "more than 2,000 operations in one phase" in one.missing["cache_bytes"]
        assert sum(one.values["parameters"].values()) > 0


SIZES = """
fixed: {d_model: 64, n_head: 4, d_head: 16, d_ff: 96, n_vocab: 128}
points:
  - {base: gpt-2-124m, n_layer: 2, length: 32}
  - {base: gpt-2-124m, n_layer: 3, length: 64}
  - {base: gpt-2-124m, n_layer: 4, length: 64}
  - {base: gpt-2-124m, n_layer: 2, length: 32, recompute: full}
  - {base: gpt-2-124m, n_layer: 2, length: 32, implementation: transformers}
  - {base: gpt-2-124m, n_layer: 2, length: 16, implementation: transformers}
  - {base: llama-3-8b, n_kv_head: 4, n_layer: 2, length: 16}
  - {base: llama-3-8b, n_kv_head: 1, n_layer: 2, length: 32}
measure: {device: meta, quantities: [activation_bytes]}
"""


def test_of_models_that_differ_only_in_sizes_one_is_traced_unless_all_are_wanted(sweep):
    """That with most tokens; and each that is predicted with the settings of its class, in all
    points of the same model and run.
    """

    def traced(text: str) -> list[str]:
        expanded = sweep(text)
        classes = classes_of(points_table(expanded.points))
        return sorted(cached_classes.needed(classes, expanded.sweep.measure).keys["point"])

    assert traced(SIZES) == [f"{n:06}" for n in (1, 2, 4, 5, 6, 8)]
    assert traced(SIZES.replace("meta,", "meta, classes: all,")) == [f"{n:06}" for n in range(1, 9)]
    of_none = sweep(SIZES.replace("meta,", "meta, classes: none,"))
    assert not targets.writing({"none": of_none}, "reference_traces")
