"""The page: its content, its safety, and how a browser draws it."""

import json
import re
import zlib

import polars as pl
import pytest
from helpers.built import module_trees, printed_modules
from helpers.few_kinds import calculator_of_few
from helpers.page import DRAWN, Text, scroll_and_wait, settle, start, unfold, violations
from helpers.results import LEDGER, PARTS, result
from helpers.tiers import ALL

from modelbudget.common.paths import SWEEPS
from modelbudget.compare.comparison import compare
from modelbudget.predict.axis_summary import AxisSummary
from modelbudget.predict.predict import predict
from modelbudget.predict.predicted_grids import frames, groups_of, predicted
from modelbudget.predict.predicted_grids import summary as summary_of
from modelbudget.report.charts.component_charts import charts
from modelbudget.report.charts.predicted_ranges import predicted_charts
from modelbudget.report.packing import packed
from modelbudget.report.page import render
from modelbudget.report.page_results import PredictedResult, Results, SweepResult
from modelbudget.report.sections import counting
from modelbudget.report.sections.step import SHARED, STEP
from modelbudget.report.verdict import Verdict, failure_lines, line, verdict_file, verdicts
from modelbudget.sweeps.points_table import points_table
from modelbudget.sweeps.read import read
from modelbudget.workflow.exit_code import DISAGREES, UNKNOWN, exit_code
from modelbudget.workflow.targets import OF_ALL

MOST_BYTES, MOST_ELEMENTS = 906_300, 7_532
"""One per cent above what it measures, with the calculator of few kinds of models."""
EVIL = "<script>alert('title')</script>"


NAMED_MODELS = """
title: Some published models
question: Where does the budget go?
order: 20
headline: PaLM 540B
points: [{base: gpt-2-124m}, {base: llama-3-8b}, {base: palm-540b}, {base: deepseek-v3}]
"""


@pytest.fixture(scope="module")
def shipped(catalogue, tmp_path_factory) -> Results:
    named = tmp_path_factory.mktemp("sweeps") / "named-models.yaml"
    named.write_text(NAMED_MODELS)
    paths = [
        SWEEPS / f"{name}.yaml" for name in ("zoo", "counting-ladder", "grouped-heads", "hybrid")
    ]
    sweeps = [result(path, catalogue) for path in (named, *paths)]
    printed = printed_modules(SWEEPS / "counting-ladder.yaml", catalogue)
    trees = module_trees(catalogue, "gpt-2-124m", "mixtral-8x7b")
    return Results(
        sweeps,
        parts=PARTS | {"module_trees/trees.json": trees, "module_trees/modules.json": printed},
    )


@pytest.fixture(scope="module")
def page(shipped, catalogue, static_parts) -> str:
    return render(shipped, catalogue, static_parts(catalogue))


@pytest.fixture
def one(sweep, catalogue, tmp_path) -> SweepResult:
    """Results of the smallest sweep there is."""
    sweep("base: embedding\nfixed: {n_vocab: 256}\ngrid: {d_model: [5]}\n")
    return result(tmp_path / "sweep.yaml", catalogue)


def test_the_headline_is_the_model_that_a_sweep_names(page):
    assert "<h1>What 540 billion parameters do</h1>" in page
    for number in ("540,356,474,880", "160,356,630,528", "4,718,592,000"):
        assert f"{number} parameters" in page


def test_a_page_of_five_sweeps_is_small(page, shipped, catalogue):
    """Only this sees in `make test` a page that grows; the page of all sweeps is in test-all."""
    if ALL:  # where `page` has the calculator of all models
        page = render(shipped, catalogue, calculator_of_few(catalogue, every=False))
    assert len(page.encode()) < MOST_BYTES
    assert len(Text(page).tags) < MOST_ELEMENTS


def test_every_rung_of_the_ladder_has_its_number(page):
    text = str(Text(page))
    for number in ("1,280", "2,560", "2,816", "181", "1,461", "120", "10", "200", "1,851"):
        assert f" {number} " in text


def test_the_named_model_is_the_example_of_its_sweep(page):
    assert "Hybrid, 4 layers of 368 (d_hidden = 4, n_layer = 4): 18,792,288 parameters" in page


def test_formulas_show_sizes_and_no_switches(page):
    identifiers = set(re.findall(r"<msub><mi>(\w)</mi><mi>([\w ]+)</mi></msub>", page))
    assert {("n", "kv head"), ("d", "model"), ("n", "layer")} <= identifiers
    assert "bias" not in " ".join(words for _, words in identifiers)
    assert "<mi>gated</mi>" not in page


def test_tables_of_no_sweep_are_shown(page):
    text = str(Text(page))
    assert "38,597,376" in text
    assert "tied to transformer.wte" in text
    assert "yes: wrong" in text
    assert "wrong answer for: head replaced on meta" in text
    assert "torch 2.13.0" in text
    assert "0123abc" in text
    assert "2001" not in text  # the time would make two equal runs differ


def test_every_named_model_is_shown_with_its_reference_counts(page, shipped):
    table = page[page.index('<table class="models"') :]
    table = table[: table.index("</table>")]
    models = next(sweep.zoo for sweep in shipped.sweeps if sweep.zoo is not None)
    assert table.count("<tr data-status") == models.height > 225
    gpt_2 = re.search(r'title="gpt-2-124m".*?</tr>', table)[0]
    assert "124,439,808" in gpt_2
    assert gpt_2.count('class="mark agrees"') == 2
    assert "Each of our modules has the predicted parameters." in page
    deepseek = re.search(r'title="deepseek-v3".*?</tr>', table)[0]
    assert "DeepseekV3ForCausalLM −14,848" in deepseek
    assert 'class="mark differs"' in deepseek
    assert re.search(r'title="transformer-xl-large".*?"printed unexplained".*?</tr>', table)


def test_reasons_stand_on_the_page_in_words(page):
    text = str(Text(page))
    for words in (
        "a buffer there, not a parameter", "ties the head, against the config",
        "256,128 rows of the embedding", "copy of 8 times", "without the 119 scale vectors",
        "the model has 331M parameters",
    ):  # fmt: skip
        assert words in text


def test_what_is_unexplained_is_counted_at_the_top(page):
    top = page[: page.index('<section id="counting-ladder">')]
    assert "; 3 are unexplained" in top
    section = page[page.index('<section id="zoo">') :]
    for model in ("ALBERT xxlarge", "LSTM-8192-2048", "Transformer-XL large, WikiText-103"):
        assert re.search(rf'">{model}<small class="disagrees">printed', section)
        assert model in re.search(r'<b class="disagrees">3 are unexplained: (.*?)</b>', section)[1]


def test_the_page_of_named_sweeps_waits_for_nothing_else(shipped, catalogue, page):
    """Every section of it is in the page of all, and all its links lead somewhere in it."""
    parts = {name: part for name, part in shipped.parts.items() if name not in OF_ALL}
    named = render(shipped._replace(parts=parts), catalogue)
    sections = {p: set(re.findall(r'<section id="([\w-]+)"', p)) for p in (named, page)}
    assert sections[page] - sections[named] == {
        "what-if", "architecture", "gpt-2-ledger", "tying-surgery", "counting", "gpu-readings",
    }  # fmt: skip
    assert sections[named] < sections[page]
    for anchor in re.findall(r'href="#([^"]+)"', named):
        assert f'id="{anchor}"' in named


def test_equal_results_make_equal_pages(shipped, catalogue, page, static_parts):
    """Also where a part that all pages of a process share is computed again."""
    counting._of_models.cache_clear()
    backwards = shipped._replace(sweeps=shipped.sweeps[::-1])
    assert render(backwards, catalogue, static_parts(catalogue)) == page


def test_sweeps_stand_in_their_order(page):
    places = [page.index(f'<section id="{n}">') for n in ("counting-ladder", "zoo", "hybrid")]
    assert places == sorted(places)
    for anchor in re.findall(r'href="#([^"]+)"', page):
        assert f'id="{anchor}"' in page
    anchors = re.findall(r'<\w+ [^>]*\bid="([^"]+)"', page)
    assert sorted(set(anchors)) == sorted(anchors)


def test_nothing_is_fetched(page):
    assert all(not re.match(r"(?i)[a-z]+:|//", address) for address in Text(page).addresses), (
        "an address leads away from the folder of the report"
    )
    assert "default-src &#39;none&#39;" in page
    assert "unsafe" not in re.search(r'Content-Security-Policy" content="([^"]+)"', page)[1]
    assert "window.vega=" not in page
    assert unpacked(page, "vega").count("window.vega=") == 1


def test_a_title_is_text(one, catalogue):
    question = f"{EVIL} and *this*\n\n<img src=x onerror=alert(1)>"
    about = one.summary | {"title": EVIL, "question": question, "fixed": {"x": EVIL}}
    comparison = one.comparison.with_columns(label=pl.lit(EVIL))
    specs = {n: c.to_dict() for n, c in charts(about["axes"], comparison).items()}
    points = one.points.with_columns(label=pl.lit(EVIL))
    page = render(Results([SweepResult(about, points, comparison, specs.copy)]), catalogue)
    assert EVIL not in page
    text = Text(page)
    assert "img" not in text.tags
    plain = Text(render(Results([one]), catalogue))
    assert text.tags.count("script") == plain.tags.count("script")
    assert EVIL in str(text)
    assert "<em>this</em>" in page


def verdict_of(page: str) -> str:
    """The top of the page, and its section of verdicts."""
    top = page[: page.index("<main")]
    return top + page[page.index('<section id="verdict"') :].partition("</section>")[0]


def test_a_page_of_one_sweep_opens_with_its_question_chart_and_table(
    one, catalogue, open_page, tmp_path
):
    """And not with the models of the catalogue: the step, the stacks, the calculator."""
    path = tmp_path / "report.html"
    steps = dict.fromkeys((*STEP, *SHARED), None)  # of every run, but of no own sweep
    path.write_text(render(Results([one], parts=PARTS | steps), catalogue), encoding="utf-8")
    tab = open_page(path.as_uri(), 1280)
    assert tab.inner_text("h1") == one.summary["title"]
    ids = tab.eval_on_selector_all("main > section", "all => all.map((one) => one.id)")
    assert ids == ["sweep", "verdict", "appendix"]
    heading = tab.locator("#sweep").get_by_role("heading", level=2).first
    assert heading.inner_text() == one.summary["question"]
    assert "FLOPs" not in tab.inner_text("#verdict")  # only parameters were compared
    finding = tab.inner_text("#sweep figcaption h3")  # once, and not in the summary too
    assert tab.inner_text("#sweep").count(finding) == 1
    for place in ("#sweep [data-chart]", "#sweep .components table"):
        assert tab.query_selector(place).is_visible() or "components" in place
    assert tab.messages == []
    other = one._replace(summary=one.summary | {"name": "other", "title": "Another"})
    assert "<h1>2 sweeps</h1>" in render(Results([one, other]), catalogue)


def test_a_disagreement_is_red_at_the_top_and_in_the_exit_code(one, catalogue, tmp_path):
    wrong = one.comparison.with_columns(
        measured=pl.col("measured") + 7, difference=pl.lit(7), agrees=pl.lit(False)
    )
    results = Results([one._replace(comparison=wrong)])
    page = render(results, catalogue)
    top = verdict_of(page)
    assert '<section id="verdict" class="disagrees">' in top
    assert "0 of 2 predictions equal the measurement" in top
    row = top[top.index("Predictions that differ from the measurement") :]
    assert re.search(r'class="number red"[^>]*>1,287<', row)
    assert re.search(r'class="number red"[^>]*>7<', row)
    assert line(verdicts(results)) == "0 of 2 comparisons agree; DISAGREEMENT in sweep"
    path = tmp_path / "verdict.json"
    for found, code in ((results, DISAGREES), (Results([one]), 0)):
        path.write_text(json.dumps(verdict_file(found)))
        assert exit_code(path) == code
    assert exit_code(tmp_path / "none.json") == UNKNOWN
    assert line([]) == "nothing was measured: all is predicted"  # device: none had "0 of 0"
    assert line([Verdict("a", "A", 0, 0, {})]) == "nothing was compared"  # and so had a module


def test_agreement_within_a_tolerance_is_counted_separately(one, catalogue):
    near = one.comparison.with_columns(
        quantity=pl.lit("resident_bytes"), difference=pl.lit(1), percent=pl.lit(0.1)
    )
    results = Results([one._replace(comparison=near, charts=dict)])
    assert line(verdicts(results)).startswith("2 of 2 comparisons agree, 2 of them within 1 % (")
    page = str(Text(render(results, catalogue)))
    assert "2 of 2 predictions agree with the measurement" in page
    assert "equal the measurement" not in page
    assert "2 of them agree within 1 % (process memory)" in page
    assert "2 of 2 agree, 2 of them within tolerance" in page
    assert "of them" not in str(Text(render(Results([one]), catalogue)))


def test_what_could_not_be_measured_is_shown_with_its_reason(sweep, catalogue, tmp_path):
    """At the top, in its section and for a terminal; it is no disagreement, and nothing agrees."""
    expanded = sweep("base: embedding\nfixed: {n_vocab: 256}\ngrid: {d_model: [5, 7]}\n")
    whole = result(tmp_path / "sweep.yaml", catalogue)
    points, lost = points_table(expanded.points), expanded.points[1]
    predicted = predict(points, ["parameters", "parameter_bytes"])
    measured = predicted.filter(pl.col("architecture") != lost.architecture.digest()).select(
        "architecture", "run", "component", "quantity", value="predicted",
        method=pl.lit("meta"), shared_with=pl.lit(None, pl.String),
    )  # fmt: skip
    failures = [
        {"architecture": lost.architecture.digest(), "run": lost.run.digest(),
         "quantity": quantity, "failure": "<killed> by signal 9"}
        for quantity in ("parameters", "parameter_bytes")
    ]  # fmt: skip
    comparison = compare(points, predicted, measured, ["d_model"], failures)
    results = Results([whole._replace(comparison=comparison)])
    assert line(verdicts(results)) == (
        "2 of 2 comparisons agree; COULD NOT BE MEASURED: 1 in sweep"
    )
    reason = "d_model = 7: parameter_bytes, parameters: <killed> by signal 9"
    assert failure_lines(results) == [f"sweep: {reason}"]
    page = render(results, catalogue)
    top, section = verdict_of(page), page.split('<section id="sweep">')[1]
    assert '<p class="banner"><a class="disagrees"' in top
    assert '<a href="#sweep">1 of A test</a>' in top
    assert f"<li>sweep: {reason.replace('<', '&lt;').replace('>', '&gt;')}</li>" in top
    assert "Predictions that differ from the measurement" not in top
    assert "d_model = 7" in section
    assert "parameter_bytes, parameters" in section
    assert "&lt;killed&gt; by signal 9" in section
    assert "d_model = 5: 1,280 parameters" in section  # the larger one was not measured

    of_all = compare(points, predicted, measured.clear(), ["d_model"], [
        one | {"architecture": point.architecture.digest()}
        for point in expanded.points for one in failures
    ])  # fmt: skip
    page = render(Results([whole._replace(comparison=of_all, charts=dict)]), catalogue)
    assert "0 of 0 predictions" in page
    assert "2 of A test" in page


def test_a_disagreement_outside_the_sweeps_is_shown_too(one, catalogue):
    wrong = LEDGER.with_columns(agrees=pl.col("module") != "lm_head", true=pl.lit(9))
    page = render(Results([one], parts={"gpt-2-ledger/ledger.parquet": wrong}), catalogue)
    start = page.index("Predictions that differ from the measurement")
    assert "lm_head" in page[start:].partition("</table>")[0]


def test_a_row_that_neither_side_knows_does_not_agree(one):
    empty = one.comparison.with_columns(agrees=pl.lit(None, pl.Boolean))
    assert line(verdicts(Results([one._replace(comparison=empty)]))).startswith("0 of 2")


def test_what_is_missing_is_left_out(one, catalogue):
    page = render(Results([one]), catalogue)
    for section in ("gpt-2-ledger", "tying-surgery", "provenance"):
        assert section not in re.sub(r"<script.*?</script>|<style.*?</style>", "", page, flags=re.S)
    nothing = one.comparison.with_columns(
        measured=pl.lit(None, pl.Int64), method=pl.lit(None, pl.String), agrees=pl.lit(False)
    )
    page = render(Results([SweepResult(one.summary, one.points, nothing, dict)]), catalogue)
    assert "No chart: nothing was measured" in page
    assert "not measured: failed" in page


def test_without_a_sweep_the_page_says_how_to_begin(catalogue, static_parts):
    page = render(Results([]), catalogue, static_parts(catalogue))
    assert "Nothing has been measured yet" in str(Text(page))
    assert 'id="what-if"' in page
    assert re.search(r"one YAML file in configs/sweeps/ ?; make report fills", str(Text(page)))


def unpacked(page: str, name: str) -> dict:
    """Data of the page, read the way that its scripts do."""
    text = re.search(f'data-packed="{name}">([^<]*)<', page)[1]
    assert not set(text) & set("\0\r<")
    bits = "".join(f"{ord(one) % 128:07b}" for one in text)
    numbers = [int(bits[i : i + 8], 2) for i in range(0, len(bits) - 7, 8)]
    return json.loads(zlib.decompress(bytes(numbers)))


def test_what_is_read_of_packed_data_is_what_was_written():
    data = {"a": [0.5] * 30, "b": ["\u2009", None, True, {"c": "<\r\0"}], "d": "-" * 99}
    assert unpacked(f'data-packed="x">{packed(data)}<', "x") == data


def test_datasets_stand_once(page):
    data = unpacked(page, "charts")
    used = [one for spec in data["specs"].values() for one in spec["data"]]
    assert {one["name"] for one in used} >= data["datasets"].keys() != set()
    assert not any(one.get("values") for one in used)


def test_a_table_of_components_stands_once(page):
    """PaLM is the largest published model of several sweeps."""
    captions = re.findall(r"<caption>(Components of [^<]*)</caption>", page)
    assert sorted(set(captions)) == sorted(captions)


def test_no_line_ends_between_a_number_and_its_unit(page):
    shown = re.sub(r"<(script|style).*?</\1>", "", page, flags=re.S)
    body = shown[shown.index("<body>") :]
    assert re.findall(r"\d (?:%|[kMGT]?B\b|[MGTPE]?FLOP\b)", body) == []
    assert "\u00a0%" in body


@pytest.fixture(scope="module")
def address(page, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page, encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def opened(open_page, address):
    """Opens the page from disk."""
    return lambda width, scheme="light": open_page(address, width, scheme)


@pytest.fixture
def saving_tab(read_page, address):
    """The tab of tests that point and save, which changes nothing that the others see."""
    return read_page(address, 1280)


WIDE = {"light": 1280, "dark": 1500}
"""Width of the tab of each scheme that tests only read."""


@pytest.fixture
def read_only(read_page, address):
    """Return a tab with all charts drawn, which tests of a scheme share and do not change."""

    def read(scheme: str = "light"):
        tab = read_page(address, WIDE[scheme], scheme)
        scroll_and_wait(tab)
        return tab

    return read


@pytest.mark.parametrize("scheme", WIDE)
def test_a_browser_draws_every_chart(read_only, shipped, scheme):
    tab = read_only(scheme)
    check_charts(tab, tab.query_selector_all("[data-chart]"), shipped)


def check_charts(tab, places: list, shipped: Results) -> None:
    of_conventions = 1
    assert len(places) == sum(len(sweep.charts()) for sweep in shipped.sweeps) + of_conventions
    for place in places:
        assert place.evaluate(DRAWN)
        box = place.query_selector("svg").bounding_box()
        assert box["height"] > 40
        assert place.evaluate("p => p.scrollWidth <= p.clientWidth"), place.get_attribute(
            "data-chart"
        )
        # Only this sees a chart that keeps the width at which it was compiled.
        assert box["width"] > 0.9 * place.bounding_box()["width"]
        label = place.query_selector("svg").get_attribute("aria-label") or place.get_attribute(
            "aria-label"
        )
        assert any(character.isdigit() for character in label or "")
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert tab.messages == []
    assert all(url.startswith("file:") for url in tab.requests)


def drawn(tab, chart: str):
    """A chart, once its closed section is open and it is drawn."""
    tab.evaluate("name => { location.hash = `#${name}` }", chart)
    tab.wait_for_selector(f"[data-chart={chart}] svg path", state="attached")
    return tab.query_selector(f"[data-chart={chart}]")


def test_colours_follow_the_readers_scheme(read_only):
    colours = {
        scheme: read_only(scheme).eval_on_selector(
            "[data-chart=hybrid-shares] :is(.mark-rect path, .mark-area path)",
            "path => getComputedStyle(path).fill",
        )
        for scheme in WIDE
    }
    assert colours["light"] != colours["dark"]


def test_a_pointer_gets_exact_numbers(saving_tab):
    area = drawn(saving_tab, "hybrid-shares")
    area.scroll_into_view_if_needed()
    box = area.bounding_box()
    saving_tab.mouse.move(box["x"] + 100, box["y"] + 120)
    saving_tab.mouse.move(box["x"] + 110, box["y"] + 120)
    tooltip = saving_tab.wait_for_selector("#vg-tooltip-element.visible")
    assert re.search(r"\d{1,3}(,\d{3})+", tooltip.inner_text())
    assert saving_tab.messages == []


def test_formulas_are_drawn_as_mathematics(read_only):
    tab = read_only()
    box = tab.query_selector("math msub").bounding_box()
    assert 8 < box["width"] < 120
    assert 8 < box["height"] < 40


LABELS = """place => {
  const drawing = place.querySelector("svg");
  const box = drawing.getBoundingClientRect();
  const shown = [...drawing.querySelectorAll("text")]
    .map((text) => [text.textContent.trim(), text.getBoundingClientRect()])
    .filter(([text, one]) => text && one.width > 0);
  const found = [];
  shown.forEach(([text, one], i) => {
    const inside = one.left > box.left - 1 && one.right < box.right + 1;
    if (!inside || one.top < box.top - 1 || one.bottom > box.bottom + 1) found.push(`cut: ${text}`);
    for (const [other, two] of shown.slice(i + 1)) {
      const wide = Math.min(one.right, two.right) - Math.max(one.left, two.left);
      const high = Math.min(one.bottom, two.bottom) - Math.max(one.top, two.top);
      if (wide > 1 && high > 3 && text !== other) found.push(`${text} on ${other}`);
    }
  });
  return found;
}"""
"""Labels of a chart that leave its drawing or cover each other; a name and its halo are equal."""


@pytest.mark.parametrize("width", [WIDE["dark"], 390])
def test_no_label_is_cut_or_covered_and_one_model_is_highlighted_everywhere(
    read_page, address, shipped, width
):
    """The wide tab is that of `read_only`, and left as it was."""
    tab = read_page(address, width, "dark")
    places = scroll_and_wait(tab)
    check_charts(tab, places, shipped)
    assert len(places) == 8
    assert {place.get_attribute("data-chart"): place.evaluate(LABELS) for place in places} == {
        place.get_attribute("data-chart"): [] for place in places
    }
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    tab.fill("#highlight input", "palm 540b")
    drawing = tab.query_selector("[data-chart=zoo-models] svg.marked")
    assert drawing.query_selector("path.found") is not None
    assert tab.query_selector(".models th.found").get_attribute("title") == "palm-540b"
    tab.fill("#highlight input", "")
    assert tab.query_selector(".found") is None
    tab.hover("[data-chart=named-models-models] .mark-rect path >> nth=0")
    found = (
        "[...document.querySelectorAll('svg path.found')].map((one) => one.__data__.datum.label)"
    )
    assert set(tab.evaluate(found)) == {"GPT-2 124M"}
    marked = tab.query_selector_all("[data-chart]:has(svg.marked)")
    of_models = {"named-models-models", "zoo-models"}  # all charts whose marks are single models
    assert {place.get_attribute("data-chart") for place in marked} == of_models
    tab.set_viewport_size({"width": width // 2, "height": 450})  # a zoom of 200 %
    settle(tab)
    assert width < 1000 or tab.evaluate("document.documentElement.scrollWidth") <= width // 2
    assert tab.messages == []
    tab.mouse.move(0, 0)
    tab.set_viewport_size({"width": width, "height": 900})
    settle(tab)


TOP = "name => document.getElementById(name).getBoundingClientRect().top"


@pytest.mark.parametrize(
    "width", [1440, *(pytest.param(width, marks=pytest.mark.slow) for width in (1000, 390))]
)
def test_a_link_into_a_closed_section_opens_it_and_lands(opened, width):
    """Far down, below sections that are open, and in what is folded within a section."""
    tab = opened(width)
    address = tab.url
    assert tab.query_selector("[data-chart] svg") is None  # closed sections draw nothing
    for name in ("hybrid", "hybrid-shares", "zoo-models", "step", "what-if", "hybrid-components"):
        if tab.query_selector(f"#{name}") is None:
            continue
        tab.goto("about:blank")  # a reload would scroll back
        tab.goto(f"{address}#{name}")
        settle(tab)
        place = tab.query_selector(f"#{name}")
        assert place.is_visible()
        bottom = tab.evaluate("document.documentElement.scrollHeight - innerHeight - scrollY")
        assert abs(tab.evaluate(TOP, name) - 16) < 2 or bottom < 2, name
        drawn = [one.evaluate(DRAWN) for one in tab.query_selector_all("#hybrid [data-chart]")]
        assert any(drawn) == name.startswith("hybrid")
    tab.evaluate("location.hash = '#zoo-models'")
    settle(tab)
    assert abs(tab.evaluate(TOP, "zoo-models") - 16) < 2
    assert tab.messages == []


def test_the_file_is_enough(page):
    """Sent alone, it has no link to another file, and a social card without a picture."""
    for name in ("title", "description"):
        assert re.search(f'<meta property="og:{name}" content="[^"]+"', page)
    assert "og:image" not in page
    assert all(address.startswith("#") for address in Text(page).addresses)


def test_the_acts_need_no_script_and_print_at_once(open_page, address):
    tab = open_page(address, script=False)
    for media in ("screen", "print"):
        tab.emulate_media(media=media)
        for drawing in tab.query_selector_all(".act svg"):
            assert drawing.bounding_box()["height"] > 5
        assert tab.is_visible("#what-they-do .stack")
        assert tab.is_visible("#what-decides .scatter")
    assert not tab.is_visible("#zoo")  # closed: it is not printed
    unfold(tab)
    assert tab.is_visible("#zoo")


TEXTS = "places => places.map((place) => place.textContent)"


def test_a_chart_is_saved_with_its_title_and_its_source(saving_tab):
    """The legend of the page is outside of the drawing, and long lines would make the file wide."""
    saving_tab.evaluate("location.hash = '#hybrid-shares'")
    groups = saving_tab.eval_on_selector_all("#hybrid-shares .legend li", TEXTS)
    for kind in ("svg", "png"):
        with saving_tab.expect_download() as download:
            saving_tab.click(f"#hybrid-shares [data-file={kind}]")
        content = download.value.path().read_bytes()
        assert download.value.suggested_filename == f"hybrid-shares.{kind}"
        if kind == "svg":
            assert content.decode().count("<path") > 10
            assert saving_tab.inner_text("#hybrid-shares h3") in content.decode()
            assert "Source: modelbudget, commit 0123abc" in content.decode()
            assert b"var(--" not in content
            assert {*groups} <= {*re.findall(r">([^<]+)</text>", content.decode())}
            assert int(re.search(r'width="(\d+)', content.decode())[1]) < 900
        else:
            assert content.startswith(b"\x89PNG")
            assert len(content) > 10_000
    assert saving_tab.messages == []


ONE_ROW_OF_EACH_KIND = """() => {
  const kinds = new Set();
  for (const row of document.querySelectorAll("tbody tr")) {
    const parts = [row.closest("table"), row, ...row.querySelectorAll("*")];
    const kind = parts
      .map((part) => [part.tagName, part.getAttribute("class"), part.getAttribute("style")])
      .join();
    if (kinds.has(kind)) row.remove();
    kinds.add(kind);
  }
}"""
"""Of rows that differ in text alone the first stays."""
STATUSES = """() => [...new Set([...document.querySelectorAll("[data-status]")].map(
  (row) => row.dataset.status))].sort()"""


@pytest.mark.parametrize(
    ("width", "scheme"), [pytest.param(1280, "light", marks=pytest.mark.slow), (390, "dark")]
)
def test_axe_finds_nothing(opened, width, scheme):
    """axe-core's rules: names, roles, contrast, keyboard; everything unfolded, no legal model."""
    tab = opened(width, scheme)
    scroll_and_wait(tab)
    tab.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    start(tab, "[aria-label='n_kv_head']")
    tab.fill("[aria-label='n_kv_head']", "7")
    assert "does not divide" in tab.inner_text("#calculator-answer")
    if not ALL:
        statuses = tab.evaluate(STATUSES)
        tab.evaluate(ONE_ROW_OF_EACH_KIND)
        assert tab.evaluate(STATUSES) == statuses
    assert violations(tab) == []


def shown(tab) -> list[str]:
    """Names of the models whose rows are visible, in order."""
    return tab.eval_on_selector_all(
        ".models tr[data-status]",
        "rows => rows.filter(row => row.checkVisibility()).map(row => row.cells[0].title)",
    )


def test_models_are_found_and_sorted(opened):
    tab = unfold(opened(1280))
    everything = shown(tab)
    tab.locator(".models").scroll_into_view_if_needed()
    tab.fill(".finder input", "gpt-2")
    assert shown(tab) == ["gpt-2-124m", "gpt-2-355m", "gpt-2-774m", "gpt-2-1558m"]
    tab.fill(".finder input", "llama 3")
    assert {"llama-3-8b", "llama-3-70b", "llama-3.1-405b"} <= set(shown(tab))
    assert not [name for name in shown(tab) if "llama-3" not in name]
    tab.fill(".finder input", "gpt-2")
    tab.click(".models thead th:nth-child(2) button")
    tab.click(".models thead th:nth-child(2) button")
    assert shown(tab) == ["gpt-2-1558m", "gpt-2-774m", "gpt-2-355m", "gpt-2-124m"]
    assert tab.query_selector(".models [aria-sort=descending]").inner_text().startswith("predicted")
    tab.fill(".finder input", "")
    tab.click(".models thead th:nth-child(2) button")  # the third time: in its own order again
    assert shown(tab) == everything
    assert tab.messages == []


def test_an_unexplained_difference_is_red(read_only):
    tab = read_only()
    red, green, blue = tab.evaluate(
        "getComputedStyle(document.querySelector('.printed.unexplained')).color.match(/\\d+/g)"
    )
    assert int(red) > 2 * int(green)
    assert int(red) > 2 * int(blue)


def test_without_a_script_all_models_are_there(open_page, address, shipped):
    tab = unfold(open_page(address, script=False))
    models = next(sweep.zoo for sweep in shipped.sweeps if sweep.zoo is not None)
    assert shown(tab) == models["model"].to_list()
    assert not tab.is_visible(".finder")


def test_what_is_predicted_alone_says_so(one, catalogue, tmp_path):
    """Its own section, with charts and formulas, and no part in what was compared."""
    path = tmp_path / "alone.yaml"
    path.write_text(
        "title: Never built\nquestion: How many?\nbase: llama-3\nfixed: {n_vocab: 32000}\n"
        "grid: {n_layer: [1, 2], d_model: [128, 256], tied: [true, false]}\n"
        "derive: {n_head: d_model / 64, n_kv_head: n_head, d_ff: 4 * d_model}\n"
        "measure: {device: none, quantities: [parameters]}\n"
    )
    alone = predicted(read(path, catalogue))
    along = AxisSummary(alone.sweep.axes(), ["parameters"], groups_of(alone))
    for rows in frames(alone, 1):
        along.add(rows)
    drawn = predicted_charts(along.totals(), along.shares())
    specs = {name: chart.to_dict() for name, chart in drawn.items()}
    results = Results([one], predicted=[PredictedResult(summary_of(alone, along.rows), specs.copy)])
    page = render(results, catalogue)
    section = page[page.index('<section id="alone">') :].partition("</section>")[0]
    assert "all 8 models are predicted by the formulas below, and none was instantiated" in section
    assert section.count("<figure") == len(specs) == 2
    assert "layer.mlp.gate" in section
    assert "tied" in section[section.index("<math>") :]  # varies, so it stays in the formulas
    assert '<a href="#alone">Never built</a>' in page[: page.index("<main")]
    verdict = page[page.index('<section id="verdict"') :].partition("</section>")[0]
    assert "Never built" not in verdict
