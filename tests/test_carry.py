"""A report that is sent alone: its tables come out of the page, and it says how to cite it."""

import random
import re
from pathlib import Path

import polars as pl
import pytest
from test_report import PROVENANCE, Text, result

from modelbudget import __version__
from modelbudget.provenance import provenance
from modelbudget.report import carry
from modelbudget.report.page import render
from modelbudget.report.results import Results, SweepResult
from modelbudget.spreadsheet import csv


@pytest.fixture
def one(sweep, catalogue, tmp_path) -> SweepResult:
    sweep("base: mlp\ngrid: {d_model: [5, 6, 7]}\n")
    return result(tmp_path / "sweep.yaml", catalogue)


def test_the_table_out_of_the_page_is_the_file(one, catalogue, open_page, tmp_path):
    page = render(Results([one]), catalogue)
    alone = tmp_path / "alone" / "report.html"
    alone.parent.mkdir()
    alone.write_text(page, encoding="utf-8")
    tab = open_page(alone.as_uri())
    with tab.expect_download() as download:
        tab.click("[data-table=sweep]")
    assert download.value.suggested_filename == "sweep.csv"
    saved = Path(download.value.path()).read_bytes()
    assert saved.decode() == csv(one.comparison)
    assert tab.said == []


def test_a_large_table_stays_beside_the_page(one, catalogue, open_page, tmp_path):
    assert carry.carried([one]).keys() == {"sweep"}
    noise = random.Random(0).randbytes(carry.MOST_BYTES).hex()  # packs to half of its letters
    large = one._replace(comparison=one.comparison.with_columns(noise=pl.lit(noise)))
    assert carry.carried([large]) == {}
    path = tmp_path / "report.html"
    path.write_text(render(Results([large]), catalogue), encoding="utf-8")
    tab = open_page(path.as_uri())
    assert not tab.is_visible("[data-table=sweep]")
    assert tab.is_visible("a[href='sweep/comparison.csv']")


def test_it_says_how_to_cite(one, catalogue):
    text = str(Text(render(Results([one], provenance=PROVENANCE), catalogue)))
    assert "Version 0.1.0, commit 0123abc." in text
    assert re.search(r"@software\{modelbudget, .* version = \{0\.1\.0\}, note = \{commit", text)
    assert provenance()["versions"]["modelbudget"] == __version__


def test_headings_show_their_link_to_hand_and_keyboard(one, catalogue, open_page, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(render(Results([one], provenance=PROVENANCE), catalogue), encoding="utf-8")
    tab = open_page(path.as_uri())
    sign = "a => getComputedStyle(a, '::after').opacity"
    headings = tab.query_selector_all("main :is(h2, h3) > a")
    assert {h.get_attribute("href") for h in headings} >= {
        "#verdict",
        "#what-if",
        "#sweep",
        "#cite",
    }
    for heading in headings:
        assert tab.query_selector(heading.get_attribute("href")) is not None
    tab.mouse.move(0, 0)
    heading = tab.query_selector("#cite > a")
    assert heading.evaluate(sign) == "0"
    heading.hover()
    assert heading.evaluate(sign) == "1"
    tab.mouse.move(0, 0)
    tab.focus("#what-if h2 a")
    tab.keyboard.press("Tab")
    tab.keyboard.press("Shift+Tab")
    assert tab.eval_on_selector("#what-if h2 a", sign) == "1"
