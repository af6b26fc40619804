"""The page: its sections in their order, and the one file around them all."""

import base64
import hashlib
import json

import jinja2
import vl_convert

from modelbudget.catalogue import Catalogue
from modelbudget.report import specs, tables
from modelbudget.report.beside import ledger_section, provenance_section, surgery_section
from modelbudget.report.results import Results, known_models, ordered
from modelbudget.report.sweeps import sweep_section
from modelbudget.report.top import headline_section, verdict_section
from modelbudget.report.verdict import verdicts


def render(results: Results, catalogue: Catalogue) -> str:
    """The whole page. The same results give the same bytes."""
    sweeps = ordered(results.sweeps)
    found = verdicts(results)
    by_source = {one.source: one for one in found}
    known = known_models(catalogue)
    charts = specs.Charts()
    top = headline_section(sweeps, charts)
    return _filled(
        {
            "title": top["title"] if top else "Where the budget of sequence models goes",
            "contents": [
                ("verdict", "Predicted and counted"),
                *((one.source, one.title) for one in found),
                *([("provenance", "Provenance")] if results.provenance else []),
            ],
            "headline": top,
            "verdict": verdict_section(results, found),
            "sweeps": [
                sweep_section(sweep, by_source[sweep.name], known, charts) for sweep in sweeps
            ],
            "ledger": ledger_section(results.ledger, by_source.get("gpt-2-ledger")),
            "surgery": surgery_section(results.surgery, by_source.get("tying-surgery")),
            "provenance": provenance_section(results.provenance),
            "charts": _json({"specs": charts.specs, "datasets": charts.datasets}),
        }
    )


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
