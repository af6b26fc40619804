"""Small models step by step."""

import re
from html import unescape

import pytest
from helpers.built import printed_modules
from helpers.page import Text
from helpers.results import PARTS, result

from modelbudget.common.paths import SWEEPS
from modelbudget.report.page import render
from modelbudget.report.page_results import Results
from modelbudget.sweeps.expand import expand
from modelbudget.workflow.targets import counted_by_hand

LADDER = SWEEPS / "counting-ladder.yaml"


@pytest.fixture(scope="module")
def page(catalogue) -> str:
    parts = {"module_trees/modules.json": printed_modules(LADDER, catalogue)}
    results = Results([result(LADDER, catalogue)], parts=PARTS | parts)
    return render(results, catalogue)


def step(page: str, label: str) -> str:
    start = page.index(f">{label}: ")
    following = page.find('<li id="counting-ladder-', start)
    return page[start : following if following > 0 else page.index("</ol>", start)]


def test_a_step_shows_module_formula_numbers_and_both_counts(page):
    mlp = step(page, "MLP, 16 hidden")
    assert "(up): Linear(in_features=5, out_features=16, bias=True)" in mlp
    assert "Two linear layers with an activation between them." in mlp
    assert "<msub><mi>d</mi><mi>ff</mi></msub>" in mlp
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
