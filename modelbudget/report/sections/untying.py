"""Untying and tying GPT-2's head: drawings, a warning and a table."""

import polars as pl
from markupsafe import Markup

from modelbudget.report import tables
from modelbudget.report.section import Page, Section

ID = "tying-surgery"
SURGERY = "tying-surgery/surgery.parquet"


def _contents(page: Page) -> dict:
    surgery, verdict = page.part(SURGERY), page.verdict_of(ID)
    wrong = surgery.filter(pl.col("tied") != pl.col("data_ptr_says_tied"))
    answers = [
        {"tied": _tied(tied, tied), "by data_ptr": _tied(by_pointer, tied)}
        for tied, by_pointer in surgery.select("tied", "data_ptr_says_tied").rows()
    ]
    columns = surgery.select(
        "device", step="operation", predicted="expected", measured="parameters",
        embedding="embedding_storage", head="head_storage",
    )  # fmt: skip
    rows = [row | answer for row, answer in zip(columns.to_dicts(), answers, strict=True)]
    keys = ["step", "operation", "parameters", "embedding_storage", "head_storage"]
    drawn = surgery.group_by(keys, maintain_order=True).agg("device")
    where = ", ".join(
        f"{operation} on {device}"
        for operation, device in wrong.select("operation", "device").rows()
    )
    warning = (
        f"Comparing data_ptr() of the two tensors gives the wrong answer for: {where}. Tensors on "
        "meta have no memory: data_ptr() is 0 for all of them."
    )
    red = ~surgery["agrees"].fill_null(False)
    return {
        "short": verdict.title,
        "verdict": verdict,
        "warning": warning if where else None,
        "drawings": [_drawing(step) for step in drawn.iter_rows(named=True)],
        "table": tables.table(rows, "Each step on each device", ("predicted", "measured"), red),
    }


_TOP = {"A": 5, "B": 57}
"""Distance of each storage from the top of a drawing, in units of its view box."""


def _drawing(step: dict) -> dict:
    """Return a step and its devices, with the tops of its storages and the ends of its lines."""
    embedding, head = step["embedding_storage"], step["head_storage"]
    return step | {
        "storages": {letter: _TOP[letter] for letter in (embedding, head)},
        "lines": {22: _TOP[embedding] + 17, 74: _TOP[head] + 17},
    }


def _tied(tied: bool, truth: bool) -> Markup:
    answer = "yes" if tied else "no"
    return Markup(answer if tied == truth else f'<span class="disagrees">{answer}: wrong</span>')


SECTION = Section(140, ID, "", _contents, (SURGERY,))
