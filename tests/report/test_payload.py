"""A report of one's own: a table of the points, links of headings, and a citation."""

import re

import polars as pl
import pytest
from helpers.page import unfold
from helpers.results import PROVENANCE, result

from modelbudget.report.page import render
from modelbudget.report.page_results import Results, SweepResult


@pytest.fixture
def one(sweep, catalogue, tmp_path) -> SweepResult:
    sweep("base: mlp\ngrid: {d_model: [5, 6, 7]}\n")
    return result(tmp_path / "sweep.yaml", catalogue)


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


def test_a_sweep_of_ones_own_has_each_point_with_its_totals(grid, catalogue):
    """Of a peak the largest phase, of which a sum would be more; a point that differs is red.

    Only this reads the table of points.
    """
    wrong = (pl.col("component") == "layer.mlp.up") & (pl.col("point") == "000003")
    table = grid.comparison.with_columns(agrees=pl.col("agrees") & ~wrong)
    page = render(Results([grid._replace(comparison=table)]), catalogue)
    rows = page.partition('id="sweep-points"')[2].partition("</table>")[0].split("<tr>")[2:]
    cells = [re.findall(r"<td[^>]*>([^<]*)</td>", row) for row in rows]
    totals = [
        [row["label"], *(f"{n:,}" for n in (row["saved"], row["parameters"], row["peak"]))]
        for row in table.group_by("point", "label", maintain_order=True).agg(
            *(pl.col("measured").filter(pl.col("quantity") == of).sum().alias(name)
              for name, of in (("saved", "activation_bytes"), ("parameters", "parameters"))),
            peak=pl.col("measured").filter(pl.col("quantity") == "peak_training_bytes").max(),
        ).iter_rows(named=True)
    ]  # fmt: skip
    assert [[row[0], row[1], row[2], row[3]] for row in cells] == totals
    assert [i for i, row in enumerate(rows) if 'class="red"' in row] == [2]


def test_of_many_points_some_are_in_the_table(grid, catalogue):
    """Evenly spaced points are in the table, and its caption says of how many."""
    table = grid.comparison.filter(pl.col("quantity") == "parameters")
    copies = pl.DataFrame({"copy": range(100)})
    number = pl.col("copy") * 12 + pl.col("point").cast(pl.Int64)
    many = copies.join(table, how="cross").with_columns(
        point=number.cast(pl.String).str.zfill(6), label=number.cast(pl.String)
    )
    large = grid._replace(
        comparison=many.drop("copy").sort("point", maintain_order=True), charts=dict
    )
    page = render(Results([large]), catalogue)
    rows = page.partition('id="sweep-points"')[2].partition("</table>")[0].split("<tr>")
    assert "Points, 40 of 1,200" in rows[0]
    assert ("<td>1</td>" in rows[2], "<td>1200</td>" in rows[-1], len(rows)) == (True, True, 42)


def test_headings_show_their_link_to_hand_and_keyboard(one, catalogue, open_page, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(
        render(Results([one], parts={"provenance.json": PROVENANCE}), catalogue), encoding="utf-8"
    )
    tab = unfold(open_page(path.as_uri()))
    sign = "a => getComputedStyle(a, '::after').opacity"
    headings = tab.query_selector_all("main :is(h2, h3) > a")
    links = {"#verdict", "#appendix", "#sweep-points"}
    assert links <= {heading.get_attribute("href") for heading in headings}
    for heading in headings:
        assert tab.query_selector(heading.get_attribute("href")) is not None
    tab.mouse.move(0, 0)
    heading = tab.query_selector("#sweep-points > a")
    assert heading.evaluate(sign) == "0"
    heading.hover()
    assert heading.evaluate(sign) == "1"
    tab.mouse.move(0, 0)
    tab.focus("#verdict h2 a")
    tab.keyboard.press("Tab")
    tab.keyboard.press("Shift+Tab")
    assert tab.eval_on_selector("#verdict h2 a", sign) == "1"
