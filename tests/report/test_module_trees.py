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


def block(tab, name: str):
    return tab.locator(f"{PALM} li:not(.empty) > button", has=tab.locator(f"b:text-is('{name}')"))


def width(tab, name: str) -> float:
    box = block(tab, name).locator("xpath=..").bounding_box()
    return box["width"] if box else 0


def test_a_block_is_as_wide_as_its_share_and_can_be_looked_into(opened):
    tab = opened()
    whole = width(tab, "PaLM 540B")
    assert width(tab, "mlp") / whole == pytest.approx(481_069_891_584 / 540_356_474_880, abs=0.03)
    assert width(tab, "shared") < 5
    block(tab, "attention").click()
    assert width(tab, "attention") == pytest.approx(whole, abs=2)
    assert width(tab, "mlp") == 0
    assert "54,565,797,888 in total" in tab.inner_text(f"{PALM} .description")
    block(tab, "PaLM 540B").click()
    assert width(tab, "mlp") > 0.8 * whole
    assert tab.messages == []


def test_the_keyboard_walks_the_tree(opened):
    tab = opened()
    block(tab, "PaLM 540B").focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowDown", "ArrowDown"):
        tab.keyboard.press(key)
    assert "attention · Attention · 462,422,016 each" in tab.inner_text(f"{PALM} .description")
    tab.keyboard.press("ArrowDown")
    assert "weight 12,288 × 18,432" in tab.inner_text(f"{PALM} .description")
    tab.keyboard.press("Enter")
    assert width(tab, "query") == pytest.approx(width(tab, "PaLM 540B"), abs=2)
    assert tab.locator(f"{PALM} .tree [tabindex='0']").count() == 1


@pytest.mark.parametrize(("wide", "scheme"), [(1280, "light"), (390, "dark")])
def test_no_label_is_cut(opened, wide, scheme):
    tab = opened(width=wide, scheme=scheme)
    tab.wait_for_timeout(100)
    shown = tab.eval_on_selector_all(
        ".icicle :is(b, .amount)",
        """labels => labels.filter((label) => label.checkVisibility()).map((label) => {
             const [text, box] = [document.createRange(), label.getBoundingClientRect()];
             text.selectNodeContents(label);
             const { top, bottom, left, right } = text.getBoundingClientRect();
             const isWide = left < box.left || right > box.right + 0.5;
             if (!isWide && bottom <= box.bottom + 1) return "whole";
             return top >= box.bottom - 1 ? "hidden" : label.textContent;
           })""",
    )
    assert {*shown} == {"whole", "hidden"}  # no other is there in part
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("script", [True, False])
def test_it_reads_as_a_list_too(opened, script):
    tab = opened(script=script)
    if script:
        tab.click(f"{PALM} .toggle")
    words = tab.inner_text(f"{PALM} .tree")
    for text in (
        "0 … 117 (118 ×)", "weight 12,288 × 18,432", "226,492,416 each",
        "weight 256,000 × 18,432, the same tensor as embedding.token.weight",
    ):  # fmt: skip
        assert text in words


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
    assert tab.locator(f"{PALM} li").is_visible()
    assert tab.inner_text(f"{PALM} .description").endswith(f"could not be built: {REASON}")
    assert tab.inner_text(f"{PALM} h3") == "PaLM 540B: could not be built"
    assert tab.messages == []
