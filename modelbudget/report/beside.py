"""The sections beside the sweeps: GPT-2's ledger, tying as surgery, provenance."""

import polars as pl
from markupsafe import Markup

from modelbudget.report import tables
from modelbudget.report.verdict import Verdict


def ledger_section(ledger: pl.DataFrame | None, its_verdict: Verdict | None) -> dict | None:
    if ledger is None:
        return None
    return {
        "verdict": its_verdict,
        "models": [
            {"name": name, "table": _ledger_table(rows, name)}
            for (name,), rows in ledger.partition_by("model", as_dict=True).items()
        ],
    }


def _ledger_table(ledger: pl.DataFrame, name: str) -> Markup:
    rows = [
        {
            "module": _module(row),
            "kind": row["kind"],
            "n": row["instances"],
            "one, expected": row["each_expected"],
            "one, true": row["each_true"],
            "all, expected": row["expected"],
            "all, true": row["true"],
        }
        for row in ledger.iter_rows(named=True)
    ]
    return tables.table(
        rows,
        f"Modules of {name}",
        numbers=("n", "one, expected", "one, true", "all, expected", "all, true"),
        html=("module",),
        red=(~ledger["agrees"].fill_null(False)).to_list(),
        whole=(ledger["module"] == "total").to_list(),
    )


def _module(row: dict) -> Markup:
    """The module's path; below it, its formula, or whose matrix it uses."""
    path = Markup("<code>{}</code>").format(row["module"])
    if row["shared_with"]:
        return path + Markup("<br><small>matrix of {}</small>").format(row["shared_with"])
    return path + Markup(f"<br>{row['mathml']}") if row["each_expected"] else path


def surgery_section(surgery: pl.DataFrame | None, its_verdict: Verdict | None) -> dict | None:
    if surgery is None:
        return None
    lies = surgery.filter(pl.col("tied") != pl.col("data_ptr_says_tied"))
    rows = [
        {
            "device": row["device"],
            "step": row["operation"],
            "expected": row["expected"],
            "counted": row["parameters"],
            "embedding": row["embedding_storage"],
            "head": row["head_storage"],
            "truth": _said(row["tied"], row["tied"]),
            "by data_ptr": _said(row["data_ptr_says_tied"], row["tied"]),
        }
        for row in surgery.iter_rows(named=True)
    ]
    where = ", ".join(
        f"{operation} on {device}"
        for operation, device in lies.select("operation", "device").rows()
    )
    return {
        "verdict": its_verdict,
        "lies": f"Comparing data_ptr(), the test that comes to mind, is wrong here: {where}. "
        "Tensors on meta have no memory, so each answers 0 and all seem to be one."
        if where
        else None,
        "table": tables.table(
            rows,
            "Each step on each device",
            numbers=("expected", "counted"),
            html=("truth", "by data_ptr"),
            red=(~surgery["agrees"].fill_null(False)).to_list(),
        ),
    }


def _said(tied: bool, truth: bool) -> Markup:
    word = "tied" if tied else "apart"
    return Markup(word if tied == truth else f'<span class="disagrees">{word} – wrong</span>')


def provenance_section(provenance: dict | None) -> list[tuple[str, list[str]]] | None:
    """Without the time, so that equal results make equal pages."""
    if provenance is None:
        return None
    versions = [f"{name} {version}" for name, version in provenance["versions"].items()]
    return [
        ("versions", versions),
        ("commit", [str(provenance["commit"])]),
        ("device", [str(provenance["device"])]),
    ]
