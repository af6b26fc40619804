"""The page: what each section shows, and the one file around it all."""

import base64
import hashlib
import json
from typing import NamedTuple

import jinja2
import polars as pl
import vl_convert
from markdown_it import MarkdownIt
from markupsafe import Markup

from modelbudget.catalogue import Catalogue
from modelbudget.charts.headline import headline, largest
from modelbudget.charts.words import count, percent
from modelbudget.expand import named_architecture
from modelbudget.report import formulas, specs, tables, verdict

COUNTED_BY_HAND = 10_000
"""Where every model of a sweep is this small, all of its formulas are shown with their numbers."""
MOST_DISAGREEMENTS = 50
_DEVICES = {
    "cpu": "on CPU, in real storages",
    "cuda": "on CUDA, in real storages",
    "meta": "on meta, as shapes without storage",
    "not measured": "not at all",
}


class SweepResult(NamedTuple):
    """What a sweep left in its folder: sweep.json, two tables, and its chart specs by name."""

    summary: dict
    points: pl.DataFrame
    comparison: pl.DataFrame
    charts: dict[str, dict]

    @property
    def name(self) -> str:
        return self.summary["name"]


class Results(NamedTuple):
    """All that a page can show; what is None was not made and is left out."""

    sweeps: list[SweepResult]
    ledger: pl.DataFrame | None = None
    surgery: pl.DataFrame | None = None
    provenance: dict | None = None


def ordered(sweeps: list[SweepResult]) -> list[SweepResult]:
    """As the page shows them."""
    return sorted(sweeps, key=lambda sweep: (sweep.summary["order"], sweep.name))


def verdicts(results: Results) -> list[verdict.Verdict]:
    """One for each sweep and each table beside them, in the order of the page."""
    found = [
        verdict.of_sweep(sweep.name, sweep.summary["title"], sweep.comparison)
        for sweep in ordered(results.sweeps)
    ]
    if results.ledger is not None:
        table = results.ledger.with_columns(method=pl.lit("cpu"))
        found.append(verdict.of_table("gpt-2-ledger", "The GPT-2 ledger", table, "model", "method"))
    if results.surgery is not None:
        found.append(
            verdict.of_table("tying-surgery", "Tying as surgery", results.surgery, "step", "device")
        )
    return found


def render(results: Results, catalogue: Catalogue) -> str:
    """The whole page. The same results give the same bytes."""
    sweeps = ordered(results.sweeps)
    found = verdicts(results)
    by_source = {one.source: one for one in found}
    charts: dict = {"specs": {}, "datasets": {}}
    known = _known_models(catalogue)
    top = _headline(sweeps, charts)
    sections = [_sweep(sweep, by_source[sweep.name], known, charts) for sweep in sweeps]
    context = {
        "title": top["title"] if top else "Where the budget of sequence models goes",
        "headline": top,
        "verdict": _verdict(found, sweeps),
        "sweeps": sections,
        "ledger": _ledger(results.ledger, by_source.get("gpt-2-ledger")),
        "surgery": _surgery(results.surgery, by_source.get("tying-surgery")),
        "provenance": _provenance(results.provenance),
        "charts": _json(charts),
    }
    context["contents"] = [
        ("verdict", "Predicted and counted"),
        *((one.source, one.title) for one in found),
        *([("provenance", "Provenance")] if results.provenance else []),
    ]
    return _filled(context)


def _filled(context: dict) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(tables.TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    style = specs.palette_css() + (tables.TEMPLATES / "style.css").read_text(encoding="utf-8")
    script = (tables.TEMPLATES / "charts.js").read_text(encoding="utf-8")
    bundle = vl_convert.javascript_bundle()
    policy = (
        f"default-src 'none'; script-src {_hash(bundle)} {_hash(script)}; "
        f"style-src {_hash(style)}; base-uri 'none'; form-action 'none'"
    )
    return environment.get_template("page.html.j2").render(
        context, style=style, script=script, bundle=bundle, policy=policy
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _json(data: dict) -> str:
    """JSON that no text within can end the script element of."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    return text.replace("<", "\\u003c")


def _known_models(catalogue: Catalogue) -> dict[str, str]:
    """Digest of each named model's architecture → the name that people know it by."""
    known = {}
    for base in catalogue.bases.values():
        if base.model is not None:
            known.setdefault(named_architecture(base).digest(), base.label)
    return known


def _headline(sweeps: list[SweepResult], charts: dict) -> dict | None:
    """The largest model that was measured: its picture, and every group's number."""
    chosen = largest([sweep.comparison for sweep in sweeps])
    if chosen is None:
        return None
    table, comparison = chosen
    spec = headline(table).to_dict()
    parts = table.filter(pl.col("value") > 0).sort("value", descending=True)
    label, total = table["label"][0], table["total"][0]
    predicted = comparison.filter(pl.col("quantity") == "parameters")["predicted"].sum()
    return {
        "title": f"Where {label}’s {count(total)} parameters go",
        "chart": _added(charts, "headline-chart", spec, "headline.charts/headline"),
        "parts": [
            {
                "group": group,
                "share": percent(share),
                "count": count(value),
                "swatch": specs.variable_of_group(group),
            }
            for group, share, value in parts.select("group", "share", "value").rows()
        ],
        "method": _DEVICES.get(comparison["method"][0]),
        "predicted": count(predicted),
    }


def _added(charts: dict, identifier: str, spec: dict, files: str) -> dict:
    """Puts a chart among those of the page; what its figure shows."""
    shown, drawn, datasets = specs.figure(identifier, spec, files)
    charts["specs"][identifier] = drawn
    charts["datasets"] |= datasets
    return shown


def _verdict(found: list[verdict.Verdict], sweeps: list[SweepResult]) -> dict:
    compared, agreed = sum(v.compared for v in found), sum(v.agreed for v in found)
    where = [
        f"{count(n)} {'model' if n == 1 else 'models'} {_DEVICES.get(device, f'on {device}')}"
        for device, n in verdict.models_by_device(found).items()
    ]
    wrong = pl.concat(
        [_wrong(sweep) for sweep in sweeps] or [pl.DataFrame()], how="vertical_relaxed"
    )
    rows = [
        {
            "where": Markup('<a href="#{}">{}</a>').format(one.source, one.title),
            "models": sum(one.models.values()),
            "compared": one.compared,
            "agree": one.agreed,
            "counted": ", ".join(f"{count(n)} {device}" for device, n in one.models.items()),
        }
        for one in found
    ]
    return {
        "words": f"{count(agreed)} of {count(compared)} predictions are what torch counts",
        "whole": agreed == compared,
        "devices": f"Counted: {', '.join(where)}.",
        "table": tables.table(
            rows,
            "Comparisons and models, by section",
            numbers=("models", "compared", "agree"),
            html=("where",),
            red=[not one.whole for one in found],
        ),
        "disagreements": _disagreements(wrong.head(MOST_DISAGREEMENTS)),
        "more": count(wrong.height - MOST_DISAGREEMENTS)
        if wrong.height > MOST_DISAGREEMENTS
        else None,
    }


def _wrong(sweep: SweepResult) -> pl.DataFrame:
    shown = ["label", "component", "quantity", "predicted", "measured", "difference"]
    rows = sweep.comparison.filter(~pl.col("agrees").fill_null(False))
    return rows.select(pl.lit(sweep.name).alias("sweep"), *shown)


def _disagreements(rows: pl.DataFrame) -> Markup | None:
    if rows.is_empty():
        return None
    shown = rows.rename({"label": "model", "measured": "counted"})
    return tables.table(
        shown.to_dicts(),
        "Where prediction and count differ",
        numbers=("predicted", "counted", "difference"),
        red=[True] * shown.height,
    )


def _sweep(
    sweep: SweepResult, its_verdict: verdict.Verdict, known: dict[str, str], charts: dict
) -> dict:
    return {
        "name": sweep.name,
        "title": sweep.summary["title"],
        "question": MarkdownIt("commonmark", {"html": False}).render(sweep.summary["question"]),
        "facts": _facts(sweep.summary, its_verdict),
        "verdict": its_verdict,
        "charts": [
            _added(charts, f"{sweep.name}-{name}", spec, f"{sweep.name}/charts/{name}")
            for name, spec in sweep.charts.items()
        ],
        "examples": _examples(sweep, known),
    }


def _facts(summary: dict, its_verdict: verdict.Verdict) -> list[tuple[str, list[str]]]:
    """What the sweep file said, in a few lines; what it left out stays out."""
    dropped = summary["dropped"]
    dropping = f", {count(dropped)} more dropped by constraints" if dropped else ""
    facts = [
        ("base", [summary["base"]] if summary["base"] else []),
        ("fixed", [f"{name} = {_shown(value)}" for name, value in summary["fixed"].items()]),
        ("axes", [f"{name}: {_range(values)}" for name, values in summary["axes"].items()]),
        ("derived", [f"{name} = {text}" for name, text in summary["derive"].items()]),
        ("constraints", summary["constraints"]),
        ("models", [f"{count(summary['points'])}{dropping}"]),
        (
            "counted",
            [
                f"{count(n)} {_DEVICES.get(device, f'on {device}')}"
                for device, n in its_verdict.models.items()
            ],
        ),
    ]
    return [(term, words) for term, words in facts if words]


def _range(values: list) -> str:
    if len(values) <= 8:
        return ", ".join(map(_shown, values))
    return f"{len(values)} values, {_shown(values[0])} … {_shown(values[-1])}"


def _shown(value) -> str:
    return (
        str(value).lower()
        if isinstance(value, bool)
        else f"{value:,}"
        if isinstance(value, int)
        else value
    )


def _examples(sweep: SweepResult, known: dict[str, str]) -> list[dict]:
    """Components with their formulas: of one telling model, or of each where all are small."""
    totals = (
        sweep.comparison.filter(pl.col("quantity") == "parameters")
        .group_by("point").agg(total=pl.col("measured").sum())
        .join(sweep.points, on="point").sort("point")
    )  # fmt: skip
    if totals.is_empty():
        return []
    by_hand = not sweep.summary["axes"] and totals["total"].max() <= COUNTED_BY_HAND
    if not by_hand:
        named = totals.filter(pl.col("architecture").is_in(list(known)))
        choice = totals if named.is_empty() else named
        totals = choice.filter(pl.col("total") == choice["total"].max()).head(1)
    return [_example(sweep, point, known, by_hand) for point in totals.iter_rows(named=True)]


def _example(sweep: SweepResult, point: dict, known: dict[str, str], by_hand: bool) -> dict:
    comparison = sweep.comparison.filter(pl.col("point") == point["point"])
    rows = formulas.component_rows(point, comparison, with_numbers=by_hand)
    name = known.get(point["architecture"])
    label = point["label"] if name in (None, point["label"]) else f"{name} ({point['label']})"
    agrees = [row.pop("agrees") for row in rows]
    return {
        "title": f"{label}: {count(point['total'])} parameters",
        "table": tables.table(
            rows,
            f"Components of {label}",
            numbers=("predicted", "counted", "share"),
            html=("component", "formula", *(["with numbers"] if by_hand else [])),
            red=[not one for one in agrees],
            last_is_total=True,
        ),
    }


def _ledger(ledger: pl.DataFrame | None, its_verdict: verdict.Verdict | None) -> dict | None:
    if ledger is None:
        return None
    return {
        "verdict": its_verdict,
        "models": [
            {"name": name, "table": _ledger_table(rows, name)}
            for (name,), rows in ledger.partition_by("model", as_dict=True).items()
        ],
    }


def _ledger_table(rows: pl.DataFrame, name: str) -> Markup:
    shown = rows.with_columns(
        module=pl.col("module")
        + pl.when(pl.col("shared_with").is_null()).then(pl.lit("")).otherwise(
            pl.format(" (matrix of {})", "shared_with")
        )
    ).drop("model", "agrees", "shared_with")  # fmt: skip
    order = ["module", "kind", "formula", "instances", "each_expected", "each_true"]
    return tables.table(
        shown.select(*order, "expected", "true")
        .rename({"each_expected": "one, expected", "each_true": "one, true"})
        .to_dicts(),
        f"Modules of {name}",
        numbers=("instances", "one, expected", "one, true", "expected", "true"),
        red=(~rows["agrees"].fill_null(False)).to_list(),
    )


def _surgery(surgery: pl.DataFrame | None, its_verdict: verdict.Verdict | None) -> dict | None:
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
            "tied": "tied" if row["tied"] else "apart",
            "by data_ptr": ("tied" if row["data_ptr_says_tied"] else "apart")
            + (" – wrong" if row["tied"] != row["data_ptr_says_tied"] else ""),
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
            red=(~surgery["agrees"].fill_null(False)).to_list(),
        ),
    }


def _provenance(provenance: dict | None) -> list[tuple[str, list[str]]] | None:
    """Without the time, so that equal results make equal pages."""
    if provenance is None:
        return None
    versions = [f"{name} {version}" for name, version in provenance["versions"].items()]
    return [
        ("versions", versions),
        ("commit", [str(provenance["commit"])]),
        ("device", [str(provenance["device"])]),
    ]
