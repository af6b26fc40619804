"""Untying and tying GPT-2's head: drawings, a warning and a table."""

import polars as pl
from markupsafe import Markup

from modelbudget.report import tables
from modelbudget.report.section import Page, Section

SURGERY = "tying-surgery/surgery.parquet"


def _contents(page: Page) -> list[dict]:
    surgery, verdict = page.part(SURGERY), page.verdict_of("tying-surgery")
    wrong = surgery.filter(pl.col("tied") != pl.col("data_ptr_says_tied"))
    rows = [
        {
            "device": row["device"],
            "step": row["operation"],
            "predicted": row["expected"],
            "measured": row["parameters"],
            "embedding": row["embedding_storage"],
            "head": row["head_storage"],
            "tied": _tied(row["tied"], row["tied"]),
            "by data_ptr": _tied(row["data_ptr_says_tied"], row["tied"]),
        }
        for row in surgery.iter_rows(named=True)
    ]
    keys = ["step", "operation", "parameters", "embedding_storage", "head_storage"]
    drawn = surgery.group_by(keys, maintain_order=True).agg("device")
    where = ", ".join(
        f"{operation} on {device}"
        for operation, device in wrong.select("operation", "device").rows()
    )
    return [
        {
            "id": verdict.source,
            "short": verdict.title,
            "verdict": verdict,
            "warning": "Comparing data_ptr() of the two tensors gives the wrong answer for: "
            f"{where}. Tensors on meta have no memory: data_ptr() is 0 for all of them."
            if where
            else None,
            "drawings": [_drawing(step) for step in drawn.iter_rows(named=True)],
            "table": tables.table(
                rows,
                "Each step on each device",
                numbers=("predicted", "measured"),
                red=(~surgery["agrees"].fill_null(False)).to_list(),
            ),
        }
    ]


_TOP = {"A": 5, "B": 57}
"""Distance of each storage from the top of a drawing, in units of its view box."""


def _drawing(step: dict) -> dict:
    """Return the storages of embedding and head after a step, and the devices with this result."""
    storages = {"embedding": step["embedding_storage"], "head": step["head_storage"]}
    starts = {"embedding": 22, "head": 74}
    return {
        "operation": step["operation"],
        "count": f"{step['parameters']:,}",
        "devices": ", ".join(step["device"]),
        "storages": [
            {"letter": fromkey, "top": _TOP[fromkey]}
            for fromkey in dict.fromkeys(storages.values())
        ],
        "lines": [{"start": starts[k], "end": _TOP[letter] + 17} for k, letter in storages.items()],
        "description": ", ".join(
            f"{name} in storage {letter}" for name, letter in storages.items()
        ),
    }


def _tied(tied: bool, truth: bool) -> Markup:
    answer = "yes" if tied else "no"
    return Markup(answer if tied == truth else f'<span class="disagrees">{answer}: wrong</span>')


SECTION = Section(140, _contents, (SURGERY,))
