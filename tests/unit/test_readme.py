"""What README and the pages of docs/ print is true: sweeps, links, commands, columns."""

import re
import shlex
from itertools import pairwise
from typing import get_args

import polars as pl
import pytest
from helpers.project import ROOT
from markdown_it import MarkdownIt

from modelbudget.api.command.app import main
from modelbudget.compare import zoo
from modelbudget.compare.comparison import compare
from modelbudget.measurement import measured_table as measured
from modelbudget.measurement.reference import cached_classes as reference
from modelbudget.predict import largest_that_fits, layout_search, shape_search
from modelbudget.predict.predict import predict
from modelbudget.report.charts import frontier as charts
from modelbudget.sweeps.expand import expanded
from modelbudget.sweeps.points_table import points_table
from modelbudget.sweeps.quantity_names import OF_CONVENTION, Quantity
from modelbudget.sweeps.read import CheckedSweep, read
from modelbudget.workflow import targets

DOCS = ROOT / "docs"
BUILT = DOCS / "formulas.md"
"""The page that is not tracked: `make docs` builds it."""
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "config/README.md")),
    *sorted({*DOCS.rglob("*.md")} - {BUILT}),
]
TEXTS = {path: path.read_text(encoding="utf-8") for path in PAGES}
SWEEPS = [
    block
    for text in TEXTS.values()
    for block in re.findall(r"```yaml\n(.*?)```", text, re.S)
    if "title:" in block
]
RESULTS = TEXTS[DOCS / "results.md"]


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
    found = shape_search.solved(shape_search.checked_grids(checked), 2)
    (page,) = [page for page in TEXTS.values() if f"title: {checked.sweep.title}" in page]
    counts = [found.proof[name] for name in ("shapes", "solutions")]
    assert all(f"{n:,} " in page for n in counts)
    answer = charts.answer(found.frontier, checked.sweep.solve.best)
    assert re.search(r"[\d.]+ %", answer)[0] in page
    assert shape_search.of_points(checked, found.frontier).points


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
    pages = (path for path in (*PAGES, BUILT) if path.is_relative_to(DOCS))
    assert navigation == {path.relative_to(DOCS).as_posix() for path in pages}


def test_printed_rules_exist():
    rules = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = re.findall(r"(?:^|`)make ([\w-]+)", "\n".join(TEXTS.values()), re.M)
    assert named
    assert set(named) <= rules


LIBRARY = ROOT / "modelbudget"
FOLDERS = {path.name for path in (*ROOT.iterdir(), *LIBRARY.iterdir()) if path.is_dir()}
"""What begins with one of these is a path of the project, or within the library."""
IGNORED = tuple(line.strip("/") for line in (ROOT / ".gitignore").read_text().split())
OWN = re.compile("[A-Z]{4}|(^|/)my-")
"""A name in place of the reader's."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_named_file_and_folder_exists(page):
    """In text, tables and commands: it sees a file that was moved, which no link names."""
    words = re.findall(r"(?<![\w/.:-])\.?[a-z]\w*/[\w./*-]*", TEXTS[page])
    for word in {word.rstrip("./") for word in words} - links(TEXTS[page]):
        if word.partition("/")[0] in FOLDERS and not OWN.search(word + "/"):
            made = word.startswith(IGNORED)
            assert made or [*ROOT.glob(word), *LIBRARY.glob(word)], word


INLINE = {one for text in TEXTS.values() for one in re.findall(r"`modelbudget ([^`]+)`", text)}


@pytest.mark.parametrize("line", sorted(INLINE))
def test_a_command_in_a_line_of_text_is_read(line, monkeypatch, capsys):
    """Its subcommand, options and fields; tests/command/test_declared.py runs shell blocks."""
    words = shlex.split(line)
    monkeypatch.setattr("sys.argv", ["modelbudget", *words, "--help"])  # read, and not run
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code, capsys.readouterr().err
    named = [
        text.partition("=")[0] for option, text in pairwise(words) if option.startswith("--set")
    ]
    assert set(named) <= set(re.findall(r"^\| `(\w+)`", TEXTS[DOCS / "fields.md"], re.M))


def columns(section: str) -> list[str]:
    """The names in the first column of the table of a section of docs/results.md."""
    text = RESULTS.split(f"\n## {section}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", text, re.M)
    return sorted(name for row in rows for name in re.findall(r"`(\w+)`", row))


def test_result_columns_are_explained(sweep):
    assert columns("Columns of the zoo") == sorted(zoo.COLUMNS)
    assert columns("Columns of `fit`") == sorted(largest_that_fits.SCHEMA)
    of_layouts = {"base", "label", "devices", *layout_search.LAYOUT, layout_search.RANK, "bytes"}
    assert {*columns("Columns of `layouts`")} == of_layouts
    points = points_table(sweep("points: [{base: gpt-2-124m}]").points)
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
    for file in (*targets.COUNTED, *targets.OF_ALL):
        assert any(f"{file}/".startswith(name) for name in explained), file
    for file in {*targets.OF_SWEEP, *targets.OF_PREDICTED} - {"comparison.csv"}:
        assert any(name.startswith(f"SWEEP/{file}") for name in explained), file
