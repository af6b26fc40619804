"""The section of counting conventions: what they are, what they decide, and printed numbers."""

from collections import Counter
from functools import cache
from types import SimpleNamespace
from typing import Any

import altair as alt
import polars as pl
from markupsafe import Markup

from modelbudget.architecture.counting_conventions import BY_NAME, CONVENTIONS
from modelbudget.catalogue.named_models import Base, Catalogue
from modelbudget.common.number_format import count, percent
from modelbudget.common.paths import CONFIGS
from modelbudget.compare import scaling_studies
from modelbudget.compare.scaling_studies import DIFFERS, Row
from modelbudget.predict import nanochat_runs
from modelbudget.predict.counts_by_convention import counts, executed
from modelbudget.predict.optimal_size import FITS, LossFit, Shapes, exponent
from modelbudget.report import tables
from modelbudget.report.charts import theme
from modelbudget.report.charts.area_chart import SERIES, amounts_along
from modelbudget.report.charts.chart_tables import grouped, least_and_most
from modelbudget.report.page_data import PAGE
from modelbudget.report.section import Page, Section
from modelbudget.sweeps.derive import resolved
from modelbudget.sweeps.fields_in_words import field_title

PUBLISHED = CONFIGS / "published_scaling.yaml"
CHOSEN = SimpleNamespace(**PAGE["counting"])
"""Models, conventions, shapes and fields that the section shows."""
VERDICTS = (
    scaling_studies.EXACT, scaling_studies.ROUNDED, DIFFERS,
    scaling_studies.NO_COUNT, scaling_studies.MISSING,
)  # fmt: skip


def _contents(page: Page) -> dict | None:
    """Return tables and chart; None with a catalogue that has not their models."""
    if not {*CHOSEN.ladder, *CHOSEN.shown, CHOSEN.shapes} <= page.catalogue.bases.keys():
        return None
    sweeps = [(sweep.points, sweep.comparison) for sweep in page.sweeps]
    printed = scaling_studies.rows(PUBLISHED, sweeps)
    spec, parts = _of_models(page.catalogue)
    return parts | {
        "answer": f"{count(len(printed))} printed numbers of scaling studies: {_tally(printed)}.",
        "chart": page.charts.add("counting-departures", spec),
        "studies": [
            {"rows": rows, "tally": _tally(rows)}
            for rows in grouped(printed, lambda row: row.ladder.title).values()
        ],
        "DIFFERS": DIFFERS,
    }


@cache  # takes seconds, and is the same for all pages of a process
def _of_models(catalogue: Catalogue) -> tuple[dict, dict]:
    """Return the chart, and the parts of the context that do not depend on sweeps."""
    ladder = pl.DataFrame(
        [
            {"label": label, "parameters": values["total"], "series": name,
             "share": float(values[name] / steps)}
            for name in CHOSEN.drawn
            for label, values, steps in _models(catalogue, CHOSEN.ladder)
        ]
    )  # fmt: skip
    return departures(ladder).to_dict(), {
        "conventions": CONVENTIONS,
        "models": _models(catalogue, CHOSEN.shown),
        "ratios": [
            (label, of["6n"] / of["6n_without_embeddings"])
            for label, of, _ in _models(catalogue, (CHOSEN.shown[0], CHOSEN.shown[-1]))
        ],
        "axes": _axes(catalogue),
        "exponents": _exponents(catalogue),
        "same_runs": [  # of nanochat: as printed, and of the models of one count
            (
                of.title,
                of.exponent,
                nanochat_runs.slope(of.optima),
                nanochat_runs.exponent(nanochat_runs.MATRICES, of),
            )
            for of in nanochat_runs.COUNTS
        ],
    }


def _tally(printed: list[Row]) -> str:
    """Return the number of rows by verdict."""
    tally = Counter(row.verdict for row in printed)
    return ", ".join(f"{count(tally[of])} {of}" for of in VERDICTS if tally[of])


def _models(catalogue: Catalogue, names) -> list[tuple[str, dict[str, int], Any]]:
    """Return label, counts and executed FLOPs per token of models."""
    models = []
    for name in names:
        base = catalogue[name]
        a, run = resolved(base, CHOSEN.run)
        models.append((base.label, counts(a, run), executed(a, run)))
    return models


def _axes(catalogue: Catalogue) -> Markup:
    """Return a table of 6·N of what is executed, for one model with one field varied."""
    base = catalogue[CHOSEN.varied]
    columns = {
        field_title(field): [_six_n(base, field, value) for value in values]
        for field, values in CHOSEN.axes.items()
    }
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    caption = (
        f"6·N, N total, of the FLOPs per token that are executed: {base.label}, one field varied"
    )
    return tables.table(rows, caption, tuple(columns))


def _six_n(base: Base, field: str, value: int) -> str:
    a, run = resolved(base, CHOSEN.run | {field: value})
    steps = executed(a, run)
    return f"{count(value)}: {percent(float(counts(a, run)['6n'] / steps)) if steps else 'unknown'}"


def _exponents(catalogue: Catalogue) -> Markup:
    base = catalogue[CHOSEN.shapes]

    def ends(name: str, least: int, most: int, fit: LossFit) -> str:
        shapes = (Shapes(least, most, aspect) for aspect in CHOSEN.aspects)
        slopes = [exponent(base, of_aspect, fit, BY_NAME[name]) for of_aspect in shapes]
        return " to ".join(dict.fromkeys(f"{of:.2f}" for of in (min(slopes), max(slopes))))

    rows = [
        {"size": name}
        | {f"{title}, {fit.title.split()[0]}": ends(name, least, most, fit)
           for title, (least, most) in CHOSEN.ranges.items() for fit in FITS}
        for name in CHOSEN.sizes
    ]  # fmt: skip
    return tables.table(rows, "Exponent of the optimal size over compute")


def departures(rows: pl.DataFrame) -> alt.ConcatChart:
    """Draw estimates relative to the FLOPs that are executed, against parameters.

    Columns: label, parameters, series (the convention), share (of what is executed).
    """
    whole = alt.Chart(pl.DataFrame({"value": [1.0]})).mark_rule(color=theme.SOFT)
    ends = (rows.filter(pl.col("parameters") == end) for end in least_and_most(rows, "parameters"))
    small, large = (
        f"{percent(low)} to {percent(high)} for {model['label'][0]}"
        for model in ends
        for low, high in (least_and_most(model, "share"),)
    )
    return amounts_along(
        rows.rename({"share": "value"}),
        "share of the FLOPs that are executed",
        "parameters",
        SERIES,
        finding=f"Estimates of the FLOPs per token are {small}, and {large}, of what is executed. "
        "100 % is every matrix product of a training step, as our formulas predict and traces of "
        "the modules confirm.",
        title="FLOPs per training token, by convention",
        marks=[whole.encode(y="value:Q")],
        reaches=[1.0],
    )


SECTION = Section(150, "counting", "Counting conventions", _contents, of_all=True)
