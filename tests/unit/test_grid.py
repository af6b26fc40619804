"""Predictions alone: the same numbers and the same refusals as point by point, without points."""

import re

import polars as pl
import pytest
import vl_convert
import yaml
from helpers.tiers import examples
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import modelbudget as mb
from modelbudget.architecture.record import MAX_COUNT
from modelbudget.architecture.terms import total
from modelbudget.common.errors import InputError
from modelbudget.components.groups import group_of
from modelbudget.predict import grid_rows
from modelbudget.predict.axis_summary import AxisSummary
from modelbudget.predict.formula import formula
from modelbudget.predict.predicted_grids import frames, groups_of, predicted
from modelbudget.report.charts.predicted_ranges import predicted_charts
from modelbudget.sweeps import sweep_mistakes
from modelbudget.sweeps.expand import expand, expanded
from modelbudget.sweeps.read import read
from modelbudget.sweeps.sweep_file import MAX_POINTS

AXES = {
    "n_vocab": [1, 7, 50_257],
    "d_model": [8, 12, 16, 64],
    "n_layer": [1, 2, 3, 7],
    "n_head": [1, 2, 3, 4, 8],
    "n_kv_head": [1, 2, 3],
    "d_head": [4, 7, 16, 264],
    "d_ff": [1, 5, 64],
    "n_ctx": [16, 1024],
    "vocab_multiple": [1, 8],
    "d_rotary": [0, 2, 6],
    "tied": [True, False],
    "gated": [True, False],
    "sinks": [False, True],
    "parallel": [False, True],
    "norm": ["layernorm", "rmsnorm"],
    "norm_bias": [False, True],
    "norm_placement": ["pre", "both"],
    "position": ["rotary", "learned", "none", "alibi"],
    "qk_norm": ["none", "joint"],
    "n_expert_per_token": [1, 2, 9],
    "mlps": ["mlp", "mlp moe"],
    "batch": [1, 3, 2**40],
    "length": [1, 17, 2**20],
    "dtype": ["float32", "bfloat16"],
    "master_weights": [False, True],
    "attention_kernel": ["math", "flash"],
    "backend": ["gpu", "cpu"],
    "recompute": ["none", "full"],
}
DERIVED = {
    "n_head": ["d_model / 4", "max(1, d_model // 16)"],
    "d_ff": ["4 * d_model", "d_model * n_layer / 3", "d_model / (n_layer - 1)"],
    "length": ["n_ctx", "2 * n_ctx / n_head"],
}
CONSTRAINTS = [
    "d_model % n_head = 0",
    "n_layer > 1",
    "d_ff >= d_model",
    "d_model / (n_layer - 2) > 0",
]
BASES = ["gpt-2-124m", "llama-3-8b", "palm-8b", "mixtral-8x7b", "bloom-560m", "decoder"]
QUANTITIES = [
    "parameters", "parameter_bytes", "gradient_bytes", "activation_bytes", "flops_backward",
    "peak_training_bytes", "cache_bytes",
]  # fmt: skip


@st.composite
def sweeps(draw) -> dict:
    axes = draw(st.lists(st.sampled_from(list(AXES)), min_size=1, max_size=5, unique=True))
    axis = {n: draw(st.lists(st.sampled_from(AXES[n]), min_size=1, unique=True)) for n in axes}
    bases = draw(st.lists(st.sampled_from(BASES), min_size=1, max_size=2, unique=True))
    derive = {
        name: draw(st.sampled_from(texts))
        for name, texts in DERIVED.items()
        if name not in axes and draw(st.booleans())
    }
    sweep = (
        {"base": bases[0], "grid": axis} if len(bases) == 1 else {"grid": {"base": bases} | axis}
    )
    quantities = draw(st.lists(st.sampled_from(QUANTITIES), min_size=1, max_size=3, unique=True))
    return sweep | {
        "derive": derive,
        "constraints": draw(st.lists(st.sampled_from(CONSTRAINTS), max_size=2, unique=True)),
        "measure": {"quantities": quantities},
    }


def written(folder, sweep: dict, device: str):
    path = folder / f"{device}.yaml"
    measure = sweep["measure"] | {"device": device}
    path.write_text(str({"title": "t", "question": "q"} | sweep | {"measure": measure}))
    return path


def outcome(function, checked) -> tuple:
    """What it makes, or the mistakes, without the file."""
    try:
        return function(checked), []
    except InputError as error:
        return None, [line.partition(": ")[2] for line in error.mistakes]


def max_of_phases(terms) -> int:
    return max(term.total for term in terms.values())


def in_integers(point, quantities: list[str]) -> dict:
    """A row of predictions as Python's integers give it, point by point."""
    a, r = point.architecture, point.run
    row = dict(point.axes)
    for quantity in quantities:
        terms, holds = formula(type(a), quantity, a, r)
        whole = max_of_phases if quantity.startswith("peak_") else total
        row[quantity] = whole(terms) if holds else None
        if quantity == "parameters":
            for component, term in terms.items():
                group = f"parameters.{group_of(component)}"
                row[group] = row.get(group, 0) + term.total
    return row


def comparable(rows) -> list[str]:
    """Rows in some order, without groups that hold nothing."""
    return sorted(
        str(sorted((k, v) for k, v in row.items() if v or not k.startswith("parameters.")))
        for row in rows
    )


NONE_LEFT = {"base": "gpt-2-124m", "grid": {"n_vocab": [1]}, "derive": {}}
NONE_LEFT |= {"constraints": ["n_layer > 12"], "measure": {"quantities": ["parameters"]}}


@example(NONE_LEFT, 4)  # one point, and not `1 points`
@given(sweeps(), st.sampled_from([4, 64, 2**17]))
@settings(max_examples=examples(100), suppress_health_check=list(HealthCheck))
def test_the_same_as_point_by_point(tmp_path, catalogue, monkeypatch, sweep, chunk):
    """Over random grids, legal and not, whole or in chunks of few rows."""
    monkeypatch.setattr(grid_rows, "ROWS", chunk)
    # Closed formulas alone: programs take longer (the next test).
    monkeypatch.setattr("modelbudget.predict.by_program.terms_by_program", lambda *_: None)
    monkeypatch.setattr("modelbudget.predict.by_regime.USES", {})
    for most in ("MAX_SHOWN", "MAX_MISTAKES"):
        monkeypatch.setattr(sweep_mistakes, most, 10**9)
    quantities = sweep["measure"]["quantities"]
    points, refused = outcome(expanded, read(written(tmp_path, sweep, "meta"), catalogue))
    whole, lines = outcome(predicted, read(written(tmp_path, sweep, "none"), catalogue))
    uncovered = [line.split(": ")[1] for line in lines if "no formula covers" in line]
    if points:
        rows = [in_integers(point, quantities) for point in points.points]
        assert uncovered == [q for q in quantities if all(row[q] is None for row in rows)]
    if whole:
        found = pl.concat(frames(whole, 2)).iter_rows(named=True)
        assert comparable(found) == comparable(rows)
    elif not points:
        assert_same_refusals(refused, [line for line in lines if "no formula" not in line])


def test_rows_without_a_closed_formula_are_those_of_programs(tmp_path, catalogue):
    """Rows with and without a formula in one grid, and rows that a constraint drops."""
    sweep = {
        "base": "gpt-2-124m",
        "grid": {
            "position": ["rotary", "alibi"],
            "n_layer": [*range(1, 9)],
            "d_model": [64, 96],
            "d_head": [8, 16],
        },
        "derive": {"n_head": "d_model / d_head", "n_kv_head": "n_head"},
        "constraints": ["n_layer != 3"],
        "measure": {"quantities": ["parameters", "peak_training_bytes"]},
    }
    quantities = sweep["measure"]["quantities"]
    points = expanded(read(written(tmp_path, sweep, "meta"), catalogue)).points
    whole = predicted(read(written(tmp_path, sweep, "none"), catalogue))
    rows = [in_integers(point, quantities) for point in points]
    assert [row["peak_training_bytes"] is None for row in rows] == [False] * 56
    found = pl.concat(frames(whole, 2)).iter_rows(named=True)
    assert comparable(found) == comparable(rows)


def test_widths_of_experts_next_to_a_mixer_without_a_formula(tmp_path, catalogue):
    """Bounds of a condition of the experts, times the 0 of the mixer: the sweep ended there."""
    sweep = {
        "base": "qwen3-next-80b-a3b",
        "fixed": {"n_layer": 4},
        "grid": {"d_model": [64, 96]},
        "measure": {"quantities": ["peak_training_bytes"]},
    }
    rows = pl.concat(frames(predicted(read(written(tmp_path, sweep, "none"), catalogue)), 1))
    points = expanded(read(written(tmp_path, sweep, "meta"), catalogue)).points
    expected = [in_integers(point, ["peak_training_bytes"]) for point in points]
    assert comparable(rows.iter_rows(named=True)) == comparable(expected)


def assert_same_refusals(refused: list[str], lines: list[str]) -> None:
    """Line by line. What leaves 64 bits has a line for each point there, and here one for all of
    a base, where nothing else is wrong with it.
    """
    past = [line for line in refused if PAST in line]
    others = [line for line in refused if line not in past]
    here = [line for line in lines if PAST in line]
    assert [line.replace("predict", "measure") for line in lines if line not in here] == others
    for line in here:
        same = [one for one in past if base_of(one) == base_of(line)]
        assert without_more(line) == without_more(same[0])
        assert times(line) == sum(map(times, same))
    assert others or {*map(base_of, here)} == {*map(base_of, past)}


PAST = "64-bit integer"


def base_of(line: str) -> str | None:
    base = re.search(r"base = ('.*?')", line)
    return base and base[1]


def without_more(line: str) -> str:
    return re.sub(r" and [\d,]+ more points?\)$", ")", line)


def times(line: str) -> int:
    more = re.search(r" and ([\d,]+) more points?\)$", line)
    return 1 + int(more[1].replace(",", "")) if more else 1


MANY = """
title: t
question: q
base: llama-3
fixed: {n_vocab: 50257, dtype: float32}
grid:
  tied: [true, false]
  norm: [rmsnorm, layernorm]
  d_model: {from: 64, to: 6400, steps: 50, multiple_of: 64}
  n_layer: {from: 1, to: 30, steps: 30}
  d_ff: {from: 64, to: 25600, steps: 60, multiple_of: 64}
derive: {n_head: d_model / 64, n_kv_head: n_head}
constraints: [d_ff >= d_model]
measure: {device: none, quantities: [parameters, cache_bytes]}
"""


@pytest.fixture
def many(tmp_path, catalogue):
    """More rows than a measured sweep may have points."""
    path = tmp_path / "many.yaml"
    path.write_text(MANY)
    return predicted(read(path, catalogue))


def test_frames_are_small_and_hold_every_combination_once(many, monkeypatch):
    monkeypatch.setattr(grid_rows, "ROWS", 4096)
    parts = list(frames(many, 2))
    assert max(part.height for part in parts) <= 8 * 4096
    rows = pl.concat(parts)
    assert many.combinations == 2 * 2 * 50 * 30 * 60 > MAX_POINTS
    widths = pl.DataFrame({"d_model": many.sweep.axes()["d_model"]})
    hidden = pl.DataFrame({"d_ff": many.sweep.axes()["d_ff"]})
    kept = widths.join(hidden, how="cross").filter(pl.col("d_ff") >= pl.col("d_model"))
    assert rows.height == kept.height * 2 * 2 * 30
    assert rows.select(many.sweep.axes().keys()).is_unique().all()


def test_a_few_rows_by_hand(many):
    """Embedding, head, four square matrices and three of the MLP, and two norms a layer."""
    rows = pl.concat(frames(many, 1))
    d, f, layers = (pl.col(name) for name in ("d_model", "d_ff", "n_layer"))
    words = 50_257 * d * (2 - pl.col("tied").cast(pl.Int64))
    by_hand = words + layers * (4 * d * d + 3 * d * f + 2 * d) + d
    assert rows.select((pl.col("parameters") == by_hand).all()).item()
    keys_and_values = 4 * 2 * 1024 * d * layers  # float32, a batch of 1, 1024 tokens
    assert rows.select((pl.col("cache_bytes") == keys_and_values).all()).item()


def test_what_is_gathered_along_the_axes_is_what_all_rows_say(many, monkeypatch):
    monkeypatch.setattr(grid_rows, "ROWS", 4096)
    axes, groups = many.sweep.axes(), groups_of(many)
    assert groups == ["token embedding", "head", "attention", "MLP", "norms"]
    along = AxisSummary(axes, many.sweep.measure.quantities, groups)
    parts = list(frames(many, 2))
    for part in parts:
        along.add(part)
    rows, totals, shares = pl.concat(parts), along.totals(), along.shares()
    assert along.rows == rows.height
    for axis, values in axes.items():
        for quantity in many.sweep.measure.quantities:
            value = pl.col(quantity)
            expected = rows.group_by(axis).agg(
                pl.len(), value.min().alias("least"), value.max().alias("most"),
            )  # fmt: skip
            found = totals.filter(pl.col("axis") == axis, pl.col("quantity") == quantity)
            assert found["index"].to_list() == list(range(len(values)))
            both = pl.DataFrame({axis: values}).join(expected, on=axis, maintain_order="left")
            for name, column in (("models", "len"), ("least", "least"), ("most", "most")):
                assert found[name].to_list() == both[column].to_list()
            others = [pl.col(o) == v[len(v) // 2] for o, v in axes.items() if o != axis]
            on_slice = pl.DataFrame({axis: values}).join(
                rows.filter(others), on=axis, how="left", maintain_order="left"
            )
            assert found["slice"].to_list() == on_slice[quantity].to_list()
        for group in groups:
            share = on_slice[f"parameters.{group}"] / on_slice["parameters"]
            found = shares.filter(pl.col("axis") == axis, pl.col("group") == group)
            assert found["share"].to_list() == share.drop_nulls().to_list()


def test_the_slice_along_the_only_axis_has_all_rows():
    """It ended a sweep of a formula along one axis."""
    along = AxisSummary({"n_layer": [1, 2, 3]}, ["parameters"], [])
    along.add(pl.DataFrame({"n_layer": [1, 2, 3], "parameters": [10, 20, 30]}))
    assert along.totals()["slice"].to_list() == [10, 20, 30]


def test_charts_are_of_predictions(many):
    along = AxisSummary(many.sweep.axes(), many.sweep.measure.quantities, groups_of(many))
    for part in frames(many, 1):
        along.add(part)
    charts = predicted_charts(along.totals(), along.shares())
    assert list(charts) == ["shares", "totals", "cache-bytes-totals"]
    for chart in charts.values():
        spec = chart.to_dict()
        assert spec["title"]["text"].startswith("Predicted ")
        assert len(spec["concat"]) == 5
        assert vl_convert.vegalite_to_svg(spec).count("<path") > 10


def test_of_the_phases_of_a_peak_the_largest_counts(tmp_path, catalogue):
    """Together these four are past 64 bits, and no machine ever holds them together."""
    sizes, peak = [137 * 10**12], 2_525_184_000_126_013_656
    sweep = {
        "base": "gpt-2-124m",
        "fixed": {"n_layer": 1, "length": 8, "dtype": "float32", "foreach": False},
        "grid": {"n_vocab": sizes},
        "measure": {"quantities": ["peak_training_bytes"]},
    }
    (point,) = expand(written(tmp_path, sweep, "meta"), catalogue).points
    phases = point.architecture.peak_training_bytes(point.architecture, point.run)
    assert max(term.total for term in phases.values()) == peak
    assert total(phases) > MAX_COUNT > peak
    alone = predicted(read(written(tmp_path, sweep, "none"), catalogue))
    assert pl.concat(frames(alone, 1))["peak_training_bytes"].to_list() == [peak]
    sizes[0] *= 4
    for device, function in (("meta", expanded), ("none", predicted)):
        checked = read(written(tmp_path, sweep, device), catalogue)
        with pytest.raises(InputError, match=f"peak_training_bytes = .*more than {MAX_COUNT:,}"):
            function(checked)


def test_stages_of_zero_are_categories_that_are_numbers(tmp_path, catalogue):
    """A stage of ZeRO selects other formulas, and so do the kinds of stages of a pipeline."""
    sweep = {
        "base": "gpt-2-124m",
        "fixed": {"data_parallel": 8, "recompute": "full"},
        "grid": {"zero": [0, 3], "length": [8, 16]},
        "measure": {"quantities": ["parameter_bytes", "peak_training_bytes"]},
    }
    points = expand(written(tmp_path, sweep, "meta"), catalogue).points
    rows = [in_integers(point, sweep["measure"]["quantities"]) for point in points]
    found = pl.concat(frames(predicted(read(written(tmp_path, sweep, "none"), catalogue)), 1))
    assert comparable(found.iter_rows(named=True)) == comparable(rows)
    assert found["parameter_bytes"].n_unique() == 2


def test_a_model_without_n_ctx_has_the_default_length(tmp_path, catalogue):
    sweep = {
        "base": "mamba-130m",
        "grid": {"n_layer": [2, 3]},
        "measure": {"quantities": ["flops_forward"]},
    }
    points = expand(written(tmp_path, sweep, "meta"), catalogue).points
    rows = [in_integers(point, ["flops_forward"]) for point in points]
    found = pl.concat(frames(predicted(read(written(tmp_path, sweep, "none"), catalogue)), 1))
    assert comparable(found.iter_rows(named=True)) == comparable(rows)


def test_requests_of_engines_are_those_of_one_model_each(tmp_path, catalogue):
    """A grid read pages as a contiguous cache; each row is the answer about that model alone."""
    layouts = ["contiguous", "paged", "cells"]
    sweep = {
        "title": "t",
        "question": "q",
        "grid": {
            "base": ["mistral-7b-v0.1", "mamba-1.4b"],
            "length": [1, 100, 5000],
            "batch": [1, 3],
            "cache_layout": layouts,
        },
        "fixed": {"dtype": "bfloat16", "batched_tokens": 512},
        "measure": {"device": "none", "quantities": ["request_bytes", "cache_bytes"]},
    }
    path = tmp_path / "requests.yaml"
    path.write_text(yaml.safe_dump(sweep))
    rows = pl.concat(frames(predicted(read(path, catalogue)), 2))
    assert len(rows) == 2 * 3 * 2 * len(layouts)
    for row in rows.iter_rows(named=True):
        run = {name: row[name] for name in ("length", "batch", "cache_layout")} | sweep["fixed"]
        for quantity in ("request_bytes", "cache_bytes"):
            assert row[quantity] == mb.model(row["base"]).predict(quantity, run).total, row
