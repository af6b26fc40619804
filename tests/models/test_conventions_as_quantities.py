"""Conventions as quantities of sweeps: in all readings, measured, and compared."""

from pathlib import Path

import polars as pl
import pytest
from helpers.readings import as_bounds, in_first_row, of_graph, of_symbols, sizes, two_rows, words

import modelbudget as mb
from modelbudget.architecture.counting_conventions import BY_NAME
from modelbudget.architecture.evaluators import graph, intervals, symbols
from modelbudget.architecture.terms import total
from modelbudget.catalogue.named_models import Catalogue
from modelbudget.common.errors import InputError
from modelbudget.common.paths import MODELS
from modelbudget.predict.predict import predict
from modelbudget.predict.predicted_grids import frames, predicted
from modelbudget.sweeps.expand import expand
from modelbudget.sweeps.quantity_names import OF_CONVENTION
from modelbudget.sweeps.read import read

NAMES = tuple(BY_NAME)


def test_every_convention_is_a_quantity():
    assert BY_NAME.keys() == OF_CONVENTION


@pytest.mark.parametrize("name", ["gpt-2-124m", "pythia-70m", "mixtral-8x7b"])
def test_every_reading_is_the_same(name):
    """Integers are held against numbers by hand in test_counting_conventions.py."""
    a, run = mb.model(name).with_run({"length": 1000})
    family = type(a)

    def formulas(reading):
        both = [reading(type(record), words(record)) for record in (a, run)]
        return {one: total(family.terms(one, *both)) for one in NAMES}

    expected = mb.model(name).conventions({"length": 1000}).values
    assert of_symbols(formulas(symbols.namespace), sizes(a) | sizes(run)) == expected
    table = predict(two_rows(a, run), NAMES)
    for one, formula in formulas(graph.namespace).items():
        assert of_graph(formula, sizes(a) | sizes(run)) == expected[one], one
        assert in_first_row(table, one) == {"model": expected[one]}
        (bounds,) = as_bounds(lambda *both, one=one: family.terms(one, *both), a, run).values()
        assert -intervals.most(-bounds) <= expected[one] <= intervals.most(bounds)


def test_predicted_and_measured():
    """Measured where counted components enter; an estimate from sizes alone is not."""
    model = mb.model("gpt-2-124m")
    found = model.measure({"length": 1024}, NAMES)
    rows = found.table.filter(pl.col("quantity").is_in(NAMES))
    by_name = {row["quantity"]: row for row in rows.iter_rows(named=True)}
    assert found.agrees
    assert by_name.keys() == BY_NAME.keys()
    assert by_name["palm"]["measured"] == 859_885_056  # 6 · 124,439,808 + 12 · 12 · 768 · 1,024
    estimates = {"kaplan", "chinchilla", *(one for one in NAMES if one[:4] in ("deep", "mega"))}
    assert {name for name, row in by_name.items() if row["measured"] is None} == estimates
    assert {name for name, row in by_name.items() if row["agrees"] is None} == estimates
    assert "parameters" in set(found.table["quantity"])  # by which they are measured


def test_a_module_that_differs_from_its_formula(monkeypatch):
    model = mb.model("gpt-2-124m")
    build = type(model.architecture).build

    def without_bias(self):
        module = build(self)
        module.norm.final.bias = None
        return module

    monkeypatch.setattr(type(model.architecture), "build", without_bias)
    found = model.measure({"length": 1024}, ["6n", "without_embeddings_and_norms"])
    off = {row["quantity"]: row["difference"] for row in found.table.iter_rows(named=True)}
    assert off["6n"] == -6 * 768
    assert off["without_embeddings_and_norms"] == 0


def test_experts_are_counted_and_flops_of_a_token_only_predicted():
    found = mb.model("mixtral-8x7b").measure({}, ["total", "6n"]).table
    by_name = {row["quantity"]: row for row in found.iter_rows(named=True)}
    assert by_name["total"]["measured"] == 46_702_792_704
    assert (by_name["6n"]["predicted"], by_name["6n"]["measured"]) == (6 * 12_879_925_248, None)


GRID = """
title: Conventions over a grid
question: t
measure: {device: none, quantities: [without_embeddings, palm, chinchilla]}
base: decoder
fixed: {n_vocab: 97, n_head: 4, n_ctx: 64}
grid: {d_model: [32, 64], n_layer: {from: 1, to: 30, steps: 30}, length: [16, 64]}
"""


def sweep(folder: Path, text: str):
    path = folder / "conventions.yaml"
    path.write_text(text)
    return path


def test_columns_of_a_grid_without_measurement(tmp_path):
    found = predicted(read(sweep(tmp_path, GRID), Catalogue(MODELS)))
    rows = pl.concat(frames(found, 1))
    assert rows.height == 120
    for row in rows.sample(5, seed=0).iter_rows(named=True):
        fields = {name: row[name] for name in ("d_model", "n_layer")}
        model = mb.model("decoder", n_vocab=97, n_head=4, n_ctx=64, **fields)
        counts = model.conventions({"length": row["length"]})
        for name in ("total", "without_embeddings", "palm", "chinchilla"):
            assert row["parameters" if name == "total" else name] == counts[name]


@pytest.mark.parametrize(
    ("quantity", "points", "message"),
    [
        ("kaplann", "{base: gpt-2-124m}", r"'kaplann': unknown; did you mean kaplan\?"),
        ("kaplan", "{base: mamba-130m}", r"kaplan is not known here: selective-scan has no n_head"),
        ("6n", "{base: gpt-2-124m, zero: 3, data_parallel: 2}", r"zero = 3: 6n is not known of"),
    ],
)
def test_what_cannot_be_counted(tmp_path, catalogue, quantity, points, message):
    text = f"title: t\nquestion: q\nmeasure: {{quantities: [{quantity}]}}\npoints: [{points}]\n"
    with pytest.raises(InputError, match=message):
        expand(sweep(tmp_path, text), catalogue)


def test_totals_over_64_bits_are_refused(tmp_path, catalogue):
    text = "title: t\nquestion: q\nmeasure: {quantities: [palm]}\npoints: [{base: gpt-2-124m, "
    text += "position: rotary, n_ctx: 9000000000000000, length: 9000000000000000}]\n"
    with pytest.raises(InputError, match=r"palm = 995,[\d,]+: more than 9,223,372,036,854,775,807"):
        expand(sweep(tmp_path, text), catalogue)
