"""GPT-2 module by module: one table for each size of the model."""

import polars as pl
from markupsafe import Markup

from modelbudget.report import tables
from modelbudget.report.section import Page, Section

LEDGER = "gpt-2-ledger/ledger.parquet"


def _contents(page: Page) -> list[dict]:
    verdict = page.verdict_of("gpt-2-ledger")
    return [
        {
            "id": verdict.source,
            "short": verdict.title,
            "verdict": verdict,
            "models": [
                {"name": name, "table": _ledger_table(rows, name)}
                for (name,), rows in page.part(LEDGER).partition_by("model", as_dict=True).items()
            ],
        }
    ]


def _ledger_table(ledger: pl.DataFrame, name: str) -> Markup:
    rows = [
        {
            "module": _module(row),
            "each, predicted": row["each_expected"],
            "each, measured": row["each_true"],
            "all, predicted": row["expected"],
            "all, measured": row["true"],
        }
        for row in ledger.iter_rows(named=True)
    ]
    return tables.table(
        rows,
        f"Modules of {name}",
        numbers=("each, predicted", "each, measured", "all, predicted", "all, measured"),
        html=("module",),
        red=(~ledger["agrees"].fill_null(False)).to_list(),
        whole=(ledger["module"] == "total").to_list(),
    )


def _module(row: dict) -> Markup:
    """Return the module's path, with its class, number of instances and formula below it."""
    kind = f"{row['instances']} × {row['kind']}" if row["instances"] > 1 else row["kind"]
    owner = f", tied to {row['shared_with']}" if row["shared_with"] else ""
    formula = Markup(row["mathml"]) if row["each_expected"] else ""
    return Markup("<code>{}</code><br><small>{}{}</small> {}").format(
        row["module"], kind, owner, formula
    )


SECTION = Section(130, _contents, (LEDGER,))
