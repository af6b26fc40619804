"""Untying and tying GPT-2's head: a warning and a table."""

import polars as pl

from modelbudget.report.section import Page, Section

ID = "tying-surgery"
SURGERY = "tying-surgery/surgery.parquet"


def _contents(page: Page) -> dict:
    surgery, verdict = page.results.parts[SURGERY], page.verdicts[ID]
    wrong = surgery.filter(pl.col("tied") != pl.col("data_ptr_says_tied"))
    where = ", ".join(f"{row['operation']} on {row['device']}" for row in wrong.to_dicts())
    return {
        "short": verdict.title,
        "verdict": verdict,
        "where": where,
        "rows": surgery.to_dicts(),
    }


SECTION = Section(140, ID, "", _contents, (SURGERY,))
