"""Small models step by step, and the drawings of storages of tied and untied GPT-2."""

import re
from html import unescape

import polars as pl
import pytest
from helpers.built import printed_modules
from helpers.page import Text
from helpers.results import LEDGER, SURGERY, result

from modelbudget.common.paths import SWEEPS
from modelbudget.plan.targets import counted_by_hand
from modelbudget.report.page import render
from modelbudget.report.results import Results
from modelbudget.sweeps.expand import expand

LADDER = SWEEPS / "counting-ladder.yaml"


@pytest.fixture(scope="module")
def page(catalogue) -> str:
    printed = printed_modules(LADDER, catalogue)
    return render(Results([result(LADDER, catalogue)], LEDGER, SURGERY, printed=printed), catalogue)


def step(page: str, label: str) -> str:
    start = page.index(f">{label}: ")
    return page[start : page.index("</li>", start)]


def test_a_step_shows_module_formula_numbers_and_both_counts(page):
    mlp = step(page, "MLP, 16 hidden")
    assert "(up): Linear(in_features=5, out_features=16, bias=True)" in mlp
    assert "Two linear layers with an activation between them." in mlp
    assert "<mn>16</mn>" in mlp
    text = str(Text(mlp))
    assert re.search(r"mlp\.up .* 96 96 53\.0 %", text)
    assert re.search(r"mlp\.down .* 85 85 47\.0 %", text)
    assert "all 181 181 100 %" in text


def test_steps_are_in_the_order_of_the_file(page):
    labels = re.findall(r'<h3><a href="#counting-ladder-(\d+)">', page)
    assert labels == [str(n) for n in range(1, 11)]
    assert "1,851" in step(page, "Bare-bones transformer language model")


def test_a_head_says_whether_its_matrix_is_its_own(page):
    tied, untied = (
        unescape(step(page, f"Embedding language model, {kind}"))
        for kind in ("tied", "untied, head bias")
    )
    assert "(head): LMHead(in_features=5, out_features=256, bias=False, tied=True)" in tied
    assert "(head): LMHead(in_features=5, out_features=256, bias=True, tied=False)" in untied


def test_what_is_too_large_for_paper_is_not_walked_through(catalogue, sweep, tmp_path):
    assert counted_by_hand(expand(LADDER, catalogue))
    assert not counted_by_hand(expand(SWEEPS / "named-models.yaml", catalogue))
    large = sweep("base: mlp\npoints:\n  - {d_model: 5}\n  - {d_model: 100, label: large}\n")
    assert not counted_by_hand(large)
    assert not counted_by_hand(sweep("base: mlp\ngrid: {d_model: [5]}\n"))
    page = render(Results([result(tmp_path / "sweep.yaml", catalogue)]), catalogue)
    assert 'class="steps"' not in page


def drawing(page: str, label: str) -> str:
    start = page.index(f"<b>{label}</b>")
    return page[start : page.index("</svg>", start)]


def test_storages_are_drawn_as_they_are(catalogue, sweep, tmp_path):
    sweep("base: mlp\ngrid: {d_model: [5]}\n")
    one = result(tmp_path / "sweep.yaml", catalogue)
    tied = SURGERY.with_columns(
        operation=pl.lit("as built"),
        head_storage=pl.lit("A"),
        parameters=pl.lit(124_439_808, pl.Int64),
    )
    page = render(Results([one], surgery=pl.concat([tied, SURGERY])), catalogue)
    whole, cut = drawing(page, "as built"), drawing(page, "head replaced")
    assert (whole.count('class="storage"'), cut.count('class="storage"')) == (1, 2)
    assert 'aria-label="embedding in storage A, head in storage A"' in whole
    assert 'aria-label="embedding in storage A, head in storage B"' in cut
    ends = [re.findall(r"L159 (\d+)", picture) for picture in (whole, cut)]
    assert len(set(ends[0])) == 1
    assert len(set(ends[1])) == 2
    assert "163,037,184 parameters <small>(cpu, meta)</small>" in cut
