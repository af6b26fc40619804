"""The page's parts on memory and FLOPs: `fit`, tables with their formulas."""

import polars as pl
import pytest
import sympy
from helpers.page import DRAWN, Text, scroll_and_wait, violations
from helpers.project import ROOT
from helpers.results import charts_of_sweep, compared

from modelbudget.catalogue.accelerators import accelerators
from modelbudget.common.paths import SWEEPS
from modelbudget.predict.largest_that_fits import cells, fit_table
from modelbudget.report.formula_tables import formulas
from modelbudget.report.page import render
from modelbudget.report.page_results import Results, SweepResult
from modelbudget.sweeps.sweep_json import summary

NAMES = ("training-budget", "kv-cache", "recomputation")
DEVICES = accelerators(ROOT / "configs" / "accelerators.yaml")


@pytest.fixture(scope="module")
def results(catalogue) -> Results:
    """Shipped sweeps; what fits is left without a measurement, but for the first question."""
    sweeps = []
    for name in NAMES:
        expanded, points, comparison = compared(SWEEPS / f"{name}.yaml", catalogue)
        about = summary(expanded)
        drawn = charts_of_sweep(about["axes"], comparison, DEVICES)
        quantities = expanded.sweep.measure.quantities
        fields = [*dict.fromkeys([*expanded.sweep.fit, "length"])] if expanded.sweep.fit else []
        solved = list(cells(expanded.points, quantities, fields, DEVICES))
        seen = {(c.purpose, c.largest): 1 for c in solved[:1]} | {
            (c.purpose, c.beyond): 10**15 for c in solved[:1]
        }
        specs = {key: chart.to_dict() for key, chart in drawn.items()}
        fit = fit_table(solved, seen, {}) if solved else None
        sweeps.append(SweepResult(about, points, comparison, specs.copy, fit=fit))
    return Results(sweeps)


@pytest.fixture(scope="module")
def page(results, catalogue) -> str:
    return render(results, catalogue)


def rows_of(page: str, caption: str) -> dict[str, list[str]]:
    """The rows of a table by their first cell."""
    table = page[page.index(f"<caption>{caption}") :]
    table = table[: table.index("</table>")]
    rows = [
        [" ".join(str(Text(f"<td{cell}")).split()) for cell in row.split("<td")[1:]]
        for row in table.split("<tr>")[1:]
    ]
    return {row[0]: row[1:] for row in rows if row}


def test_every_formula_that_is_shown_gives_the_number_beside_it(results):
    """With the sizes of its point put in, for every quantity and point of these sweeps."""
    checked = 0
    for sweep in results.sweeps:
        for point in sweep.points.iter_rows(named=True):
            rows = sweep.comparison.filter(
                pl.col("quantity") != "peak_training_bytes",
                point=point["point"],
                prediction="formula",
            )
            for quantity in rows["quantity"].unique():
                if not (shown := formulas(point, quantity)):  # a program alone gives it
                    continue
                for row in rows.filter(pl.col("quantity") == quantity).iter_rows(named=True):
                    term = shown[row["component"]]
                    assert not sympy.sympify(term.each).atoms(sympy.Piecewise)
                    value = sympy.sympify(term.each * term.instances)
                    value = value.subs({s: point[s.name] for s in value.free_symbols})
                    assert int(value) == row["predicted"]
                    checked += 1
    assert checked > 800


def test_what_fits_is_what_was_solved(page, results):
    fit = results.sweeps[0].fit
    batches = rows_of(page, "Largest batch by peak training memory")
    for (label,), own in fit.filter(pl.col("field") == "batch").group_by("label"):
        length, *answers = batches[label]
        assert length == ("1,024" if label.startswith("GPT-2") else "2,048")
        for answer, cell in zip(answers, own.iter_rows(named=True), strict=True):
            if cell["value"] is None:
                assert answer == "no formula"
            elif cell["value"]:
                both = {cell["value_of_class"] or cell["value"], cell["value"]}
                assert answer.removesuffix(" *") == " – ".join(f"{n:,}" for n in sorted(both))
            else:
                times = cell["bytes_beyond"] / cell["memory"]
                assert answer.removesuffix(" *") == f"– {times:,.1f} ×"
    first = batches["GPT-2 124M"]
    assert not first[1].endswith("*")  # traced
    assert first[2].endswith("*")
    lengths = rows_of(page, "Longest sequence at batch 1 by peak training memory")
    assert lengths["GPT-2 124M"][-1].startswith("1,024 max")
    assert "1 of 1 traced values" in page


def test_a_device_that_holds_less_than_was_solved_is_red(results, catalogue):
    sweep = results.sweeps[0]
    wrong = sweep._replace(fit=sweep.fit.with_columns(confirmed=pl.lit(False)))
    page = render(Results([wrong]), catalogue)
    assert f"0 of {wrong.fit.height} traced values" in page
    assert "differs from trace" in rows_of(page, "Largest batch by peak")["GPT-2 124M"][1]


@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (390, "light")])
def test_a_browser_shows_all_of_it(open_page, page, tmp_path, width, scheme):
    path = tmp_path / "report.html"
    path.write_text(page, encoding="utf-8")
    tab = open_page(path.as_uri(), width, scheme)
    tab.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    for place in scroll_and_wait(tab):
        assert place.evaluate(DRAWN)
        assert place.evaluate("p => p.scrollWidth <= p.clientWidth")
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    cut = tab.evaluate(
        "[...document.querySelectorAll('.fits .scroll')]"
        ".filter(one => one.scrollWidth > one.clientWidth + 1).map(one => one.ariaLabel)"
    )
    assert cut == []
    assert tab.messages == []
    if width == 1280:
        assert violations(tab) == []
