"""The zoo: every named model against independent counts."""

import copy

import polars as pl
import pytest
from helpers.project import ROOT
from helpers.tiers import ALL, some

from modelbudget.catalogue.named_models import Catalogue
from modelbudget.common.errors import InputError
from modelbudget.compare.comparison import compare
from modelbudget.compare.zoo import AGREES, EXPLAINED, UNEXPLAINED, zoo
from modelbudget.measurement.measured_table import measured_table
from modelbudget.measurement.process.measure_in_processes import measure_all
from modelbudget.measurement.reference.cached_classes import count_all
from modelbudget.predict.predict import predict
from modelbudget.sweeps.class_config import classes_of
from modelbudget.sweeps.derive import named_architecture
from modelbudget.sweeps.expand import expand
from modelbudget.sweeps.points_table import points_table
from modelbudget.sweeps.sweep_file import Measure
from modelbudget.workflow.chosen_sweeps import check_models

WITH_A_REASON = {
    "deepseek-v3": -14_848,
    "dots.llm1": -61 * 128,
    "glm-4.5": -89 * 160,
    "glm-4.5-air": -45 * 128,
    "kimi-k2-1t": -60 * 384,
    "kimi-linear-48b-a3b": -26 * 256,
    "lfm2-8b-a1b": -22 * 32,
    "minimax-m2": -62 * 256,
    "t5-v1-1-small": -16_449_536,
    "t5-v1-1-base": -24_674_304,
    "t5-v1-1-large": -32_899_072,
    "t5-v1-1-xl": -65_798_144,
    "t5-v1-1-xxl": -131_596_288,
}
"""The class of transformers minus the model: a router's bias as a buffer, a head tied by force."""


BY_NAME = {
    "gpt-2-124m", "gpt-oss-120b", "llama-3-8b", "mixtral-8x7b", "palm-540b", "transformer-xl-large",
    *WITH_A_REASON,
}  # fmt: skip


@pytest.fixture(scope="module")
def catalogue(catalogue) -> Catalogue:
    """Every third model and those of BY_NAME; with TESTS=all, every model."""
    models = [name for name, base in catalogue.bases.items() if base.model]
    left_out = {*models} - {*some(models, 3), *BY_NAME}
    few = copy.copy(catalogue)
    few.bases = {name: base for name, base in catalogue.bases.items() if name not in left_out}
    return few


@pytest.fixture(scope="module")
def parts(catalogue, tmp_path_factory):
    expanded = expand(ROOT / "configs" / "sweeps" / "zoo.yaml", catalogue)
    settings = Measure(device="meta", quantities=["parameters"])
    measured = measure_all([(p.architecture, p.run) for p in expanded.points], settings, 1)
    points = points_table(expanded.points)
    comparison = compare(
        points,
        predict(points, settings.quantities),
        measured_table(measured, settings.quantities).unique(),
        [],
    )
    counts, has_failed = count_all(classes_of(points), 1, tmp_path_factory.mktemp("counts"))
    assert not has_failed
    return points, comparison, counts


@pytest.fixture(scope="module")
def table(catalogue, parts):
    return zoo(catalogue, *parts)


def test_every_named_model_is_there_and_measured_as_predicted(table, catalogue):
    named = [name for name, base in catalogue.bases.items() if base.model]
    assert table["model"].to_list() == named
    assert len(named) > (225 if ALL else 80)
    assert (table["measured_difference"] == 0).all()
    assert (table["exact_difference"].drop_nulls() == 0).all()


def test_every_model_with_a_class_equals_it_or_differs_exactly_as_explained(table):
    known = table.filter(pl.col("class").is_not_null())
    assert known.height >= (130 if ALL else 45)
    assert known["reference"].null_count() == 0
    differ = known.filter(pl.col("reference_difference") != 0)
    assert dict(differ.select("model", "reference_difference").rows()) == WITH_A_REASON
    assert set(differ["status"]) == {EXPLAINED}


def test_status_and_reason(table):
    by_model = {row["model"]: row for row in table.iter_rows(named=True)}
    assert (by_model["gpt-2-124m"]["status"], by_model["gpt-2-124m"]["reason"]) == (AGREES, None)
    assert by_model["palm-540b"]["published_value_difference"] == -6_474_880
    assert "norms" in by_model["palm-540b"]["reason"]
    assert by_model["transformer-xl-large"]["status"] == UNEXPLAINED
    assert table.filter(pl.col("status") == AGREES)["reason"].null_count() > (150 if ALL else 50)
    assert table.filter(pl.col("status") != AGREES)["reason"].null_count() == 0


def test_active_parameters_under_both_conventions(table):
    rows = {row["model"]: row for row in table.iter_rows(named=True)}
    assert rows["mixtral-8x7b"]["active"] == 12_879_925_248  # Jiang et al. 2024: 12.9B
    # gpt-oss model card, Table 1: 5.13B
    assert rows["gpt-oss-120b"]["active_without_input_embedding"] == 5_132_849_472
    assert rows["llama-3-8b"]["active"] is None


@pytest.mark.parametrize("name", ["measured", "reference", "exact"])
def test_a_difference_without_a_reason_is_unexplained(catalogue, parts, name):
    points, comparison, classes = parts
    here = points.filter(pl.col("base") == "gpt-2-124m")
    wrong = pl.lit(1, pl.Int64)
    if name == "measured":
        first = pl.col("component") == "embedding.token"
        comparison = comparison.with_columns(
            measured=pl.col("measured") + pl.when(first).then(wrong).otherwise(0)
        )
    if name == "reference":
        classes = classes.with_columns(parameters=pl.col("parameters") + wrong)
    if name == "exact":
        model = catalogue["gpt-2-124m"].model
        off = model.model_copy(update={"exact": model.exact + 1})
        bases = catalogue.bases | {"gpt-2-124m": catalogue["gpt-2-124m"]._replace(model=off)}
        catalogue = type("Other", (), {"bases": bases})
    (row,) = zoo(catalogue, here, comparison, classes).to_dicts()
    assert row["status"] == UNEXPLAINED
    assert row[f"{name}_difference"] == 1
    assert "unexplained" in row["reason"]


def test_a_class_that_cannot_be_the_model_is_unexplained(catalogue, parts):
    points, comparison, classes = parts
    refused = classes.with_columns(
        parameters=pl.lit(None, pl.Int64), refusal=pl.lit("cannot be this architecture")
    )
    here = points.filter(pl.col("base") == "gpt-2-124m")
    (row,) = zoo(catalogue, here, comparison, refused).to_dicts()
    assert (row["status"], row["reference"]) == (UNEXPLAINED, None)
    assert "cannot be this architecture" in row["reason"]


CONFIG = """{"model_type": "gpt2", "vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12}
"""
SERIES = """
title: From a model page
family: FAMILY
source: the model page
models:
  as-downloaded: {label: As downloaded, config: gpt-2.json, exact: 124439808}
"""


def test_a_model_can_be_a_config_file(tmp_path):
    (tmp_path / "gpt-2.json").write_text(CONFIG)
    (tmp_path / "page.yaml").write_text(SERIES.replace("FAMILY", "decoder"))
    base = Catalogue(tmp_path)["as-downloaded"]
    a = named_architecture(base)
    assert sum(term.total for term in a.parameters(a).values()) == base.model.exact
    assert base.transformers == "GPT2LMHeadModel"


def test_a_config_file_gives_the_family(tmp_path):
    (tmp_path / "gpt-2.json").write_text(CONFIG)
    (tmp_path / "page.yaml").write_text(SERIES.replace("family: FAMILY", ""))
    assert named_architecture(Catalogue(tmp_path)["as-downloaded"]).name() == "decoder"
    (tmp_path / "page.yaml").write_text(
        SERIES.replace("family: FAMILY", "").replace("config: gpt-2.json, ", "")
    )
    with pytest.raises(InputError, match=r"family: missing; models\.as-downloaded has no config"):
        Catalogue(tmp_path)


def test_a_config_file_of_another_family_is_refused(tmp_path):
    (tmp_path / "gpt-2.json").write_text(CONFIG)
    (tmp_path / "page.yaml").write_text(SERIES.replace("FAMILY", "encoder"))
    with pytest.raises(InputError, match=r"gpt-2\.json.*family 'decoder'.*family 'encoder'"):
        Catalogue(tmp_path)


def test_a_class_that_is_not_known_is_refused(tmp_path):
    (tmp_path / "page.yaml").write_text(
        "title: t\nfamily: decoder\ntransformers: LlamaForCasualLM\n"
    )
    with pytest.raises(InputError, match=r"LlamaForCasualLM.*did you mean LlamaForCausalLM\?"):
        check_models(Catalogue(tmp_path))
