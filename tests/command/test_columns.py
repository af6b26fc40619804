"""Tables on narrow terminals: what goes first, and that no number is ever cut."""

import re

import pytest

import modelbudget as mb
from modelbudget.api.command import budget_table, compare, conventions, text_table
from modelbudget.api.command.text_table import Table
from modelbudget.api.predictions import QUANTITIES

BARS, SHARES, INSTANCES = "█", "29.7 %", "118 × 1,358,954,496"


@pytest.fixture(scope="module")
def palm():
    return mb.model("palm-540b").predictions(QUANTITIES)


def text(table: Table, width: int | None) -> str:
    return "\n".join(line.text + line.bar for line in text_table.lines(table, width))


def numbers(table: Table) -> list[str]:
    """The cells that hold one number, and the exact numbers in brackets, with repetitions."""
    cells = " ".join(cell for row in table.rows for cell in row[1:])
    return sorted(re.findall(r"\d[\d,]{4,}", cells))


def test_a_narrow_terminal_goes_without_bars_then_shares_then_instances(palm):
    table = budget_table.of_components(palm)
    parts = (BARS, SHARES, INSTANCES, "160,356,630,528", "328 TFLOP")
    shown = {width: [part in text(table, width) for part in parts] for width in range(60, 131)}
    assert shown[130] == [True, True, True, True, True]
    assert shown[80] == [False, False, True, True, True]
    assert shown[60] == [False, False, False, True, True]
    orders = [found for i, found in enumerate(shown.values()) if found not in [*shown.values()][:i]]
    without_bars = [found[1:] for found in orders]
    assert without_bars == sorted(without_bars)


def test_small_counts_are_exact():
    """2,592 FLOPs of a token were printed as 2,590, and as 2,590 (2,592)."""
    sizes = {"n_layer": 1, "d_model": 12, "n_head": 1, "d_ff": 16, "n_vocab": 20}
    small = mb.model("gpt-2-124m", **sizes).predictions(QUANTITIES, {"length": 4})
    rows = dict(budget_table.of_totals([small]).rows)
    # By hand: 2 for each weight of a product, and 2 · 2 · length · d_model of attention.
    products = 2 * (4 * 12 * 12 + 2 * 12 * 16 + 12 * 20) + 2 * 2 * 4 * 12
    assert rows["FLOPs per decoded token"] == f"{products:,} FLOP"
    assert rows["Bytes of KV cache or state"] == f"{2 * 4 * 12 * 2} bytes"


@pytest.mark.parametrize("width", [48, 60, 80, 100])
def test_no_number_is_cut_and_no_line_is_too_long(palm, width):
    several = [mb.model(name).predictions(QUANTITIES) for name in ("gpt-2-124m", "llama-3-8b")]
    counts = mb.model("palm-540b").conventions()
    for table in (
        budget_table.of_totals([palm]),
        budget_table.of_totals([palm, *several]),
        compare._of_components([palm, *several]),
        conventions._table(counts, "FLOPs"),
        Table("", ("name", "text"), [("x" * 70, "y" * 70), ("日本" * 40, "1")], texts=("text",)),
    ):
        shown = text(table, width)
        assert sorted(re.findall(r"(?<![\w·])\d[\d,]{4,}(?!\w)", shown)) == numbers(table)
        for line in shown.splitlines():
            assert text_table._length(line) <= width, line


def test_a_formula_and_a_path_are_cut_between_their_names():
    """Where a word is longer than a line; a name in it was cut in the middle."""
    for sign, names in (("·", "12 n_layer n_head d_head length"), ("/", "configs memory margins")):
        written = sign.join(names.split())
        shown = text(Table("", ("", "rule"), [("x", written)], texts=("rule",)), 18).split("\n")
        pieces = [line[1:].strip() for line in shown[1:]]
        assert len(pieces) > 1
        assert "".join(pieces) == written
        assert all(piece.endswith(sign) for piece in pieces[:-1])


def test_a_pipe_has_one_line_for_each_row(palm):
    table = budget_table.of_components(palm)
    shown = text_table.lines(table, None)
    assert len(shown) == len(table.rows) + 1
    assert not any(line.bar for line in shown)
    assert shown[1].text.split() == [word for cell in table.rows[0] for word in cell.split()]
