"""The section of counting conventions: its tables against numbers worked out again."""

import re

import polars as pl
import pytest
from helpers.page import Text
from helpers.results import result

from modelbudget.common.paths import CONFIGS
from modelbudget.report.page_results import Results
from modelbudget.report.section import Page
from modelbudget.report.sections import sections
from modelbudget.report.tables import environment

LADDERS = CONFIGS / "sweeps" / "published-ladders.yaml"


@pytest.fixture(scope="module")
def ladders(catalogue):
    return result(LADDERS, catalogue)


def section(catalogue, sweeps):
    page = Page.of(Results(sweeps), catalogue, {})
    contents = sections()["counting"].contents(page)
    html = environment().get_template("counting.html.j2").render(section=contents)
    return html, str(Text(html)), page.charts


def test_the_section(catalogue, ladders):
    html, text, charts = section(catalogue, [ladders])
    assert (
        "184 printed numbers of scaling studies: 62 exact, 33 within rounding, 18 not a count"
        in text
    )
    assert re.search(r"2024\): without_input_embedding ?, olmo .* MODEL_GFLOPS 12 exact", text)
    assert re.search(r"DataDecide .*: without_input_embedding .* shapes 14 exact", text)
    # Pythia 70M: 70,426,624 parameters, 18,915,328 of them without embeddings.
    assert "6·N·D with all parameters is 3.723 times 6·N·D without embeddings in Pythia 70M" in text
    assert "are 74.5 per parameter without embeddings" in text
    assert "is 1.009 times 6·N·D without embeddings in PaLM 540B" in text
    assert "layers and head 0.54 0.536 0.536" in text
    # 6·N of Pythia 70M and all products: 6 · (layers' matrices + head) and 12 · 6 · 512 · 2,048.
    products = 6 * (6 * 12 * 512**2 + 50304 * 512) + 12 * 6 * 512 * 2048
    assert f"{100 * 6 * 70_426_624 / products:.1f} %" in text.split("approximation 6·N·D")[1][:60]
    # Pythia 1B, 131,072 tokens: 16 layers of 2,048 channels
    products = 6 * (16 * 12 * 2048**2 + 50_304 * 2048)
    share = 6 * 1_011_781_632 / (products + 12 * 16 * 2048 * 131_072)
    assert f"131,072: {100 * share:.1f} %" in text
    assert list(charts.specs) == ["counting-departures"]
    assert len(html) < 30_000


def test_a_measurement_that_differs_is_red(catalogue, ladders):
    more = pl.col("measured") + 1
    wrong = ladders._replace(comparison=ladders.comparison.with_columns(measured=more))
    html, text, _ = section(catalogue, [wrong])
    assert "33 within rounding, 62 differs" in text
    assert 'class="red"' in html or " red" in html
