"""A wrong formula, a missing component, a component too many: each is caught."""

import polars as pl
import pytest

from modelbudget.compare import compare, verdict
from modelbudget.components import mlp
from modelbudget.measure.pool import measure_all
from modelbudget.measure.table import measured_table
from modelbudget.points import points_table
from modelbudget.predict import predict


@pytest.fixture
def compared(sweep):
    def run(text: str) -> pl.DataFrame:
        expanded = sweep(text)
        settings = expanded.sweep.measure
        models = [(point.architecture, point.run) for point in expanded.points]
        points = points_table(expanded)
        measured = measured_table(measure_all(models, settings, 1), settings.quantities)
        return compare(points, predict(points, settings.quantities), measured, ["n_layer"])

    return run


GPT2 = (
    "base: gpt-2-124m\nfixed: {dtype: bfloat16}\ngrid: {n_layer: [1, 12]}\nmeasure: {device: meta}"
)


def test_right_formulas_agree(compared):
    table = compared(GPT2)
    assert verdict(table) == {"points": 2, "compared": table.height, "agreed": table.height}
    whole = table.filter(pl.col("n_layer") == 12).group_by("quantity").agg(pl.col("measured").sum())
    assert dict(whole.iter_rows()) == {
        "parameters": 124_439_808,
        "parameter_bytes": 2 * 124_439_808,
    }


def test_a_wrong_formula_is_caught_where_it_is_wrong(compared, monkeypatch):
    right = mlp.parameters
    monkeypatch.setattr(
        mlp, "parameters", lambda a, d_ff=None: right(a, d_ff) | {"down": a.d_ff * a.d_model}
    )
    wrong = compared(GPT2).filter(~pl.col("agrees"))
    assert set(wrong["component"]) == {"layer.mlp.down"}
    differences = wrong.filter(pl.col("quantity") == "parameters").sort("n_layer")["difference"]
    assert differences.to_list() == [768, 12 * 768]


def test_a_component_without_a_formula_is_caught(compared, monkeypatch):
    right = mlp.parameters
    monkeypatch.setattr(mlp, "parameters", lambda a, d_ff=None: {"up": right(a, d_ff)["up"]})
    wrong = compared(GPT2).filter(~pl.col("agrees"))
    assert set(wrong["component"]) == {"layer.mlp.down"}
    assert wrong["predicted"].is_null().all()


def test_a_formula_without_a_component_is_caught(compared, monkeypatch):
    right = mlp.parameters
    monkeypatch.setattr(
        mlp, "parameters", lambda a, d_ff=None: right(a, d_ff) | {"router": a.d_model}
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
