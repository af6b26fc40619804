"""The section of trust: what outsiders count, then our own witnesses."""

from collections import Counter

import polars as pl
from markupsafe import Markup

from modelbudget.compare.zoo import NO_REASON
from modelbudget.report import tables, verdict
from modelbudget.report.charts.format import count
from modelbudget.report.implementation_tables import class_values, most_of_classes
from modelbudget.report.page_data import PAGE
from modelbudget.report.page_results import Results, SweepResult, ordered
from modelbudget.report.predicted_readings import readings_of
from modelbudget.report.ratios import ratios
from modelbudget.report.section import Page, Section
from modelbudget.report.zoo_tables import tallies

MOST_DISAGREEMENTS = 50
MOST_FAILURES = 20


def _contents(page: Page) -> dict:
    shown = verdict_section(page.results, page.verdicts)
    if not (shown["trust"] and page.is_of_all):
        return shown | {"ratios": None}
    readings = readings_of(page.results, page.catalogue)
    return shown | {"ratios": ratios(readings.published, page.sweeps, readings.recorded)}


def verdict_section(results: Results, verdicts: list[verdict.Verdict]) -> dict:
    """Return agreements, disagreements, failures, and the devices of the measurements.

    `table` is None if nothing was compared; the page then shows how to begin.
    """
    wrong, failures = verdict.disagreements(results), verdict.failure_lines(results)
    of_class = verdict.class_disagreements(results)
    shown = {sweep.name for sweep in (*results.sweeps, *results.predicted)}
    return {
        **_agreement(verdicts),
        "whole": all(v.whole for v in verdicts),
        "verdicts": verdicts,
        "failures": failures[:MOST_FAILURES],
        "more_failures": _beyond(failures, MOST_FAILURES),
        "trust": trust_section(ordered(results.sweeps)),
        "devices": [
            (n, verdict.device_text(device))
            for device, n in sorted(sum((Counter(v.models) for v in verdicts), Counter()).items())
        ],
        "most": most_of_classes(ordered(results.sweeps)),
        "table": _by_section(verdicts) if verdicts else None,
        "disagreements": _differences(wrong, "Predictions that differ from the measurement"),
        "on_request": [(name, title) for name, title in results.on_request if name not in shown],
        "more": _beyond(wrong, MOST_DISAGREEMENTS),
        "class_disagreements": _differences(
            of_class, "Values that differ from the class of transformers, and are about it"
        ),
        "more_of_class": _beyond(of_class, MOST_DISAGREEMENTS),
    }


def _agreement(verdicts: list[verdict.Verdict]) -> dict[str, str | None]:
    """Return sentences: on all comparisons, on those that are not exact, and on classes."""
    if not verdicts:
        nothing = "Nothing has been measured yet"
        return {"title": nothing, "banner": nothing, "near": None, "of_class": None}
    compared, agreed, near, must, of_class, known = (
        sum(getattr(of_table, name) for of_table in verdicts)
        for name in ("compared", "agreed", "near", "of_class", "of_class_agreed", "known")
    )
    text = f"{count(near)} of them agree within {verdict.BOUND}; all others are exactly equal."
    but = f", {count(known)} of them but for a known difference" if known else ""
    classes = f"{count(of_class)} of {count(must)} of these values equal the class’s{but}"
    return {
        "title": verdict.sentence(agreed, compared, near),
        "banner": verdict.tally(verdicts),
        "near": text if near else None,
        "of_class": classes if must else None,
    }


def _beyond(lines: list, shown: int) -> str | None:
    """Return how many lines are not shown, if any."""
    return count(len(lines) - shown) if len(lines) > shown else None


def _by_section(verdicts: list[verdict.Verdict]) -> Markup:
    rows = [
        {
            "section": _link(one.source, one.title),
            "compared": one.compared,
            "agree": one.agreed,
            "within tolerance": one.near or None,
            "with classes": one.of_class or None,
            "agree with them": one.of_class_agreed if one.of_class else None,
            "models": ", ".join(f"{count(n)} {way}" for way, n in one.models.items()) or None,
        }
        for one in verdicts
    ]
    red = [not one.whole for one in verdicts]
    return tables.table(rows, "Comparisons and models by section", list(rows[0])[1:-1], red)


def _differences(rows: list[tuple[str, dict]], caption: str) -> Markup | None:
    """Return a table of values that differ, with links to their sections; the first of many."""
    shown = [row | {"model": _link(where, row["model"])} for where, row in rows]
    shown = shown[:MOST_DISAGREEMENTS]
    numbers = ("predicted", "measured", "class", "difference")
    return tables.table(shown, caption, numbers, [True] * len(shown)) if shown else None


def _link(section: str, text: str) -> Markup:
    return Markup('<a href="#{}">{}</a>').format(section, text)


def trust_section(sweeps: list[SweepResult]) -> dict | None:
    """Return what outsiders count, and every printed size that nothing explains.

    None without a sweep of all published models.
    """
    published = next((sweep for sweep in sweeps if sweep.zoo is not None), None)
    if published is None or published.zoo is None:
        return None
    tally, reason = tallies(published.zoo), pl.col("published_value_reason")
    witnesses, traced = PAGE["outsiders"], class_values(sweeps)
    outside = [tally[name] | {"witness": text} for name, text in witnesses.items() if name in tally]
    if traced:
        text = witnesses["traced"].format(" and ".join(traced["classes"]))
        outside.insert(1, traced | {"witness": text})
    agreed, values, unexplained = (
        sum(int(tallied[name]) for tallied in outside)
        for name in ("agrees", "models", "unexplained")
    )
    return {
        "title": f"{count(agreed)} of {count(values)} numbers of others equal our formulas"
        + (f"; {count(unexplained)} are unexplained" if unexplained else ""),
        "outside": [tallied for tallied in outside if tallied["models"]],
        "section": published.name,
        "open": published.zoo.filter(reason.str.starts_with(NO_REASON))
        .with_columns(reason=reason.str.strip_prefix(NO_REASON).str.strip_chars_start(": "))
        .to_dicts(),
    }


SECTION = Section(70, "verdict", "How right is it?", _contents)
