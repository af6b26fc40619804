"""A wrong formula, a missing component, a component too many: each is caught."""

import polars as pl
import pytest

from modelbudget.compare.comparison import compare, verdict
from modelbudget.components.feed_forward import mlp
from modelbudget.measurement.measured_table import measured_table
from modelbudget.measurement.process.measure_in_processes import measure_all
from modelbudget.predict.predict import predict
from modelbudget.report.verdict import of_sweep
from modelbudget.sweeps.points_table import points_table


@pytest.fixture
def compared(sweep):
    def run(text: str) -> pl.DataFrame:
        expanded = sweep(text)
        settings = expanded.sweep.measure
        models = [(point.architecture, point.run) for point in expanded.points]
        points = points_table(expanded.points)
        measured = measured_table(measure_all(models, settings, 1), settings.quantities)
        return compare(points, predict(points, settings.quantities), measured, ["n_layer"])

    return run


GPT2 = (
    "base: gpt-2-124m\nfixed: {dtype: bfloat16}\ngrid: {n_layer: [1, 12]}\nmeasure: {device: meta}"
)


def test_right_formulas_agree(compared):
    table = compared(GPT2)
    assert verdict(table) == {
        "points": 2,
        "compared": table.height,
        "agreed": table.height,
        "of_class": 0,
        "of_class_agreed": 0,
        "near": 0,
        "points_without_formula": 0,
        "points_failed": 0,
    }
    whole = table.filter(pl.col("n_layer") == 12).group_by("quantity").agg(pl.col("measured").sum())
    assert dict(whole.iter_rows()) == {
        "parameters": 124_439_808,
        "parameter_bytes": 2 * 124_439_808,
    }


def test_a_wrong_formula_is_caught_where_it_is_wrong(compared, monkeypatch):
    right = mlp.parameters
    monkeypatch.setattr(
        mlp, "parameters", lambda a, *sizes: right(a, *sizes) | {"down": a.d_ff * a.d_model}
    )
    table = compared(GPT2)
    wrong = table.filter(~pl.col("agrees"))
    assert not of_sweep("sweep", "A sweep", table).right  # with which `make report` exits with 1
    assert set(wrong["component"]) == {"layer.mlp.down"}
    differences = wrong.filter(pl.col("quantity") == "parameters").sort("n_layer")["difference"]
    assert differences.to_list() == [768, 12 * 768]


def test_a_component_without_a_formula_is_caught(compared, monkeypatch):
    right = mlp.parameters
    monkeypatch.setattr(mlp, "parameters", lambda a, *sizes: {"up": right(a, *sizes)["up"]})
    wrong = compared(GPT2).filter(~pl.col("agrees"))
    assert set(wrong["component"]) == {"layer.mlp.down"}
    assert wrong["predicted"].is_null().all()


def test_a_formula_without_a_component_is_caught(compared, monkeypatch):
    right = mlp.parameters
    monkeypatch.setattr(
        mlp, "parameters", lambda a, *sizes: right(a, *sizes) | {"router": a.d_model}
    )
    wrong = compared(GPT2).filter(~pl.col("agrees"))
    assert set(wrong["component"]) == {"layer.mlp.router"}
    assert wrong["measured"].is_null().all()
    assert (wrong["difference"] < 0).all()


def test_a_tied_head_names_the_owner_and_agrees_at_zero(compared):
    head = compared(GPT2).filter(pl.col("component") == "head")
    assert head["shared_with"].unique().to_list() == ["embedding.token"]
    assert head["predicted"].unique().to_list() == head["measured"].unique().to_list() == [0]
    assert head["agrees"].all()


TRAINING = (
    "measure: {device: meta, quantities: [activation_bytes, optimizer_bytes, unsupported_ops]}"
)


def test_what_has_no_formula_is_measured_and_not_compared(compared):
    """The peak of MLA with one table of RoPE is measured alone; its FLOPs have a formula."""
    table = compared(
        "base: gpt-2-124m\nfixed: {length: 8}\ngrid: {n_layer: [1]}\n"
        "points: [{base: deepseek-v2-lite, n_layer: 3, rope_tables: model}]\n"
        "measure: {device: meta,\n"
        "  quantities: [peak_training_bytes, flops_forward, unsupported_ops]}\n"
    )
    others = table.filter(pl.col("quantity") != "unsupported_ops")
    of_mla = (pl.col("n_layer") == 3) & (pl.col("quantity") == "peak_training_bytes")
    assert others.filter(of_mla)["prediction"].unique().to_list() == [None]
    assert others.filter(~of_mla)["prediction"].unique().to_list() == ["formula"]
    calls = table.filter(pl.col("quantity") == "unsupported_ops")
    assert calls["prediction"].null_count() == calls.height
    without = table.filter(pl.col("prediction").is_null())
    assert without.select("predicted", "difference", "agrees").null_count().row(0) == (
        without.height, without.height, without.height,
    )  # fmt: skip
    assert without["measured"].min() >= 0
    assert table.drop_nulls("prediction")["agrees"].all()
    assert verdict(table)["compared"] == table["prediction"].count() < table.height


ONE_POINT = {"point": "1", "label": "one", "architecture": "a", "run": "r"}
ONE_POINT |= {"implementation": "modelbudget"}


@pytest.mark.parametrize(
    ("quantity", "predicted", "measured", "agrees", "near"),
    [
        ("resident_bytes", 10**9, 10**9 + 10**7, True, True),
        ("resident_bytes", 10**9, 10**9 - 10**7 - 1, False, False),
        ("resident_bytes", 10**9, 10**9, True, False),
        ("resident_peak_bytes", 10**6, 10**6 + 2**20, None, False),
        ("parameter_bytes", 10**9, 10**9 + 1, False, False),
    ],
)
def test_only_what_the_system_tells_agrees_within_a_bound(
    quantity, predicted, measured, agrees, near
):
    key = {"architecture": "a", "run": "r", "component": "model", "quantity": quantity}
    table = compare(
        pl.DataFrame(ONE_POINT),
        pl.DataFrame(key | {"each": predicted, "instances": 1, "predicted": predicted}),
        pl.DataFrame(key | {"value": measured, "method": "cpu", "shared_with": None}),
        [],
    )
    assert table["agrees"].to_list() == [agrees]
    assert table["percent"].to_list() == [pytest.approx(100 * (measured / predicted - 1))]
    assert verdict(table)["near"] == near


def test_a_model_of_two_shards_fails_once_or_not_at_all():
    key = {"architecture": "a", "run": "r", "quantity": "parameters"}
    points = pl.DataFrame(ONE_POINT)
    terms = pl.DataFrame(
        [key | {"component": name, "each": 7, "instances": 1, "predicted": 7} for name in "xy"]
    )
    measured = terms.select(*key, "component", value="predicted").with_columns(
        method=pl.lit("cpu"), shared_with=pl.lit(None, pl.String)
    )
    twice = [key | {"failure": "killed"}, key | {"failure": "no answer"}]
    lost = compare(points, terms, measured.clear(), [], twice)
    assert lost["component"].to_list() == ["x", "y"]
    assert lost["failure"].null_count() == 0
    assert verdict(lost)["compared"] == 0
    there = compare(points, terms, measured, [], twice)
    assert there["agrees"].to_list() == [True, True]
    assert there["failure"].null_count() == 2


def test_a_model_at_two_runs_is_two_points(compared):
    table = compared(
        "base: gpt-2-124m\n"
        "fixed: {d_model: 12, n_head: 2, n_layer: 1, length: 8, dtype: float32}\n"
        "grid: {batch: [1, 4], optimizer: [sgd, adamw]}\n" + TRAINING
    ).filter(pl.col("component").is_in(["loss", "layer.mlp.up"]))
    assert table.drop_nulls("prediction")["agrees"].all()
    values = {
        (row["point"], row["component"]): row["measured"]
        for row in table.filter(pl.col("quantity") == "activation_bytes").iter_rows(named=True)
    }
    assert values["000003", "layer.mlp.up"] == 4 * values["000001", "layer.mlp.up"]
    states = table.filter(pl.col("quantity") == "optimizer_bytes", component="layer.mlp.up")
    assert states.sort("point")["measured"].to_list() == [0, 2 * 4 * (12 * 48 + 48) + 8] * 2


def test_a_simulated_allocator_is_a_prediction_without_verdict(compared):
    table = compared(
        "base: gpt-2-124m\nfixed: {d_model: 12, n_head: 2, n_layer: 1, length: 8}\n"
        "grid: {batch: [1]}\n"
        "measure: {device: meta, quantities: [peak_requested_bytes, peak_reserved_bytes]}"
    )
    reserved = table.filter(pl.col("quantity") == "peak_reserved_bytes")
    assert reserved.height == 4
    assert reserved["predicted"].min() >= 2**21
    assert set(reserved["prediction"]) == {"simulated"}
    for column in ("measured", "difference", "agrees"):
        assert reserved[column].null_count() == 4
    assert verdict(table) | {"compared": 4, "agreed": 4} == verdict(table)
    assert verdict(table)["points_without_formula"] == 0
