"""Sections not tied to a sweep: GPT-2's modules, untying GPT-2, provenance, citation."""

import polars as pl
from markupsafe import Markup

from modelbudget.report import tables
from modelbudget.report.verdict import Verdict


def ledger_section(ledger: pl.DataFrame | None, verdict: Verdict | None) -> dict | None:
    """Return the section of GPT-2's modules: one table for each size of the model."""
    if ledger is None:
        return None
    return {
        "verdict": verdict,
        "models": [
            {"name": name, "table": _ledger_table(rows, name)}
            for (name,), rows in ledger.partition_by("model", as_dict=True).items()
        ],
    }


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


def surgery_section(surgery: pl.DataFrame | None, verdict: Verdict | None) -> dict | None:
    """Return the section of untying and tying GPT-2's head: drawings, a warning and a table."""
    if surgery is None:
        return None
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
    where = ", ".join(
        f"{operation} on {device}"
        for operation, device in wrong.select("operation", "device").rows()
    )
    return {
        "verdict": verdict,
        "warning": f"Comparing data_ptr() of the two tensors gives the wrong answer for: {where}. "
        "Tensors on meta have no memory: data_ptr() is 0 for all of them."
        if where
        else None,
        "drawings": _drawings(surgery),
        "table": tables.table(
            rows,
            "Each step on each device",
            numbers=("predicted", "measured"),
            html=("tied", "by data_ptr"),
            red=(~surgery["agrees"].fill_null(False)).to_list(),
        ),
    }


_TOP = {"A": 5, "B": 57}
"""Distance of each storage from the top of a drawing, in units of its view box."""


def _drawings(surgery: pl.DataFrame) -> list[dict]:
    """Return a drawing of each step: the storages of embedding and head.

    Devices with the same result share a drawing.
    """
    keys = ["step", "operation", "parameters", "embedding_storage", "head_storage"]
    steps = surgery.group_by(keys, maintain_order=True).agg("device").iter_rows(named=True)
    return [_drawing(step) for step in steps]


def _drawing(step: dict) -> dict:
    storages = {"embedding": step["embedding_storage"], "head": step["head_storage"]}
    starts = {"embedding": 22, "head": 74}
    return {
        "operation": step["operation"],
        "count": f"{step['parameters']:,}",
        "devices": ", ".join(step["device"]),
        "storages": [{"letter": one, "top": _TOP[one]} for one in dict.fromkeys(storages.values())],
        "lines": [{"start": starts[k], "end": _TOP[one] + 17} for k, one in storages.items()],
        "description": ", ".join(f"{name} in storage {one}" for name, one in storages.items()),
    }


def _tied(tied: bool, truth: bool) -> Markup:
    answer = "yes" if tied else "no"
    return Markup(answer if tied == truth else f'<span class="disagrees">{answer}: wrong</span>')


def provenance_section(provenance: dict | None) -> list[tuple[str, list[str]]] | None:
    """Return terms and values without the time, so that equal results make equal pages."""
    if provenance is None:
        return None
    versions = [f"{name} {version}" for name, version in provenance["versions"].items()]
    return [
        ("versions", versions),
        ("commit", [str(provenance["commit"])]),
        ("device", [str(provenance["device"])]),
    ]


def citation(provenance: dict | None) -> dict[str, str] | None:
    """Return the citation as text and as BibTeX, without the year, which varies with the time."""
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
