"""Numbers that scaling studies print: each is reproduced by prediction and by a real module."""

from collections import Counter

import polars as pl
import pytest
import torch

from modelbudget.catalogue.published_scaling import published_scaling
from modelbudget.common.errors import InputError
from modelbudget.common.paths import CONFIGS
from modelbudget.compare.scaling_studies import (
    DIFFERS,
    EXACT,
    MISSING,
    NO_COUNT,
    ROUNDED,
    rows,
)  # fmt: skip
from modelbudget.measurement.count import count
from modelbudget.modules.initialise import uninitialised
from modelbudget.sweeps.expand import expand
from modelbudget.sweeps.points_table import points_table

FILE = CONFIGS / "published_scaling.yaml"


def counted(catalogue):
    """Count the models of the file, and no others, as sweeps would."""
    wanted = {row.model for ladder in published_scaling(FILE) for row in ladder.rows}
    for name in ("published-ladders", "zoo"):
        expanded = expand(CONFIGS / "sweeps" / f"{name}.yaml", catalogue)
        of_label = {p.label: p.architecture for p in expanded.points if p.label in wanted}
        table = [
            {"label": label, "component": component, "quantity": "parameters",
             "predicted": predicted[component].total, "measured": measured[component].parameters}
            for label, a in of_label.items()
            for predicted, measured in [(a.parameters(a), on_meta(a))]
            for component in measured
        ]  # fmt: skip
        yield points_table(expanded.points), pl.DataFrame(table)


def on_meta(architecture):
    with uninitialised(), torch.device("meta"):
        return {name: one for name, one in count(architecture.build()).items() if one.parameters}


@pytest.fixture(scope="module")
def tables(catalogue):
    return list(counted(catalogue))


@pytest.fixture(scope="module")
def found(tables):
    return rows(FILE, tables)


def test_every_count_is_reproduced(found):
    assert Counter(row.verdict for row in found) == {
        EXACT: 80, ROUNDED: 86, NO_COUNT: 18,
    }  # fmt: skip
    for row in found:
        assert row.measured in (row.predicted, None)
        if row.verdict == EXACT:
            assert row.predicted == row.printed.published
        if row.verdict == ROUNDED:
            assert abs(row.predicted - row.printed.published) <= row.rounding
        assert row.verdict != NO_COUNT or row.notes


def test_sizes_of_what_is_not_a_count(found):
    """The fourth of Tao et al. is called 335M and taken as 350M: 14.4 million too many."""
    off = {r.printed.model: r.error for r in found if r.ladder.title.startswith("Vocabulary")}
    assert off["Tao 50M"] == pytest.approx(33_222_784 / 33_563_136 - 1)
    assert off["Tao 335M"] == pytest.approx(316_445_568 / (301_989_888 + 37 * 1024) - 1)
    assert max(map(abs, off.values())) == off["Tao 335M"] > 0.047


def test_a_run_without_the_ladders(tables):
    found = rows(FILE, tables[1:])
    verdicts = {row.ladder.title[:4]: row.verdict for row in found}
    assert verdicts["OLMo"] == MISSING
    assert verdicts["Pyth"] == EXACT


def test_a_wrong_count_differs(tables):
    points, table = tables[0]
    wrong = table.with_columns(measured=pl.col("measured") + 1)
    found = rows(FILE, [(points, wrong)])
    assert {row.verdict for row in found if row.ladder.title.startswith("OLMo")} == {DIFFERS}


def test_an_unknown_convention(tmp_path):
    path = tmp_path / "published_scaling.yaml"
    path.write_text(FILE.read_text().replace("convention: total", "convention: totl", 1))
    with pytest.raises(InputError, match=r"convention = 'totl': unknown.*total"):
        rows(path, [])
