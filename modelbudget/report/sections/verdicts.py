"""The section of trust: what outsiders count, then our own witnesses."""

import polars as pl
from markupsafe import Markup

from modelbudget.common.number_format import count
from modelbudget.compare.class_verdict import judged
from modelbudget.compare.comparison import is_compared
from modelbudget.report import tables, verdict
from modelbudget.report.implementation_tables import class_values, most_of_classes
from modelbudget.report.page_data import PAGE
from modelbudget.report.page_results import Results, SweepResult, ordered
from modelbudget.report.ratios import ratios, readings_of
from modelbudget.report.section import Page, Section
from modelbudget.report.zoo_tables import tallies
from modelbudget.sweeps.quantity_names import OF_RUN

MOST_DISAGREEMENTS = 50
MOST_FAILURES = 20
SIDES = ("predicted", "measured")


def _contents(page: Page) -> dict:
    shown = verdict_section(page.results, list(page.verdicts.values()))
    if not (shown["trust"] and page.is_of_all):
        return shown | {"ratios": None}
    published, recorded = readings_of(page.results, page.catalogue)
    return shown | {"ratios": ratios(published, page.sweeps, recorded)}


def verdict_section(results: Results, verdicts: list[verdict.Verdict]) -> dict:
    """Return agreements, disagreements, failures, and the devices of the measurements.

    If nothing was compared, the page shows how to begin.
    """
    wrong, of_class = _disagreements(results), _class_disagreements(results)
    failures = verdict.failure_lines(results)
    return {
        **_agreement(verdicts),
        "bound": verdict.BOUND,
        "whole": all(v.whole for v in verdicts),
        "verdicts": verdicts,
        "failures": failures[:MOST_FAILURES],
        "more_failures": len(failures) - MOST_FAILURES,
        "trust": trust_section(ordered(results.sweeps)),
        "has_runs": any(
            OF_RUN & {*sweep.summary["measure"]["quantities"]} for sweep in results.sweeps
        ),
        "most": most_of_classes(ordered(results.sweeps)),
        "disagreements": _differences(wrong, "Predictions that differ from the measurement"),
        "more": len(wrong) - MOST_DISAGREEMENTS,
        "class_disagreements": _differences(
            of_class, "Values that differ from the class of transformers, and are about it"
        ),
        "more_of_class": len(of_class) - MOST_DISAGREEMENTS,
    }


def _agreement(verdicts: list[verdict.Verdict]) -> dict[str, str | int]:
    """Return what all verdicts count together, and the sentences that say it."""
    names = ("compared", "agreed", "near", "of_class", "of_class_agreed", "known")
    sums = {name: sum(getattr(of_table, name) for of_table in verdicts) for name in names}
    title = verdict.sentence(sums["agreed"], sums["compared"], sums["near"])
    texts = {"title": title, "banner": verdict.tally(verdicts)}
    return sums | (texts if verdicts else dict.fromkeys(texts, "Nothing has been measured yet"))


def _disagreements(results: Results) -> list[dict]:
    """Return every row that does not agree, in the order of the page."""
    compared = [
        (sweep.name, sweep.comparison.filter(is_compared()), ("label", "component", *SIDES))
        for sweep in ordered(results.sweeps)
    ] + [
        (source, results.parts[file], columns)
        for file, (source, _, *columns) in verdict.TABLES.items()
        if file in results.parts
    ]
    return [
        {
            "model": _link(source, row[model]), "component": row[component],
            "predicted": row[predicted], "measured": row[measured],
            "quantity": row.get("quantity", "parameters"),
            "difference": (row[measured] or 0) - (row[predicted] or 0),
        }
        for source, table, (model, component, predicted, measured) in compared
        for row in table.filter(~pl.col("agrees").fill_null(False)).iter_rows(named=True)
    ]  # fmt: skip


def _class_disagreements(results: Results) -> list[dict]:
    """Return every value that is not that of the class, in the order of the page."""
    return [
        {
            "model": _link(sweep.name, row["label"]), "quantity": row["quantity"],
            "phase": row["component"], **{side: row[side] for side in SIDES},
            "class": row["reference"], "difference": row["reference"] - ours,
            "of": f"{row['class']}, built from {row['built_from']}",
        }
        for sweep in ordered(results.sweeps)
        for row in judged(sweep.comparison).filter(~pl.col("agrees")).iter_rows(named=True)
        for ours in (row["measured"] if row["predicted"] is None else row["predicted"],)
    ]  # fmt: skip


def _differences(rows: list[dict], caption: str) -> Markup | None:
    """Return a table of values that differ; the first of many."""
    shown, numbers = rows[:MOST_DISAGREEMENTS], ("predicted", "measured", "class", "difference")
    return tables.table(shown, caption, numbers, [True] * len(shown)) if shown else None


def _link(section: str, text: str) -> Markup:
    return Markup('<a href="#{}">{}</a>').format(section, text)


def trust_section(sweeps: list[SweepResult]) -> dict | None:
    """Return what outsiders count.

    None without a sweep of all published models.
    """
    published = next((sweep for sweep in sweeps if sweep.zoo is not None), None)
    if published is None or published.zoo is None:
        return None
    tally, witnesses, traced = tallies(published.zoo), PAGE["outsiders"], class_values(sweeps)
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
    }


SECTION = Section(70, "verdict", "How right is it?", _contents)
