"""The acts of the story: what they draw and say, counted again from the data."""

import re
from itertools import product
from typing import NamedTuple

import polars as pl
import pytest
from helpers.page import Text, violations
from helpers.results import PARTS, result

from modelbudget.architecture.run_config import RunConfig
from modelbudget.families.decoder import Decoder
from modelbudget.measurement.build import build
from modelbudget.measurement.parallel.rank import of_rank
from modelbudget.measurement.parallel.step_trace import RESIZED, trace_step_of_rank
from modelbudget.measurement.step_trace import trace_step
from modelbudget.measurement.train import train
from modelbudget.report.page import render
from modelbudget.report.results import Results
from modelbudget.report.sections.sizes import PLAIN
from modelbudget.report.sections.step import SHARED as SHARED_STEP
from modelbudget.report.sections.step import STEP
from modelbudget.sweeps.points_table import rows

MODELS = """
headline: PaLM 540B
fixed: {dtype: bfloat16, master_weights: true, attention_kernel: flash}
points: [{base: gpt-2-124m}, {base: mixtral-8x7b}, {base: llama-3-8b}, {base: palm-540b},
  {base: gpt-2-124m, n_vocab: 8, d_model: 4, n_head: 1, d_head: 8, d_ff: 4, label: Tiny}]
measure: {quantities: [parameters, parameter_bytes, gradient_bytes, optimizer_bytes,
  activation_bytes, flops_forward, flops_backward, cache_bytes]}
"""
SAVINGS = """
base: llama-3-8b
fixed: {n_vocab: 512, d_model: 32, n_layer: 2, n_head: 4, d_head: 8, d_ff: 64, n_ctx: 512,
  dtype: bfloat16, foreach: false, attention_kernel: math, length: 512}
points:
  - {label: Small, n_kv_head: 4}
  - {label: tie, n_kv_head: 4, tied: true}
  - {label: flash, n_kv_head: 4, attention_kernel: flash}
  - {label: recompute, n_kv_head: 4, recompute: full}
  - {label: all three, n_kv_head: 4, tied: true, attention_kernel: flash, recompute: full}
measure: {quantities: [activation_bytes, peak_training_bytes, cache_bytes]}
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


@pytest.fixture
def results(sweep, catalogue, tmp_path, step, shared_step) -> Results:
    steps = dict(zip((*STEP, *SHARED_STEP), (*step, *shared_step), strict=True))
    sweep(MODELS)
    one = result(tmp_path / "sweep.yaml", catalogue)
    return Results([one], parts=PARTS | steps)


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


def test_titles_are_findings_of_the_data(results, catalogue, step, shared_step):
    page = render(results, catalogue)
    text = str(Text(page))
    comparison = results.sweeps[0].comparison
    held = {
        (label, quantity): value
        for label, quantity, value in comparison.group_by("label", "quantity")
        .agg(pl.col("measured").sum())
        .iter_rows()
    }
    palm = 540_356_474_880
    assert f"{100 * 481_069_891_584 / palm:.1f} % of PaLM 540B is MLP" in text
    smallest = held["Tiny", "parameters"]
    assert f"From {smallest:,} parameters to 540B, positions gives way to MLP" in text
    assert "From GPT-2 124M on, the MLP is the largest part of all 3 models" in text
    states = ("parameter", "gradient", "optimizer")
    of_palm = [held["PaLM 540B", f"{name}_bytes"] for name in states]
    of_tiny = [held["Tiny", f"{name}_bytes"] for name in states]
    least, most = (f"{sum(one) / one[0]:.1f}".removesuffix(".0") for one in (of_palm, of_tiny))
    assert f"Training takes {least} to {most} times the bytes" in text
    whole = sum(of_palm) + held["PaLM 540B", "activation_bytes"]
    assert f"{100 * held['PaLM 540B', 'activation_bytes'] / whole:.1f} % of" in text
    assert f'title="{held["PaLM 540B", "cache_bytes"]:,} bytes"' in page
    n = step.about["n_parameters"]
    last = step.about["phases"][-1]
    kept = live(step, last["first"])
    kept = kept.filter(~pl.col("kind").is_in(["temporary", "activations"]))["bytes"].sum()
    most, least = (f"{size / n:.1f}".removesuffix(".0") for size in (last["peak"], kept))
    assert f"A step of AdamW takes {most} bytes a parameter, not {least}" in text
    assert "aten._foreach_sqrt" in text
    whole, part = (
        max(phase["peak"] for phase in one.about["phases"][-3:]) for one in (step, shared_step)
    )
    assert f"On each of 4 devices with shards, the peak is {part / 1e3:.3g} kB instead" in text
    assert f"instead of {whole / 1e3:.3g} kB" in text


def test_every_colour_of_a_step_is_in_the_legend_above_it(results, catalogue):
    page = render(results, catalogue)
    act = page[page.index('<section id="step"') : page.index('<p class="whose">Traced')]
    of_whole, of_device = act.split('<ul class="legend"')[1:]
    for part in (of_whole, of_device):
        named, drawn = part.split("</ul>", 1)
        drawn = re.findall(r'<path class="(group-\d+)"', drawn)
        assert set(drawn) == set(re.findall(r"swatch (group-\d+)", named))
    assert "gathered parameters" in of_device
    assert "gathered parameters" not in of_whole


def test_squares_and_columns_are_in_proportion(results, catalogue):
    page = render(results, catalogue)
    act = page[page.index('<section id="sizes"') : page.index('<section id="bytes"')]
    squares, columns = (
        dict(re.findall(r'<path class="(group-\d+)" d="([^"]+)"', part))
        for part in re.split(r'<svg class="columns"', act)
    )
    assert sum(path.count("z") for path in squares.values()) == 540
    comparison = results.sweeps[0].comparison.filter(quantity="parameters")
    tiny = comparison.filter(label="Tiny")
    attention = tiny.filter(
        pl.col("component").str.contains(r"attention\.(query|key|value|output)")
    )
    n = attention["measured"].sum() * 540 / tiny["measured"].sum()
    assert abs(squares[f"group-{GROUP_OF_ATTENTION}"].count("z") - n) < 1
    assert len(columns) <= len(PLAIN)
    assert max(path.count("z") for path in columns.values()) == 4  # without Mixtral


GROUP_OF_ATTENTION = 3


def test_every_combination_of_changes_is_that_of_real_modules(
    sweep, catalogue, tmp_path, open_page
):
    sweep(SAVINGS)
    one = result(tmp_path / "sweep.yaml", catalogue)
    (tmp_path / "report.html").write_text(render(Results([one]), catalogue), encoding="utf-8")
    tab = open_page((tmp_path / "report.html").as_uri(), 390)
    small, *_ = rows(one.points)
    changes = [{"tied": True}, {"attention_kernel": "flash"}, {"recompute": "full"}]
    peaks = {}
    for on in product((False, True), repeat=3):
        fields = {
            k: v for change, it in zip(changes, on, strict=True) if it for k, v in change.items()
        }
        a = small.architecture.model_copy(update={"tied": fields.pop("tied", False)})
        run = small.run.model_copy(update=fields)
        model = build(a, "meta", run.dtype)
        peaks[on] = max(train(model, run, {"peak_training_bytes"})["peak_training_bytes"].values())
        for box, it in zip(tab.query_selector_all("#what-to-do input"), on, strict=True):
            box.set_checked(it)
        assert tab.get_attribute("#what-to-do .all span", "title") == f"{peaks[on]:,} bytes"
        whose = "predicted" if sum(on) == 2 else "measured"
        assert tab.inner_text("#what-to-do .all small").startswith(whose)
    first = peaks[False, False, False]
    labels = {"Flash": (False, True, False), "Recompute": (False, False, True)}
    best = min(labels, key=lambda name: peaks[labels[name]])
    alone, every = (f"{100 - 100 * peaks[on] / first:.1f}" for on in (labels[best], (True,) * 3))
    assert f"{best} alone saves {alone} % of the peak memory, all three {every} %" in " ".join(
        tab.inner_text("#what-to-do h2").split()
    )
    assert tab.messages == []


def test_the_slider_and_the_cursor(results, step, catalogue, open_page, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(render(results, catalogue), encoding="utf-8")
    tab = open_page(path.as_uri(), 1280)
    assert "Tiny" in tab.inner_text("#sizes .stop")
    tab.focus("#sizes input")
    tab.keyboard.press("End")
    assert "PaLM 540B 540,356,474,880 parameters 89.0 % MLP" in " ".join(
        tab.inner_text("#sizes .stop").split()
    )
    tab.emulate_media(reduced_motion="reduce")
    tab.click("#sizes button")  # at the end: from the start again, one model a press
    assert "Tiny" in tab.inner_text("#sizes .stop")
    tab.click("#sizes button")
    tab.wait_for_timeout(1200)
    assert "GPT-2 124M" in tab.inner_text("#sizes .stop")
    peaks = [phase["peak"] for phase in step.about["phases"][-3:]]
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
    assert tab.messages == []
