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
        numbers=("one, expected", "one, true", "all, expected", "all, true"),
        html=("module",),
        red=(~ledger["agrees"].fill_null(False)).to_list(),
        whole=(ledger["module"] == "total").to_list(),
    )


def _module(row: dict) -> Markup:
    """The module's path; below it what it is, how many there are, and its formula if it has one."""
    kind = f"{row['instances']} × {row['kind']}" if row["instances"] > 1 else row["kind"]
    owner = f", matrix of {row['shared_with']}" if row["shared_with"] else ""
    formula = Markup(row["mathml"]) if row["each_expected"] else ""
    return Markup("<code>{}</code><br><small>{}{}</small> {}").format(
        row["module"], kind, owner, formula
    )


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
        "drawn": _drawn(surgery),
        "table": tables.table(
            rows,
            "Each step on each device",
            numbers=("expected", "counted"),
            html=("truth", "by data_ptr"),
            red=(~surgery["agrees"].fill_null(False)).to_list(),
        ),
    }


_PLACES = {"A": 5, "B": 57}
"""How far from its top a drawing holds each storage, in its own units."""


def _drawn(surgery: pl.DataFrame) -> list[dict]:
    """Each step as a drawing: in which storages embedding and head live; devices that agree
    share one.
    """
    what = ["step", "operation", "parameters", "embedding_storage", "head_storage"]
    steps = surgery.group_by(what, maintain_order=True).agg("device").iter_rows(named=True)
    return [_drawing(step) for step in steps]


def _drawing(step: dict) -> dict:
    homes = {"embedding": step["embedding_storage"], "head": step["head_storage"]}
    starts = {"embedding": 22, "head": 74}
    return {
        "operation": step["operation"],
        "count": f"{step['parameters']:,}",
        "devices": ", ".join(step["device"]),
        "storages": [{"letter": one, "top": _PLACES[one]} for one in dict.fromkeys(homes.values())],
        "lines": [{"start": starts[k], "end": _PLACES[home] + 17} for k, home in homes.items()],
        "says": ", ".join(f"{name} in storage {home}" for name, home in homes.items()),
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


def citation(provenance: dict | None) -> dict[str, str] | None:
    """How to name these results, in words and for BibTeX. The year stays out with the time."""
    if provenance is None:
        return None
    version, commit = provenance["versions"]["modelbudget"], provenance["commit"]
    title = "modelbudget: where the budget of sequence models goes"
    author = "The modelbudget authors"
    return {
        "text": f"{author}. {title}. Version {version}, commit {commit}.",
        "bibtex": f"@software{{modelbudget,\n  title = {{{title}}},\n"
        f"  author = {{{{{author}}}}},\n  version = {{{version}}},\n"
        f"  note = {{commit {commit}}},\n}}",
    }
