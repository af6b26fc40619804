"""The page's table of formula, our module and transformers' class."""

from itertools import combinations

import polars as pl
import pytest
from helpers.catalogue import CATALOGUE

from modelbudget.catalogue.published_readings import Reading, Source
from modelbudget.common.paths import HOME
from modelbudget.compare.class_table import implementations
from modelbudget.compare.class_verdict import REFERENCE, with_classes
from modelbudget.compare.comparison import compare
from modelbudget.compare.readings_of_gpus import Row
from modelbudget.measurement.measured_table import failures, measured_table
from modelbudget.measurement.process.measure_in_processes import measure_all
from modelbudget.measurement.reference import cached_classes
from modelbudget.predict.predict import predict
from modelbudget.report.implementation_tables import implementations_section
from modelbudget.report.page_results import Results, SweepResult
from modelbudget.report.ratios import RECORDED, Point, ratios, recorded_points
from modelbudget.report.sections.verdicts import verdict_section
from modelbudget.report.tables import environment
from modelbudget.report.verdict import line, verdicts
from modelbudget.sweeps.class_config import classes_of
from modelbudget.sweeps.points_table import points_table

SWEEP = """
fixed: {n_layer: 2, d_model: 64, n_head: 4, n_vocab: 512, length: 64, attention_kernel: flash,
        dtype: bfloat16}
points:
  - {base: gpt-2-124m, label: small}
  - {base: gpt-2-124m, label: selective, recompute: selective}
measure: {device: meta, quantities: [activation_bytes, peak_training_bytes, flops_forward]}
"""


@pytest.fixture
def result(sweep, tmp_path):
    return traced(sweep(SWEEP), tmp_path)


def traced(expanded, tmp_path) -> SweepResult:
    points, measure = points_table(expanded.points), expanded.sweep.measure
    needed = cached_classes.needed(classes_of(points), measure)
    cached_classes.begin_new(needed.runs, [measure], 1, tmp_path)()
    traces = cached_classes.reference_table(needed, {}, tmp_path)
    found = measure_all([(p.architecture, p.run) for p in expanded.points], measure, 1)
    predicted = predict(points, measure.quantities)
    table = measured_table(found, measure.quantities)
    comparison = compare(points, predicted, table, [], failures(found), traces)
    return SweepResult({"name": "s"}, points, comparison, dict, classes=traces)


def test_the_table_has_models_by_implementation_and_their_ratio(result):
    section = implementations_section(result)
    assert section["classes"] == ["GPT2LMHeadModel"]
    assert "dropout (gpu)" in section["replaced"][0]
    table = implementations(result.points, result.comparison, result.classes)
    (ratio,) = table.filter(label="small", quantity="activation_bytes")["ratio"]
    template = environment().get_template("implementations.html.j2")
    html = template.render(section={"id": "s", "implementations": section})
    assert f">{ratio:.3f}</td>" in html
    rows = html.partition("What has no value")[0].split("<tr>")
    (saved,) = [row for row in rows if "activation_bytes" in row]
    assert [cell.split(">")[-1] for cell in saved.split("</td>")[1:4]] == ["2", "2", "1"]
    assert "no such option; allowed: none, full" in html
    assert section["n_values"] == 3


def test_a_sweep_without_classes_has_no_table(result):
    assert implementations_section(result._replace(classes=None)) is None


def test_a_value_that_is_not_the_class_s_is_at_the_top(result):
    """Our own module, if it is given as that of transformers."""
    points = result.points.with_columns(implementation=pl.lit("transformers"))
    comparison = with_classes(result.comparison.drop(REFERENCE), points, result.classes)
    measure = {"quantities": ["activation_bytes"]}
    about = {"name": "s", "title": "S", "order": 1, "measure": measure}
    false = result._replace(summary=about, points=points, comparison=comparison)
    assert comparison["agrees"].drop_nulls().all()
    results = Results([false])
    top = verdict_section(results, verdicts(results))
    assert not top["whole"]
    assert (top["of_class_agreed"], top["of_class"]) == (1, 6)
    assert line(verdicts(results)).startswith(f"{top['banner']}; NOT WHAT THE CLASS")
    assert top["class_disagreements"].count('<a href="#s">small</a>') == 5
    assert top["disagreements"] is None


def test_the_plot_of_ratios_has_classes_beside_readings_of_gpus(sweep, tmp_path, result):
    """A dot for each quantity in bytes that is predicted under the name of the class.

    Only this sees a plot that divides by our module, or has classes that nothing predicts.
    """
    source = Source(title="GPUs", source="A paper", rule="The largest", settings={})
    reading = Reading(source="GPUs", base="gpt-2-124m", settings={}, gib=2.0)
    readings = [Row(source, "GPT-2", reading, 1.9, "")]
    lines = [line for line in SWEEP.splitlines() if "selective" not in line]
    text = "\n".join(lines).replace("bfloat16}", "bfloat16, implementation: transformers}")
    of_class = traced(sweep(text), tmp_path)
    alone, plot = ratios(readings, [result]), ratios(readings, [result, of_class])
    assert [one["title"] for one in alone["sources"]] == ["GPUs: 0 of 1 within 3 %"]
    assert plot["sources"][0]["title"] == alone["sources"][0]["title"]
    assert plot["sentence"] == alone["sentence"]
    _, classes = plot["sources"]
    assert classes["title"] == "Classes of transformers, traced: 2 of 2 equal"
    assert [(dot["n"], dot["title"]) for dot in classes["dots"]] == [(2, "2 equal: small")]
    points = result.points.with_columns(implementation=pl.lit("transformers"))
    *_, ours = ratios(readings, [result._replace(points=points)])["sources"]
    assert ours["title"].endswith("traced: 0 of 2 equal")
    assert not any(dot["close"] for dot in ours["dots"])
    traces = result.classes.group_by("quantity").agg(
        total=pl.sum("reference"), largest=pl.max("reference")
    )
    bytes_of = {quantity: row for quantity, *row in traces.iter_rows()}
    assert {dot["title"].rpartition(":")[0] for dot in ours["dots"]} == {
        f"small, activation_bytes, {bytes_of['activation_bytes'][0]:,} bytes traced",
        f"small, peak_training_bytes, {bytes_of['peak_training_bytes'][1]:,} bytes traced",
    }


def test_no_dot_of_the_plot_of_ratios_covers_another():
    """At the width of a page. Only this sees dots of nearly equal ratios, and one below a number.

    On a phone, of half the width, they have half the radius.
    """
    source = Source(title="GPUs", source="A paper", rule="The largest", settings={})
    reading = Reading(source="GPUs", base="gpt-2-124m", settings={}, gib=2.0)
    off = [0.99, 0.996, 0.9975, 0.9981, 0.9982, 0.9983, 1.0004, 1.001, 1.004, 1.01, 1.02]
    runs = [Point("Runs", "equal", ratio, False, f"run {ratio}", "") for ratio in off]
    runs += [Point("Runs", "equal", 1.0, True, f"run {i}", "") for i in range(126)]
    plot = ratios([Row(source, "GPT-2", reading, 2.0, "")], [], tuple(runs))
    dots = plot["sources"][0]["dots"]
    assert len(dots) == len(off) + 1
    places = [(720 * float(dot["x"]) / 100, dot["y"]) for dot in dots]
    assert all((x - u) ** 2 + (y - v) ** 2 >= 8**2 for (x, y), (u, v) in combinations(places, 2))
    ((equal_x, equal_y),) = (p for p, dot in zip(places, dots, strict=True) if dot["n"] == 126)
    assert not [x for x, y in places if y == equal_y and equal_x < x < equal_x + 72]


@pytest.mark.parametrize(
    ("sections", "equal", "of_sources"),
    [
        (("trainer", "inference"), "9 of 9", ["9 of 9", "8 of 8"]),
        pytest.param(
            (*RECORDED,), "181 of 193", ["126 of 133", "28 of 28", "18 of 23", "9 of 9", "8 of 8"],
            marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_the_plot_of_ratios_counts_the_runs_of_our_gpus(sections, equal, of_sources):
    """As docs/measured.md does, from the recorded bytes. Only this sees a run that is left out."""
    if sections == (*RECORDED,):
        assert f"{equal} training runs" in (HOME / "README.md").read_text()
    source = Source(title="GPUs", source="A paper", rule="The largest", settings={})
    reading = Reading(source="GPUs", base="gpt-2-124m", settings={}, gib=2.0)
    runs = recorded_points(CATALOGUE, sections)
    plot = ratios([Row(source, "GPT-2", reading, 2.0, "")], [], runs)
    assert plot["sentence"].startswith(f"{equal} training runs on an H100 and an H200 peak")
    *rows, _ = plot["sources"]
    assert [row["title"].rpartition(": ")[2] for row in rows] == [f"{n} equal" for n in of_sources]
    for row, text in zip(rows, of_sources, strict=True):
        n_equal, n = map(int, text.split(" of "))
        assert [dot["n"] for dot in row["dots"] if dot["close"]] == [n_equal]
        assert len([dot for dot in row["dots"] if not dot["close"]]) == n - n_equal
