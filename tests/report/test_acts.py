"""The acts of the story: what they draw and say, counted again from the data."""

import re
from typing import NamedTuple

import polars as pl
import pytest
from helpers.page import Text, violations
from helpers.project import ROOT
from helpers.results import PARTS, result

from modelbudget.architecture.run_config import RunConfig
from modelbudget.common.paths import SWEEPS
from modelbudget.families.decoder import Decoder
from modelbudget.measurement.build import build
from modelbudget.measurement.parallel.rank import of_rank, trace_step_of_rank
from modelbudget.measurement.step.train import train
from modelbudget.measurement.trace.step_trace import RESIZED, trace_step
from modelbudget.report import page as page_of_report
from modelbudget.report.model_stack import picture
from modelbudget.report.page import render
from modelbudget.report.page_results import Results
from modelbudget.report.sections import sections
from modelbudget.report.sections.picture_to_scale import two_stacks
from modelbudget.report.sections.step import SHARED as SHARED_STEP
from modelbudget.report.sections.step import STEP

MODELS = """
headline: PaLM 540B
fixed: {dtype: bfloat16, master_weights: true, attention_kernel: flash}
points: [{base: gpt-2-124m}, {base: mixtral-8x7b}, {base: llama-3-8b}, {base: palm-540b}]
measure: {quantities: [parameters, parameter_bytes, gradient_bytes, optimizer_bytes,
  activation_bytes, flops_forward, flops_backward, cache_bytes]}
"""
RUN = RunConfig(length=16, autocast="bfloat16", attention_kernel="flash", foreach=True)
SHARED = RunConfig(
    length=16, dtype="bfloat16", master_weights=True, attention_kernel="flash", foreach=True,
    data_parallel=4, zero=3,
)  # fmt: skip
SMALL = Decoder(
    n_vocab=64, d_model=16, n_layer=2, n_head=2, n_kv_head=2, d_head=8, d_ff=64, n_ctx=16
)


class StepTrace(NamedTuple):
    """What a traced step is of, and its table of allocations."""

    about: dict
    allocations: pl.DataFrame


@pytest.fixture(scope="module")
def step() -> StepTrace:
    traced = trace_step(build(SMALL, "meta", "float32"), RUN)
    allocations = pl.DataFrame(traced.pop("allocations"), infer_schema_length=None)
    return StepTrace(traced | {"label": "Small", "run": RUN.model_dump()}, allocations)


@pytest.fixture(scope="module")
def shared_step() -> StepTrace:
    traced = trace_step_of_rank(SMALL, SHARED)
    allocations = pl.DataFrame(traced.pop("allocations"), infer_schema_length=None)
    return StepTrace(traced | {"label": "Small", "run": SHARED.model_dump()}, allocations)


@pytest.fixture(scope="module")
def page(catalogue, tmp_path_factory, step, shared_step) -> str:
    steps = dict(zip((*STEP, *SHARED_STEP), (*step, *shared_step), strict=True))
    path = tmp_path_factory.mktemp("sweep") / "sweep.yaml"
    path.write_text("title: A test\nquestion: Why?\n" + MODELS)
    return render(Results([result(path, catalogue)], parts=PARTS | steps), catalogue)


def live(step: StepTrace, at: int) -> pl.DataFrame:
    return step.allocations.filter(
        pl.col("start") <= at, pl.col("end").is_null() | (pl.col("end") > at)
    )


def test_allocations_have_the_peaks_of_a_trace_without_them(step, shared_step):
    values = train(build(SMALL, "meta", "float32"), RUN, {"peak_training_bytes"})
    _, of_device = of_rank(SMALL, SHARED, {"peak_training_bytes"})
    for one, expected in ((step, values), (shared_step, of_device)):
        assert one.about["peaks"] == expected["peak_training_bytes"]
        for phase in one.about["phases"]:
            operations = range(phase["first"], phase["last"] + 1)
            assert phase["peak"] == max(live(one, at)["bytes"].sum() for at in operations)


def test_a_device_holds_shards_and_gathers_parameters(shared_step):
    n = sum(parameter.numel() for parameter in build(SMALL, "meta", "float32").parameters())
    allocations = shared_step.allocations
    whole = allocations.filter(kind="gathered_parameters", operation=RESIZED, phase=5)
    shards = allocations.filter(kind="parameters", phase=0)
    assert shards["bytes"].sum() == 4 * n // 4
    assert whole["bytes"].sum() == 2 * n  # second forward, in bfloat16, each layer once


def test_allocations_are_named_after_what_they_are_for(step):
    model = build(SMALL, "meta", "float32")
    sizes = [parameter.numel() for parameter in model.parameters()]
    optimizer = step.about["phases"][-1]
    held = dict(
        live(step, optimizer["first"]).group_by("kind").agg(pl.col("bytes").sum()).iter_rows()
    )
    assert held["parameters"] == held["gradients"] == 4 * sum(sizes)
    assert held["optimizer_states"] == 8 * sum(sizes) + 4 * len(sizes)  # moments, and steps
    made = step.allocations.filter(pl.col("operation").str.ends_with("_foreach_sqrt"))
    assert set(made["kind"]) == {"temporary"}
    assert made["bytes"].sum() == 2 * 4 * sum(sizes)  # in both steps


def test_titles_are_findings_of_the_data(page, step, shared_step):
    text = str(Text(page))
    palm = 540_356_474_880
    assert round(10 * 481_069_891_584 / palm) == 9
    assert "Nine in ten parameters of PaLM 540B work on each token alone (MLP)" in text
    assert (
        f"In PaLM 540B, {100 * 54_565_797_888 / palm:.1f} % let tokens look at each other "
        f"(attention), and {100 * 4_718_592_000 / palm:.2f} % are the table"
    ) in re.sub(r" (?=[,)])|(?<=\() ", "", text.replace("\u00a0", " "))
    n = step.about["n_parameters"]
    peaks = {phase["name"]: phase["peak"] for phase in step.about["phases"][-3:]}
    worst = max(peaks, key=peaks.__getitem__)
    where = {"optimizer": "step of AdamW"}.get(worst, f"{worst} pass")
    title = f"A training step of Small peaks at {peaks[worst] / 1e3:.3g} kB, in the {where}"
    assert title in text.replace("\u00a0", " ")
    last = step.about["phases"][-1]
    kept = live(step, last["first"])
    kept = kept.filter(~pl.col("kind").is_in(["temporary", "activations"]))["bytes"].sum()
    most, least = (f"{size / n:.1f}".removesuffix(".0") for size in (last["peak"], kept))
    assert f"AdamW has {most} bytes a parameter , {least} of which stay from step to step" in text
    assert "aten._foreach_sqrt" in text
    whole, part = (
        max(phase["peak"] for phase in one.about["phases"][-3:]) for one in (step, shared_step)
    )
    text = text.replace("\u00a0", " ")
    assert f"On each of 4 devices with shards, the peak is {part / 1e3:.3g} kB instead" in text
    assert f"instead of {whole / 1e3:.3g} kB" in text


def test_every_colour_of_a_step_is_in_the_legend_above_it(page):
    act = page[page.index('<section id="step"') :].partition('<p class="whose">')[0]
    of_whole, of_device = act.split('<ul class="legend"')[1:]
    for part in (of_whole, of_device):
        named, drawn = part.split("</ul>", 1)
        drawn = re.findall(r'<path class="(group-\d+)"', drawn)
        assert set(drawn) == set(re.findall(r"swatch (group-\d+)", named))
    assert "gathered parameters" in of_device
    assert "gathered parameters" not in of_whole


def test_the_area_of_each_part_is_in_proportion(page):
    """Width × height of each band against the parameters that its title names."""
    act = page[page.index('<section id="what-they-do"') :].partition("</section>")[0]
    small, palm = (one.partition("</svg>")[0] for one in act.split('<svg class="stack"')[1:])
    band = re.compile(
        r'd="M[\d.]+ [\d.]+v([\d.]+)" stroke-width="([\d.]+)".*?'
        r"<title>(\S+): .*?([\d,]+) parameters"
    )
    for drawn, total in ((small, 124_439_808), (palm, 540_356_474_880)):
        parts = band.findall(drawn)
        assert sum(int(n.replace(",", "")) for *_, n in parts) == total
        for height, width, name, n in parts:
            area = float(height) * float(width) / (400 * 100)
            assert area == pytest.approx(int(n.replace(",", "")) / total, abs=2e-4), name
    assert "18,432 × 73,728, " in palm  # of the shape that the paper prints


def test_the_picture_of_the_readme_is_the_one_of_the_page(catalogue):
    """`make picture` was run since numbers or drawing changed."""
    sweep = result(SWEEPS / "named-models.yaml", catalogue)
    stacks = two_stacks([sweep])
    assert (ROOT / "docs" / "parameters.svg").read_text(encoding="utf-8") == picture(stacks)


OVERLAPS = """(act) => {
  const box = (one) => one.getBoundingClientRect();
  const [names, dots] = ["text.name", "circle, rect"].map((of) => [...act.querySelectorAll(of)]);
  const isApart = (a, b) => a.left >= b.right || a.top >= b.bottom;
  const covers = (a, b) => !isApart(a, b) && !isApart(b, a);
  const others = (name) => [...dots, ...names].filter((one) => one !== name);
  const covered = (name) => others(name).some((one) => covers(box(name), box(one)));
  return [names.length, names.filter(covered).map((name) => name.textContent)];
}"""
CUT = """[...document.querySelectorAll(".act :is(h3, td), .tools, .tools select")]
  .filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.textContent)"""
"""Texts of acts and controls that a narrow window cuts, while the page itself does not scroll."""
CROWD = """
headline: PaLM 540B
points: [{base: gpt-2-124m}, {base: palm-540b}, {base: gopher-280b}, {base: gpt-3-175b},
  {base: bloom-176b}, {base: falcon-7b}, {base: falcon-40b}, {base: falcon-180b}, {base: opt-175b},
  {base: llama-3-8b}, {base: llama-3-70b}, {base: llama-3.1-405b}, {base: llama-2-7b},
  {base: mistral-7b-v0.1}, {base: gemma-7b}, {base: mpt-7b}, {base: gpt-j-6b}]
"""


def test_no_name_covers_a_dot_or_another_name(catalogue, open_page, tmp_path):
    """The drawing of act 2, wide and narrow. Only this sees a name that hides a model."""
    sweep, path = tmp_path / "sweep.yaml", tmp_path / "report.html"
    sweep.write_text("title: A test\nquestion: Why?\n" + CROWD)
    shown = render(Results([result(sweep, catalogue)], parts=PARTS), catalogue)
    path.write_text(shown, encoding="utf-8")
    for width in (1280, 700):
        tab = open_page(path.as_uri(), width)
        n_names, covered = tab.eval_on_selector("#what-decides .scatter", OVERLAPS)
        assert n_names > 4
        assert covered == []


def test_acts_have_one_recipe_and_the_calculator_has_their_numbers(
    catalogue, static_parts, open_page, tmp_path, monkeypatch
):
    """Acts 3, 5 and 6 of one model and run: the same bytes, digit by digit.

    Without two sections of the appendix, whose predictions are of no act and cost half.
    """
    shown = {
        name: of for name, of in sections().items() if name not in ("gpu_readings", "counting")
    }
    monkeypatch.setattr(page_of_report, "sections", lambda: shown)
    recipes, savings = (result(SWEEPS / f"{n}.yaml", catalogue) for n in ("recipes", "savings"))
    sweeps = [recipes, with_peaks(savings)]
    path = tmp_path / "report.html"
    page = render(Results(sweeps), catalogue, static_parts(catalogue))
    path.write_text(page, encoding="utf-8")
    tab = open_page(path.as_uri(), 1280)
    lines = {
        act: tab.inner_text(f"#{act} .whose").partition("Llama 3 8B · ")[2].partition(" tokens")[0]
        for act in ("cost", "what-to-do")
    }
    assert len(set(lines.values())) == 1
    assert lines["cost"].startswith("bfloat16 throughout · AdamW")
    assert "1 × 8,192" in lines["cost"]
    rows = tab.eval_on_selector_all("#cost tbody tr", "rows => rows.map(row => row.innerText)")
    bounded = [row for row in rows if "–" in row]  # without the temporary tensors of 8-bit states
    assert bounded == [row for row in rows if "≥ 6" in row] != []
    links = tab.query_selector_all("#what-to-do td a")
    assert len(links) > 5
    tab.select_option("#what-to-do select", "Llama 3 70B")  # whose numbers are predicted
    title = tab.inner_text("#what-to-do h2").replace("\u00a0", " ")
    assert title.startswith("A step of Llama 3 70B takes 706 GB")
    for link in [*tab.query_selector_all("#what-to-do td a")[:3], *links]:
        exact = link.get_attribute("title").partition(" bytes")[0]
        label = link.evaluate("one => one.closest('tr').innerText")
        tab.evaluate("address => { location.hash = address }", link.get_attribute("href"))
        tab.wait_for_function("n => document.querySelector('#fit-answer p')?.title.startsWith(n)",
                              arg=exact, timeout=20_000)  # fmt: skip
        assert tab.get_attribute("#fit-answer p", "title").startswith(exact), label
    tab.set_viewport_size({"width": 320, "height": 600})
    tab.evaluate("document.querySelector('#calculator .fields').open = true")
    assert tab.evaluate(CUT) == []
    assert tab.messages == []


def with_peaks(sweep):
    """A sweep whose points have formulas, and at their peak the peak, as one kind of bytes."""
    peaks = sweep.comparison.filter(quantity="peak_training_bytes").drop_nulls("predicted")
    whole = peaks.sort("predicted").unique("point", keep="last", maintain_order=True)
    whole = whole.with_columns(quantity=pl.lit("bytes_at_peak"), component=pl.lit("parameters"))
    known = pl.col("point").is_in(whole["point"].implode())
    others = sweep.comparison.filter(known, pl.col("quantity") != "bytes_at_peak")
    comparison = pl.concat([others, whole]).sort("point", maintain_order=True)
    return sweep._replace(comparison=comparison, points=sweep.points.filter(known))


def texts_of_saved(tab, place: str) -> list[str]:
    """The texts of a drawing that a reader saves."""
    with tab.expect_download() as download:
        tab.click(f"{place} [data-drawing=svg]")
    drawing = download.value.path().read_text(encoding="utf-8")
    return re.findall(r">([^<]+)</t(?:ext|span)>", drawing)


def test_the_slider_and_the_cursor(page, step, open_page, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(page, encoding="utf-8")
    tab = open_page(path.as_uri(), 1280)
    assert "PaLM 540B" in tab.inner_text("#what-decides .stop")
    tab.focus("#what-decides input")
    tab.keyboard.press("Home")
    assert "GPT-2 124M 31.0 % token embedding" in " ".join(
        tab.inner_text("#what-decides .stop").split()
    )
    drawn = "[...document.querySelectorAll('#what-they-do figure')].map((one) => one.innerHTML)"
    first, second = tab.evaluate(drawn)  # the slider draws what the page has drawn without it
    paths = [
        re.findall(r"<title>([\w.]+)[^<]*?([\d,]+) parameters", one) for one in (first, second)
    ]
    assert paths[0] == paths[1]
    with tab.expect_download() as download:
        tab.click("[data-picture=png]")
    assert download.value.path().read_bytes().startswith(b"\x89PNG")
    for place in ("#what-decides", "#step", "#step .shared"):
        title, *legend = texts_of_saved(tab, place)
        assert tab.inner_text(f"{place} :is(h2, h3)") == title
        named = tab.query_selector_all(f"{place} > .legend li")
        assert [one.text_content() for one in named] == legend[: len(named)] != []
    peaks = [phase["peak"] for phase in step.about["phases"][-3:]]
    assert tab.get_attribute("#step .here b", "title") == f"{max(peaks):,} bytes"
    for card, peak in zip(tab.query_selector_all("#step .peaks .peak"), peaks, strict=True):
        card.hover()
        assert tab.get_attribute("#step .here b", "title") == f"{peak:,} bytes"
    tab.focus("#step input")
    tab.keyboard.press("Home")
    assert "Operation 1, forward" in tab.inner_text("#step .here")
    for term in tab.query_selector_all("a.term"):
        assert tab.query_selector(term.get_attribute("href")) is not None
    term = tab.query_selector("#step a.term")
    term.focus()
    shown = term.evaluate("one => getComputedStyle(one, '::after').content")
    assert shown.startswith(f'"{term.inner_text()}: ')
    assert violations(tab) == []
    tab.set_viewport_size({"width": 320, "height": 600})
    tab.eval_on_selector("#step .here h3", "one => one.append('aten._log_softmax_backward_data')")
    assert tab.evaluate(CUT) == []
    assert tab.messages == []
