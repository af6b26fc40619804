"""The page: all sections in order, in one HTML file."""

import base64
import hashlib

from modelbudget.catalogue.models import Catalogue
from modelbudget.report import specs, tables
from modelbudget.report.acts.memory import memory_act
from modelbudget.report.acts.savings import savings_act
from modelbudget.report.acts.sizes import sizes_act
from modelbudget.report.acts.squares import squares_act
from modelbudget.report.acts.step import step_act
from modelbudget.report.appendix import (
    citation,
    ledger_section,
    provenance_section,
    surgery_section,
)
from modelbudget.report.assets import Assets, assets
from modelbudget.report.counting import counting_section
from modelbudget.report.glossary import glossary_section
from modelbudget.report.gpu_readings import gpu_readings_section
from modelbudget.report.module_trees import module_trees_section, swept_section, swept_trees
from modelbudget.report.payload import comparison_tables, packed
from modelbudget.report.predicted import predicted_section
from modelbudget.report.results import (
    PredictedResult,
    Results,
    SweepResult,
    known_models,
    ordered,
)
from modelbudget.report.summary import verdict_section
from modelbudget.report.sweeps import sweep_section
from modelbudget.report.verdict import verdicts

STYLES = (
    "style.css",
    "acts.css",
    "calculator.css",
    "module_trees.css",
    "memory.css",
    "steps.css",
    "numbers.css",
)
SCRIPTS = (
    "unpack.js", "vega.js", "highlight.js", "charts.js", "sections.js", "acts.js", "finder.js",
    "formulas.js", "config_file.js", "calculator.js", "module_trees.js", "numbers.js",
)  # fmt: skip


NO_TITLE = "Parameters, memory and compute of sequence models"


def render(results: Results, catalogue: Catalogue, static: Assets | None = None) -> str:
    """Return the page as HTML; equal results give equal bytes.

    `static` has the parts that do not depend on sweeps, if they are computed already.
    """
    static = static or assets(catalogue)
    sweeps = ordered(results.sweeps)
    found = verdicts(results)
    by_source = {one.source: one for one in found}
    known = known_models(catalogue)
    charts = specs.Charts()
    acts = _acts(results, sweeps, known)
    top = next((act for act in acts if "page_title" in act), None)
    trees = swept_trees(sweeps, results.swept or {})
    numbers = comparison_tables(sweeps, trees)
    printed, shown = results.printed or {}, {}
    sections = [
        predicted_section(sweep, charts)
        if isinstance(sweep, PredictedResult)
        else sweep_section(
            sweep,
            by_source[sweep.name],
            known,
            charts,
            printed,
            results.walkthroughs or {},
            numbers[sweep.name],
            shown,
        )
        for sweep in ordered([*sweeps, *(results.predicted or [])])
    ]
    counting = counting_section(catalogue, sweeps, charts)
    others = [one for one in found if one.source not in {sweep.name for sweep in sweeps}]
    return _filled(
        {
            "title": top["page_title"] if top else NO_TITLE,
            "description": " ".join(f"{act['title']}." for act in acts) or NO_TITLE,
            "acts": acts,
            "contents": [
                *((act["id"], act["short"]) for act in acts),
                ("what-if", "Your model"),
                ("verdict", "Can you trust it?"),
                ("appendix", "Appendix"),
            ],
            "appendix": [
                *([("architecture", "Module trees")] if results.trees else []),
                *((section["name"], section["title"]) for section in sections),
                *((one.source, one.title) for one in others),
                *([("counting", "Counting conventions")] if counting else []),
                ("gpu-readings", "GPUs that others measured"),
                ("glossary", "Glossary"),
                *([("provenance", "Provenance")] if results.provenance else []),
            ],
            "verdict": verdict_section(results, found),
            "module_trees": module_trees_section(results.trees),
            "swept": swept_section(sweeps, trees),
            "calculator": static.calculator,
            "sweeps": sections,
            "ledger": ledger_section(results.ledger, by_source.get("gpt-2-ledger")),
            "surgery": surgery_section(results.surgery, by_source.get("tying-surgery")),
            "counting": counting,
            "gpu_readings": gpu_readings_section(catalogue),
            "glossary": glossary_section(),
            "provenance": provenance_section(results.provenance),
            "cite": citation(results.provenance),
            "packed": {
                "charts": packed(
                    {
                        "specs": charts.specs,
                        "datasets": charts.datasets,
                        "palette": specs.light_palette(),
                        "source": _source(results.provenance),
                    }
                ),
                "acts": packed({act["id"]: act["data"] for act in acts if "data" in act}),
                "calculator": packed(static.calculator["data"]),
                "vega": packed(static.vega),
                **{f"table {name}": packed(table) for name, table in numbers.items()},
                **{f"trees {name}": packed(one) for name, one in trees.items()},
            },
        },
        static.vega,
    )


def _source(provenance: dict | None) -> str:
    """Return the line below a chart that is saved from the page."""
    return f"modelbudget, commit {provenance['commit']}" if provenance else "modelbudget"


def _acts(results: Results, sweeps: list[SweepResult], known: dict[str, str]) -> list[dict]:
    """Return the acts that these results have data for, in their order."""
    acts = [
        squares_act(sweeps),
        sizes_act(sweeps, known),
        memory_act(sweeps),
        step_act(results.step, results.shared_step),
        savings_act(sweeps),
    ]
    return [act for act in acts if act is not None]


def _filled(context: dict, vega: str) -> str:
    style = specs.palette_css() + "".join(map(_read, STYLES))
    scripts = [*map(_read, SCRIPTS)]
    policy = (
        f"default-src 'none'; script-src {' '.join(map(_hash, [vega, *scripts]))}; "
        f"style-src {_hash(style)}; base-uri 'none'; form-action 'none'"
    )
    return (
        tables.environment()
        .get_template("page.html.j2")
        .render(context, style=style, scripts=scripts, policy=policy)
    )


def _read(template: str) -> str:
    return (tables.TEMPLATES / template).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
