"""Inside a model: the tree against torch's own modules, and the picture in a browser."""

import pytest
from helpers.built import module_trees
from helpers.page import unfold
from helpers.results import result
from torch import nn

from modelbudget.architecture.terms import total
from modelbudget.measurement.trace.module_tree import tree
from modelbudget.report.page import render
from modelbudget.report.page_results import Results
from modelbudget.sweeps.derive import named_architecture

NAMES = ("gpt-2-124m", "palm-540b")


@pytest.fixture(scope="module")
def trees(catalogue) -> list[dict]:
    return module_trees(catalogue, *NAMES)


def part(node: dict, *names: str) -> dict:
    for name in names:
        (node,) = [child for child in node["parts"] if child["name"] == name]
    return node


def test_a_tree_is_what_torch_says_it_is():
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 5), nn.Linear(5, 5))
    found = tree(model)
    assert found["kind"] == "Sequential"
    assert [p["kind"] for p in found["parts"]] == ["Linear", "ReLU", "Linear"]
    assert [p["times"] for p in found["parts"]] == [1, 1, 2]
    assert found["parts"][2]["name"] == "2 … 3"
    assert found["parts"][0]["tensors"] == [
        {"name": "weight", "shape": [5, 3], "parameters": 15, "shared_with": None},
        {"name": "bias", "shape": [5], "parameters": 5, "shared_with": None},
    ]
    assert found["parameters"] == sum(p.numel() for p in model.parameters()) == 80


def test_a_shared_tensor_counts_where_it_was_met_first():
    model = nn.ModuleDict({"words": nn.Embedding(7, 3), "head": nn.Linear(3, 7, bias=False)})
    model["head"].weight = model["words"].weight
    found = tree(model)
    assert found["parameters"] == 21
    (tensor,) = part(found, "head")["tensors"]
    assert tensor["shared_with"] == "words.weight"
    assert tensor["parameters"] == 0
    assert tensor["shape"] == [7, 3]


def test_names_are_never_folded_and_unlike_layers_are_not():
    named = nn.ModuleDict({"query": nn.Linear(2, 2), "key": nn.Linear(2, 2)})
    assert [p["name"] for p in tree(named)["parts"]] == ["query", "key"]
    layers = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 3), nn.Linear(2, 2)])
    assert [p["times"] for p in tree(layers)["parts"]] == [1, 1, 1]


def test_palm_is_118_layers_and_every_parameter(trees):
    palm = trees[1]["tree"]
    assert palm["parameters"] == 540_356_474_880
    layers = part(palm, "layer", "0 … 117")
    assert layers["times"] == 118
    query = part(layers, "attention", "query")
    assert query["tensors"][0]["shape"] == [12288, 18432]
    assert part(palm, "head")["tensors"][0]["shared_with"] == "embedding.token.weight"


def test_trees_have_what_the_formulas_say(trees, catalogue):
    for one in trees:
        architecture = named_architecture(catalogue[one["model"]])
        assert one["tree"]["parameters"] == total(architecture.parameters(architecture))


@pytest.fixture(scope="module")
def address(trees, catalogue, tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("trees")
    file, path = folder / "sweep.yaml", folder / "report.html"
    file.write_text("title: A test\nquestion: Why?\nbase: mlp\ngrid: {d_model: [5]}\n")
    results = Results([result(file, catalogue)], parts={"module_trees/trees.json": trees})
    path.write_text(render(results, catalogue), encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def opened(open_page, address):
    return lambda **how: unfold(open_page(address, **how))


PALM = "#architecture-palm-540b"


def test_a_tree_is_a_list_whose_parts_open_and_have_their_shares(opened):
    """Without a script; the bar of a part is as long as its share of the parameters."""
    tab = opened(width=390, scheme="dark", script=False)
    assert tab.inner_text(f"{PALM} + .tree").count("\n") < 10  # closed but for the model itself
    for name in ("layer", "0 … 117 (118 ×)", "attention"):
        tab.click(f"{PALM} + .tree summary:has(b:text-is('{name}'))")
    words = tab.inner_text(f"{PALM} + .tree")
    for text in (
        "462,422,016 each", "54,565,797,888 in total, 10.1\N{NO-BREAK SPACE}%",
        "226,492,416 each", "weight 12,288 × 18,432",
        "weight 256,000 × 18,432, the same tensor as embedding.token.weight",
    ):  # fmt: skip
        assert text in words
    part = tab.locator(f"{PALM} + .tree summary:has(b:text-is('attention'))")
    wide, whole = (part.locator(name).bounding_box()["width"] for name in ("rect", "svg"))
    assert wide / whole == pytest.approx(54_565_797_888 / 540_356_474_880, abs=0.01)


REASON = "ValueError: <i>8</i> heads"


def test_what_could_not_be_built_has_its_reason_in_its_place(
    open_page, trees, catalogue, sweep, tmp_path
):
    sweep("base: mlp\ngrid: {d_model: [5]}\n")
    shown = [trees[0], trees[1] | {"tree": {"failure": REASON}}]
    path = tmp_path / "report.html"
    parts = {"module_trees/trees.json": shown}
    results = Results([result(tmp_path / "sweep.yaml", catalogue)], parts=parts)
    path.write_text(render(results, catalogue), encoding="utf-8")
    tab = unfold(open_page(path.as_uri()))
    assert tab.inner_text(PALM) == f"PaLM 540B: could not be built: {REASON}"
    assert tab.query_selector(f"{PALM} + .tree") is None
    assert tab.messages == []
