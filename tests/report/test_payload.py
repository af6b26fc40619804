"""A report that is sent alone: its tables can be saved from the page, and it has a citation."""

import re
from html import unescape
from pathlib import Path

import polars as pl
import pytest
from helpers.page import Text, scroll_and_wait, unfold, violations
from helpers.results import PROVENANCE, result

from modelbudget import __version__
from modelbudget.common.run_metadata import provenance
from modelbudget.common.spreadsheet import csv
from modelbudget.report import payload
from modelbudget.report.page import render
from modelbudget.report.page_results import Results, SweepResult
from modelbudget.report.symbolic_formulas import general_formulas
from modelbudget.sweeps.points_table import points_table


@pytest.fixture
def one(sweep, catalogue, tmp_path) -> SweepResult:
    sweep("base: mlp\ngrid: {d_model: [5, 6, 7]}\n")
    return result(tmp_path / "sweep.yaml", catalogue)


@pytest.fixture
def opened(catalogue, open_page, tmp_path):
    """Opens a page of some sweeps that is alone in its folder."""

    def opened(*sweeps: SweepResult, **how):
        alone = tmp_path / "alone" / "report.html"
        alone.parent.mkdir(exist_ok=True)
        alone.write_text(render(Results(list(sweeps)), catalogue), encoding="utf-8")
        return unfold(open_page(alone.as_uri(), **how))

    return opened


def saved(tab, button: str) -> tuple[str, str]:
    """Name and content of the file that a button gives."""
    with tab.expect_download() as download:
        tab.click(button)
    file = download.value
    return file.suggested_filename, Path(file.path()).read_bytes().decode()


def odd(comparison: pl.DataFrame) -> pl.DataFrame:
    """With everything that a CSV file must keep: quotes, gaps, digits beyond a double's."""
    labels = ['a "b", c', "", "line\nbreak", "=1+2", "é"]
    n = comparison.height
    return comparison.with_columns(
        label=pl.Series([labels[i % 5] for i in range(n)]).gather(
            comparison["point"].rle_id().to_list()
        ),
        measured=pl.Series([(None, 2**62 + 1, 0)[i % 3] for i in range(n)]),
        difference=pl.Series([(None, -(2**60) - 1, 7)[i % 3] for i in range(n)]),
        percent=pl.Series([(None, 1e-7, 12.5)[i % 3] for i in range(n)]),
        agrees=pl.Series([(None, False, True)[i % 3] for i in range(n)]),
    )


@pytest.mark.parametrize("change", [lambda table: table, odd])
def test_the_table_out_of_the_page_is_the_file(one, opened, change):
    one = one._replace(comparison=change(one.comparison))
    tab = opened(one)
    name, text = saved(tab, "[data-table=sweep]")
    assert name == "sweep.csv"
    assert text == csv(one.comparison)
    assert tab.messages == []


GRID = """
base: gpt-2-124m
fixed: {length: 64}
grid: {d_model: [64, 128], n_layer: [1, 2, 3], tied: [true, false]}
derive: {n_head: d_model / 64, d_ff: 4 * d_model}
measure: {quantities: [parameters, activation_bytes, peak_training_bytes]}
"""


@pytest.fixture(scope="module")
def grid(catalogue, tmp_path_factory) -> SweepResult:
    path = tmp_path_factory.mktemp("grid") / "sweep.yaml"
    path.write_text(f"title: A test\nquestion: Why?\n{GRID}")
    return result(path, catalogue)


@pytest.fixture(scope="module")
def page_of_grid(grid, catalogue, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("alone") / "report.html"
    path.write_text(render(Results([grid]), catalogue), encoding="utf-8")
    return path


@pytest.fixture
def opened_grid(page_of_grid, open_page):
    return lambda **how: unfold(open_page(page_of_grid.as_uri(), **how))


def rows_of(tab) -> list[list[str]]:
    read = "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    return tab.eval_on_selector_all("table.numbers tbody tr", read)


def unfolded(tab):
    tab.click("[data-numbers=sweep] summary")
    tab.wait_for_selector("table.numbers tbody tr")
    return tab


def test_rows_are_points_with_their_components_together(grid, opened_grid):
    tab = unfolded(opened_grid())
    sums = (
        grid.comparison.filter(pl.col("quantity") == "parameters")
        .group_by("point", "d_model", "n_layer", "tied").agg(pl.col("predicted", "measured").sum())
        .sort("point").drop("point").rows()
    )  # fmt: skip
    expected = [
        [str(i), str(d), str(n), str(tied).lower(), f"{a:,}", f"{b:,}", "0", "yes", "cpu"]
        for i, (d, n, tied, a, b) in enumerate(sums, start=1)
    ]
    assert rows_of(tab) == expected
    tab.select_option("[name=quantity]", "peak_training_bytes")  # phases do not add up
    peaks = grid.comparison.filter(pl.col("quantity") == "peak_training_bytes")
    largest = peaks.group_by("point").agg(pl.col("measured").max()).sort("point")["measured"]
    assert [row[5] for row in rows_of(tab)] == [f"{n:,}" for n in largest]


def test_rows_are_sorted_filtered_and_saved(grid, opened):
    wrong = (pl.col("component") == "layer.mlp.up") & (pl.col("point") == "000003")
    grid = grid._replace(
        comparison=grid.comparison.with_columns(
            agrees=pl.col("agrees") & ~wrong,
            difference=pl.when(wrong).then(-5).otherwise("difference"),
        )
    )
    tab = unfolded(opened(grid))
    by_measured = "table.numbers thead th:nth-child(6)"
    plain = rows_of(tab)
    numbers = [int(row[5].replace(",", "")) for row in plain]
    for order, expected in (
        ("ascending", sorted(numbers)), ("descending", sorted(numbers)[::-1]), ("none", numbers),
    ):  # fmt: skip
        tab.focus(f"{by_measured} button")
        tab.keyboard.press("Enter")
        assert tab.get_attribute(by_measured, "aria-sort") == order
        assert [int(row[5].replace(",", "")) for row in rows_of(tab)] == expected
    tab.select_option("[name=shown]", "no")
    assert [(row[0], row[6], row[7]) for row in rows_of(tab)] == [("3", "−5", "no")]
    tab.select_option("[name=component]", "layer.mlp.up")
    assert [row[4] for row in rows_of(tab)] == ["layer.mlp.up"]
    assert tab.text_content("table.numbers td math") == "nlayer×(dff·dmodel+dff)"
    tab.select_option("[name=shown]", "")
    tab.fill("[name=wanted]", "n_layer = 2, D_MODEL = 64")
    assert [row[1:3] for row in rows_of(tab)] == [["64", "2"]] * 2
    name, text = saved(tab, "[data-save]")
    assert name == "sweep-parameters.csv"
    lines = text.splitlines()
    assert lines[0].startswith('"point","label","d_model","n_layer","tied","component","predicted"')
    assert lines[1].startswith('"000003","d_model = 64, n_layer = 2, tied = true",64,2,"true",')
    assert tab.messages == []


@pytest.mark.parametrize("quantity", ["parameters", "activation_bytes"])
def test_formulas_hold_for_every_point(grid, quantity):
    """What the sweep varies is a symbol: each formula gives every point's prediction."""
    (kind,) = general_formulas(grid.points, [quantity])
    assert kind["points"] == grid.points["point"].to_list()
    shown = kind["formulas"][quantity]
    rows = grid.comparison.filter(pl.col("quantity") == quantity, pl.col("predicted") > 0)
    assert set(rows["component"]) == shown.keys()
    head = {"parameters": "dmodel·nvocab·(1-tied)", "activation_bytes": "2·dmodel·length"}
    assert unescape(re.sub("<[^>]*>", "", shown["head"])) == head[quantity]


def test_a_condition_on_a_sum_of_conditions_is_settled_by_the_sizes(sweep):
    """bitsandbytes' tables exist if any tensor is large enough: SymPy folded 2^n cases of it, and a
    sweep with an 8-bit optimizer had no page.
    """
    text = (
        "base: gpt-2-124m\nfixed: {optimizer: adamw-8bit, foreach: false}\ngrid: {n_layer: [1, 2]}"
    )
    (kind,) = general_formulas(points_table(sweep(text)), ["optimizer_bytes"])
    tables = re.sub("<[^>]*>", "", kind["formulas"]["optimizer_bytes"]["model"])
    assert tables == "2048"  # two maps of 256 numbers in float32


def test_a_peak_has_no_formula_in_the_table(opened_grid):
    tab = unfolded(opened_grid())
    tab.select_option("[name=quantity]", "peak_training_bytes")
    tab.select_option("[name=component]", "*")
    heads = tab.eval_on_selector_all("table.numbers thead th", "h => h.map(x => x.innerText)")
    assert {row[heads.index("formula")] for row in rows_of(tab)} == {"–"}


def test_a_long_table_is_drawn_in_parts(grid, opened_grid):
    tab = unfolded(opened_grid())
    tab.select_option("[name=component]", "*")
    rows = grid.comparison.filter(pl.col("quantity") == "parameters").height
    assert len(rows_of(tab)) == 100 < rows
    tab.click("[data-more]")
    assert len(rows_of(tab)) == rows
    assert not tab.is_visible("[data-more]")
    assert tab.inner_text("[data-numbers] output") == f"{rows} rows"


def test_components_are_listed_as_data_flows(opened_grid):
    tab = unfolded(opened_grid())
    listed = tab.eval_on_selector_all("[name=component] option", "o => o.map(x => x.value)")
    in_flow = ["embedding.token", "layer.attention.query", "layer.mlp.up", "norm.final", "head"]
    assert [name for name in listed if name in in_flow] == in_flow
    tab.select_option("[name=component]", "*")
    untied = [row[4] for row in rows_of(tab) if row[0] == "2"]
    assert [name for name in untied if name in in_flow] == in_flow


def test_a_hundred_thousand_points_stay_small(grid, opened):
    """The page holds evenly spaced points with a note; sums and links cover all of them."""
    n = 100_000 // 12
    copies = pl.DataFrame({"copy": range(n)})
    table = grid.comparison.filter(pl.col("quantity") == "parameters")
    many = (
        copies.join(table, how="cross")
        .with_columns(
            point=(pl.col("copy") * 12 + pl.col("point").cast(pl.Int64)).cast(pl.String)
            .str.zfill(6)
        )
        .drop("copy").sort("point", maintain_order=True)
    )  # fmt: skip
    points = many["point"].n_unique()
    assert points == 12 * n
    large = grid._replace(comparison=many, charts={})
    small = grid._replace(summary=grid.summary | {"name": "small"})
    found = payload.comparison_tables([large, small])
    assert sum(len(one["of"]) for one in found.values()) <= payload.MOST_ROWS
    assert len(found["small"]["of"]) == small.comparison.height
    held = found["sweep"]["points"]["point"]
    assert (held[0], held[-1]) == ("000001", f"{points:06}")
    assert len(found["sweep"]["of"]) > 0.9 * (payload.MOST_ROWS - small.comparison.height)
    tab = unfolded(opened(large, small))
    assert f"{len(held):,} of {points:,} points" in tab.inner_text("#sweep")
    assert f"{many.height:,}" in tab.inner_text("#sweep .captioned")
    assert "results/sweep/comparison.csv" in tab.inner_text("#sweep > details > details > p.files")
    assert tab.query_selector("[data-table=sweep]") is None
    assert tab.query_selector("[data-table=small]") is not None
    assert len(tab.content()) < 2_000_000


def test_quantities_over_all_points(grid, opened_grid):
    tab = opened_grid(script=False)
    peaks = grid.comparison.filter(pl.col("quantity") == "peak_training_bytes")
    of_points = peaks.group_by("point").agg(pl.col("measured").max())["measured"]
    text = tab.inner_text("#sweep .captioned >> nth=-1")
    line = next(line for line in text.splitlines() if line.startswith("peak_training_bytes"))
    n = peaks["prediction"].count()
    assert line.split("\t")[1:] == [f"{v:,}" for v in (n, n, of_points.min(), of_points.max())]
    assert not tab.is_visible("[data-numbers]")


@pytest.mark.parametrize(
    ("width", "scheme"), [(1280, "light"), pytest.param(390, "dark", marks=pytest.mark.slow)]
)
def test_the_table_fits_and_axe_finds_nothing(opened_grid, width, scheme):
    tab = unfolded(opened_grid(width=width, scheme=scheme))
    tab.select_option("[name=component]", "*")
    scroll_and_wait(tab)
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert tab.query_selector("[data-numbers=sweep] table.numbers td") is not None
    assert violations(tab, "[data-numbers=sweep]") == []  # the rest: test_page.py


def test_it_says_how_to_cite(one, catalogue):
    text = str(Text(render(Results([one], parts={"provenance.json": PROVENANCE}), catalogue)))
    assert "Version 0.1.0, commit 0123abc." in text
    assert re.search(r"@software\{modelbudget, .* version = \{0\.1\.0\}, note = \{commit", text)
    assert provenance()["versions"]["modelbudget"] == __version__


def test_headings_show_their_link_to_hand_and_keyboard(one, catalogue, open_page, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(
        render(Results([one], parts={"provenance.json": PROVENANCE}), catalogue), encoding="utf-8"
    )
    tab = unfold(open_page(path.as_uri()))
    sign = "a => getComputedStyle(a, '::after').opacity"
    headings = tab.query_selector_all("main :is(h2, h3) > a")
    links = {"#verdict", "#appendix", "#cite"}
    assert links <= {heading.get_attribute("href") for heading in headings}
    for heading in headings:
        assert tab.query_selector(heading.get_attribute("href")) is not None
    tab.mouse.move(0, 0)
    heading = tab.query_selector("#cite > a")
    assert heading.evaluate(sign) == "0"
    heading.hover()
    assert heading.evaluate(sign) == "1"
    tab.mouse.move(0, 0)
    tab.focus("#verdict h2 a")
    tab.keyboard.press("Tab")
    tab.keyboard.press("Shift+Tab")
    assert tab.eval_on_selector("#verdict h2 a", sign) == "1"
