"""The section of counting conventions: what they are, what they decide, and printed numbers."""

from functools import cache
from types import SimpleNamespace
from typing import Any

import altair as alt
import polars as pl
from markupsafe import Markup

from modelbudget.catalogue.named_models import Base, Catalogue
from modelbudget.common.paths import CONFIGS
from modelbudget.compare import scaling_studies
from modelbudget.compare.scaling_studies import DIFFERS, NO_COUNT, Row
from modelbudget.predict import nanochat_runs
from modelbudget.predict.counts_by_convention import (
    BY_NAME,
    CONVENTIONS,
    FLOPS,
    PARAMETERS,
    counts,
    executed,
)
from modelbudget.predict.optimal_size import FITS, Shapes, exponent
from modelbudget.report import tables
from modelbudget.report.charts import theme
from modelbudget.report.charts.area_chart import SERIES, amounts_along
from modelbudget.report.charts.format import (
    count,
    field_title,
    percent,
    scientific,
    short,
    signed_percent,
)
from modelbudget.report.charts.grouped_values import evenly_spaced, least_and_most
from modelbudget.report.page_data import PAGE
from modelbudget.report.section import Page, Section
from modelbudget.sweeps.derive import resolved

PUBLISHED = CONFIGS / "published_scaling.yaml"
CHOSEN = SimpleNamespace(**PAGE["counting"])
"""Models, conventions, shapes and fields that the section shows."""
MOST_ROWS = 2
"""Rows of a ladder among those that are no counts."""
VERDICTS = (
    scaling_studies.EXACT, scaling_studies.ROUNDED, DIFFERS, NO_COUNT, scaling_studies.RECALLED,
    scaling_studies.MISSING,
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
        "studies": _studies(printed),
        "no_counts": _no_counts(printed),
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
        "conventions": [_conventions(catalogue, unit) for unit in (PARAMETERS, FLOPS)],
        "ratios": _ratios(catalogue),
        "axes": _axes(catalogue),
        "exponents": _exponents(catalogue),
        "same_runs": _same_runs(),
    }


def _tally(printed: list[Row]) -> str:
    """Return the number of rows by verdict."""
    tally = [(verdict, sum(row.verdict == verdict for row in printed)) for verdict in VERDICTS]
    return ", ".join(f"{count(n)} {verdict}" for verdict, n in tally if n)


def _models(catalogue: Catalogue, names) -> list[tuple[str, dict[str, int], Any]]:
    """Return label, counts and executed FLOPs per token of models."""
    models = []
    for name in names:
        base = catalogue[name]
        a, run = resolved(base, CHOSEN.run)
        models.append((base.label, counts(a, run), executed(a, run)))
    return models


def _conventions(catalogue: Catalogue, unit: str) -> Markup:
    models, is_size = _models(catalogue, CHOSEN.shown), unit == PARAMETERS
    whole = {label: values["total"] if is_size else steps for label, values, steps in models}
    if is_size:
        first, caption = "all", "Parameters by convention, of all parameters"
        amounts = {label: short(n) for label, n in whole.items()}
    else:
        first = "executed, FLOPs per token"
        caption = "FLOPs per token of sequences of 2,048 tokens, by convention, of those executed"
        amounts = {label: scientific(round(n)) for label, n in whole.items()}
    rows = [{"convention": first} | amounts]
    for convention in CONVENTIONS:
        if convention.unit == unit:
            name = Markup("<code>{}</code> <small>{}. {}</small>").format(
                convention.name, convention.rule, convention.source
            )
            shares = {label: float(of[convention.name] / whole[label]) for label, of, _ in models}
            rows.append({"convention": name} | {k: percent(v) for k, v in shares.items()})
    return tables.table(rows, caption)


def _ratios(catalogue: Catalogue) -> list[tuple[str, float]]:
    """Return label, and 6·N·D with all parameters over that without embeddings, of two models."""
    models = _models(catalogue, (CHOSEN.shown[0], CHOSEN.shown[-1]))
    return [(label, of["6n"] / of["6n_without_embeddings"]) for label, of, _ in models]


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
    rows = []
    for name in CHOSEN.sizes:
        row = {"size": name}
        for title, (least, most) in CHOSEN.ranges.items():
            for fit in FITS:
                slopes = [
                    exponent(base, Shapes(least, most, aspect), fit, BY_NAME[name])
                    for aspect in CHOSEN.aspects
                ]
                ends = dict.fromkeys(f"{value:.2f}" for value in (min(slopes), max(slopes)))
                row[f"{title}, {fit.title.split()[0]}"] = " to ".join(ends)
        rows.append(row)
    return tables.table(rows, "Exponent of the optimal size over compute")


def _same_runs() -> Markup:
    """Return a table of nanochat's exponents: as printed, and of the models of one count."""
    of = nanochat_runs
    rows = [
        {
            "size": size.title,
            "printed": f"{size.exponent:.2f}",
            "slope of the printed optima": f"{of.slope(size.optima):.3f}",
            "the same models, counted": f"{of.exponent(of.MATRICES, size):.3f}",
        }
        for size in of.COUNTS
    ]
    return tables.table(rows, "nanochat: three exponents of the same runs")


def _studies(printed: list[Row]) -> Markup:
    """Return a table of the ladders: what is printed, how it counts, and what is reproduced."""
    rows = []
    for ladder in {row.ladder.title: row.ladder for row in printed}.values():
        of_ladder = [row for row in printed if row.ladder.title == ladder.title]
        names = dict.fromkeys(row.convention.name for row in of_ladder)
        code = Markup(", ").join(Markup("<code>{}</code>").format(name) for name in names)
        study = Markup("{}: {} <small>{}</small>").format(ladder.title, code, ladder.source)
        rows.append({"study and convention": study, "printed numbers": _tally(of_ladder)})
    red = [DIFFERS in row["printed numbers"] for row in rows]
    return tables.table(rows, "Printed numbers, by study", (), red)


def _no_counts(printed: list[Row]) -> Markup | None:
    """Return a table of what differs, and of what is no count: the ends of each ladder."""
    shown = [row for row in printed if row.verdict == DIFFERS]
    for title in dict.fromkeys(row.ladder.title for row in printed):
        of_ladder = [
            row for row in printed if row.ladder.title == title and row.verdict == NO_COUNT
        ]
        of_ladder.sort(key=lambda row: row.error or 0)
        shown += [of_ladder[i] for i in evenly_spaced(range(len(of_ladder)), MOST_ROWS)]
    rows = [
        {
            "model": row.printed.model,
            "printed": _number(row.printed.published),
            "counted": _counted(row),
            "verdict": row.verdict
            + (f", {signed_percent(row.error)}" if row.verdict == NO_COUNT and row.error else ""),
            "reason": row.ladder.reason,
        }
        for row in shown
    ]
    red = [row.verdict == DIFFERS for row in shown]
    caption = "Printed numbers that are not the count of their model"
    return tables.table(rows, caption, ("printed", "counted"), red) if rows else None


def _number(value: int | None) -> int | str | None:
    """Return a number as the table shows it; training FLOPs have too many digits to be read."""
    return scientific(value) if value is not None and value >= 10**18 else value


def _counted(row: Row) -> int | str | None:
    """Return the prediction, which the measurement equals, or both."""
    if row.measured in (None, row.predicted):
        return _number(row.predicted)
    return f"{count(row.predicted or 0)} predicted, {count(row.measured or 0)} measured"


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
