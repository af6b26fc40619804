"""What README and the pages of docs/ print is true: sweeps, links, commands, columns."""

import re
from typing import get_args

import polars as pl
import pytest
from helpers.project import ROOT
from markdown_it import MarkdownIt

from modelbudget.compare import zoo
from modelbudget.compare.comparison import compare
from modelbudget.measurement import table as measured
from modelbudget.measurement.reference import table as reference
from modelbudget.plan import targets
from modelbudget.predict import fit, solve
from modelbudget.predict.predict import predict
from modelbudget.report.charts import solve as charts
from modelbudget.sweeps.expand import expanded
from modelbudget.sweeps.points_table import points_table
from modelbudget.sweeps.quantities import OF_CONVENTION, Quantity
from modelbudget.sweeps.read import CheckedSweep, read

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "config/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
TEXTS = {path: path.read_text(encoding="utf-8") for path in PAGES}
SWEEPS = [
    block
    for text in TEXTS.values()
    for block in re.findall(r"```yaml\n(.*?)```", text, re.S)
    if "title:" in block
]
RESULTS = TEXTS[ROOT / "docs" / "results.md"]


@pytest.mark.parametrize("text", SWEEPS, ids=lambda text: re.search("title: (.*)", text)[1])
def test_a_printed_sweep_expands(text, tmp_path, catalogue):
    path = tmp_path / "sweep.yaml"
    path.write_text(text)
    checked = read(path, catalogue)
    if checked.sweep.solve:
        check_answer(checked)
        return
    points = expanded(checked).points
    assert points
    if "heads of 64 channels" in checked.sweep.title:
        assert {point.architecture.d_head for point in points} == {64}


def check_answer(checked: CheckedSweep) -> None:
    """Solve a printed sweep, and find its counts in the page."""
    found = solve.solved(solve.checked_grids(checked), 2)
    (page,) = [page for page in TEXTS.values() if f"title: {checked.sweep.title}" in page]
    counts = [found.proof[name] for name in ("shapes", "solutions")]
    assert all(f"{n:,} " in page for n in counts)
    answer = charts.answer(found.frontier, checked.sweep.solve.best)
    assert re.search(r"[\d.]+ %", answer)[0] in page
    assert solve.of_points(checked, found.frontier).points


def links(text: str) -> set[str]:
    tokens = [one for token in MarkdownIt().parse(text) for one in token.children or ()]
    return {one.attrs.get("href") or one.attrs["src"] for one in tokens if one.attrs}


def anchors(text: str) -> set[str]:
    """Anchors of headings, as GitHub and the site name them."""
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w -]", "", one).strip().lower().replace(" ", "-") for one in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_has_an_end(page):
    for link in links(TEXTS[page]):
        if not link.startswith(("http://", "https://")):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.is_file(), link
            assert not anchor or anchor in anchors(TEXTS[target]), link


def test_every_page_is_in_the_navigation():
    navigation = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text()))
    docs = {path.relative_to(ROOT / "docs").as_posix() for path in PAGES if "docs" in path.parts}
    assert navigation == docs


def test_printed_rules_and_files_exist():
    printed = "\n".join(TEXTS.values())
    rules = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = re.findall(r"(?:^|`)make ([\w-]+)", printed, re.M)
    assert set(named) <= rules
    folders = "configs|docs|tests|workflow|tools|modelbudget"
    files = re.findall(rf"`((?:{folders})/[\w./-]+\.\w+)`", printed)
    own = re.compile("[A-Z]{4}|/my-")  # a name in place of the reader's
    assert not {name for name in files if not own.search(name) and not (ROOT / name).exists()}


def columns(section: str) -> list[str]:
    """The names in the first column of the table of a section of docs/results.md."""
    text = RESULTS.split(f"\n## {section}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", text, re.M)
    return sorted(name for row in rows for name in re.findall(r"`(\w+)`", row))


def test_result_columns_are_explained(sweep):
    assert columns("Columns of the zoo") == sorted(zoo.COLUMNS)
    assert columns("Columns of `fit`") == sorted(fit.SCHEMA)
    points = points_table(sweep("points: [{base: gpt-2-124m}]"))
    predicted = predict(points, ["parameters"])
    traced = {*reference.OF_POINT, *reference.TRACED}
    explained = columns("Columns of predictions and measurements")
    assert set(explained) == {*predicted.columns, *measured.SCHEMA, *traced}
    table = compare(points, predicted, pl.DataFrame(schema=measured.SCHEMA), [])
    assert set(columns("Columns of the comparison")) == set(table.columns)


def test_quantities_are_explained():
    rows = re.findall(r"^\| (`.*?) \|", RESULTS.split("\n## Quantities\n")[1], re.M)
    quantities = {*get_args(Quantity)} - OF_CONVENTION  # these are in docs/conventions.md
    assert sorted(re.findall(r"`(\w+)`", "".join(rows))) == sorted(quantities)


def test_result_files_are_explained():
    explained = re.findall(r"`([\w./*-]+)`", RESULTS.split("\n## ")[0])
    for file in (*targets.OF_REPORT, *targets.COUNTED, *targets.OF_ALL):
        assert any(f"{file}/".startswith(name) for name in explained), file
    for file in {*targets.OF_SWEEP, *targets.OF_PREDICTED} - {"comparison.csv"}:
        assert any(name.startswith(f"SWEEP/{file}") for name in explained), file
