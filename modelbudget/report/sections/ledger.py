"""GPT-2 module by module: the smallest size with its formulas, and the numbers of the others."""

import polars as pl
from markupsafe import Markup

from modelbudget.report import tables
from modelbudget.report.section import Page, Section

ID = "gpt-2-ledger"
LEDGER = "gpt-2-ledger/ledger.parquet"


def _contents(page: Page) -> dict:
    verdict = page.verdict_of(ID)
    ledger = page.part(LEDGER)
    first, *larger = ledger["model"].unique(maintain_order=True)
    return {
        "short": verdict.title,
        "verdict": verdict,
        "table": _ledger_table(ledger.filter(model=first), first),
        "others": _numbers(ledger.filter(pl.col("model").is_in(larger))) if larger else None,
    }


def _numbers(ledger: pl.DataFrame) -> Markup:
    """Return the table of all modules of several sizes: measured, and predicted if it differs."""
    rows: dict[str, dict] = {}
    for row in ledger.iter_rows(named=True):
        text = f"{row['true']:,}"
        if not row["agrees"]:
            text += f" (predicted {row['expected']:,})"
        rows.setdefault(row["module"], {"module": row["module"]})[row["model"]] = text
    wrong = set(ledger.filter(~pl.col("agrees").fill_null(False))["module"])
    return tables.table(
        list(rows.values()),
        "Modules of the other sizes: measured; a number that differs has its prediction beside it",
        red=[module in wrong for module in rows],
        whole=[module == "total" for module in rows],
    )


def _ledger_table(ledger: pl.DataFrame, name: str) -> Markup:
    sides = {"predicted": "expected", "measured": "true"}
    rows = [
        {"module": _module(row)}
        | {f"each, {side}": row[f"each_{column}"] for side, column in sides.items()}
        | {f"all, {side}": row[column] for side, column in sides.items()}
        for row in ledger.iter_rows(named=True)
    ]
    red, whole = ~ledger["agrees"].fill_null(False), ledger["module"] == "total"
    return tables.table(rows, f"Modules of {name}", red=red, whole=whole)


def _module(row: dict) -> Markup:
    """Return the module's path, with its class, number of instances and formula below it."""
    class_ = f"{row['instances']} × {row['kind']}" if row["instances"] > 1 else row["kind"]
    owner = f", tied to {row['shared_with']}" if row["shared_with"] else ""
    formula = Markup(row["mathml"]) if row["each_expected"] else ""
    return Markup("<code>{}</code><br><small>{}{}</small> {}").format(
        row["module"], class_, owner, formula
    )


SECTION = Section(130, ID, "", _contents, (LEDGER,))
