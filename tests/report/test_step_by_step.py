"""Small models step by step."""

import re
from html import unescape

import pytest
from helpers.built import printed_modules, walkthroughs
from helpers.page import Text
from helpers.results import PARTS, result

from modelbudget.common.paths import SWEEPS
from modelbudget.measurement.trace.walkthrough import torch_layers
from modelbudget.report.page import render
from modelbudget.report.page_results import Results
from modelbudget.sweeps.expand import expand
from modelbudget.workflow.targets import counted_by_hand

LADDER = SWEEPS / "counting-ladder.yaml"


@pytest.fixture(scope="module")
def page(catalogue) -> str:
    printed, found = printed_modules(LADDER, catalogue), walkthroughs(LADDER, catalogue)
    parts = {"module_trees/modules.json": printed, "module_trees/walkthroughs.json": found}
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
    assert "<mn>16</mn>" in mlp
    text = str(Text(mlp))
    assert re.search(r"mlp\.up .* 96 96 53\.0 %", text)
    assert re.search(r"mlp\.down .* 85 85 47\.0 %", text)
    assert "all 181 181 100 %" in text


def test_a_step_shows_shapes_and_a_real_size(page):
    """Two sequences of three tokens; and a vocabulary of 50,000 in 2,048 dimensions."""
    first = str(Text(step(page, "Embedding")))
    assert "In: 2 × 3; out: 2 × 3 × 5." in first
    assert "(n_vocab = 50,000, d_model = 2,048): 102,400,000 parameters" in first
    whole = str(Text(step(page, "Bare-bones transformer language model")))
    assert "In: 2 × 3; out: 2 × 3 × 256." in whole
    for shapes in (
        "layer.0.attention.core ScaledDotProductAttention 3 of 2 × 1 × 3 × 5 → 2 × 1 × 3 × 5",
        "layer.0.mlp.up Linear 2 × 3 × 5 → 2 × 3 × 16",
        "head LMHead 2 × 3 × 5 → 2 × 3 × 256",
    ):
        assert shapes in whole


D, FF = 5, 2_048
OF_TORCH = {
    "nn.MultiheadAttention(5, 1)": 4 * (D * D + D),
    "nn.MultiheadAttention(5, 1, bias=False)": 4 * D * D,
    "nn.MultiheadAttention(5, 1, add_bias_kv=True)": 4 * (D * D + D) + 2 * D,
    "nn.TransformerEncoderLayer(5, 1, dim_feedforward=5)": 6 * (D * D + D) + 2 * 2 * D,
    "nn.TransformerEncoderLayer(5, 1)": 4 * (D * D + D) + 2 * D * FF + FF + D + 2 * 2 * D,
    "nn.TransformerEncoderLayer(5, 1, dim_feedforward=5, bias=False)": 6 * D * D + 2 * D,
    "nn.TransformerDecoderLayer(5, 1, dim_feedforward=5)": 10 * (D * D + D) + 3 * 2 * D,
}
"""Attention: four projections; layer: attention, two matrices and two norms of two vectors."""


def test_a_step_stands_next_to_torchs_own_module(page):
    ours = {"nn.M": ("Attention, one head, with biases", 120), "nn.T": ("Bare-bones layer", 200)}
    for call, parameters in OF_TORCH.items():
        label, own = ours[call[:4]]
        text = str(Text(step(page, label if own == 120 else f"{label}, 5 hidden")))
        difference = parameters - own
        shown = f"{'−' if difference < 0 else '+'}{abs(difference):,}" if difference else "equal"
        assert f"{call} {parameters:,} {shown} " in text
    assert "in_proj_weight 15 × 5" in str(Text(step(page, "Attention, one head, with biases")))
    assert "torch’s own" not in step(page, "LayerNorm")


def test_modules_that_torch_does_not_have_are_not_compared(catalogue):
    point = next(p for p in expand(LADDER, catalogue).points if p.architecture.name() == "layer")
    assert torch_layers(point.architecture)
    for other in ({"gated": True}, {"qk_norm": "shared"}, {"query_bias": False}):
        fields = point.architecture.model_dump() | other
        assert torch_layers(type(point.architecture)(**fields)) == []


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
