"""GPT-2 module by module: the smallest size with its formulas, and the numbers of the others."""

import polars as pl
from markupsafe import Markup

from modelbudget.common.number_format import count
from modelbudget.report import tables
from modelbudget.report.section import Page, Section

ID = "gpt-2-ledger"
LEDGER = "gpt-2-ledger/ledger.parquet"


def _contents(page: Page) -> dict:
    verdict, ledger = page.verdicts[ID], page.results.parts[LEDGER]
    first, *larger = ledger["model"].unique(maintain_order=True)
    return {
        "short": verdict.title,
        "verdict": verdict,
        "model": first,
        "modules": ledger.filter(model=first).to_dicts(),
        "others": _numbers(ledger.filter(pl.col("model").is_in(larger))) if larger else None,
    }


def _numbers(ledger: pl.DataFrame) -> Markup:
    """Return the table of all modules of several sizes: measured, and predicted if it differs."""
    agrees = pl.col("agrees").fill_null(False)
    measured, expected = (
        pl.col(name).map_elements(count, pl.String) for name in ("true", "expected")
    )
    both = pl.format("{} (predicted {})", measured, expected)
    texts = ledger.with_columns(text=pl.when(agrees).then(measured).otherwise(both))
    table = texts.pivot("model", index="module", values="text")
    wrong = ledger.filter(~agrees)["module"].implode()
    return tables.table(
        table,
        "Modules of the other sizes: measured; a number that differs has its prediction beside it",
        red=table["module"].is_in(wrong),
        whole=table["module"] == "total",
    )


SECTION = Section(130, ID, "", _contents, (LEDGER,))
