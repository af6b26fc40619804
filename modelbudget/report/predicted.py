"""One section for each sweep that was predicted and not measured."""

from markupsafe import Markup

from modelbudget.architecture.readings import symbols
from modelbudget.report import formulas, tables
from modelbudget.report.charts.format import count
from modelbudget.report.results import PredictedResult
from modelbudget.report.specs import Charts
from modelbudget.report.sweeps import facts, question


def predicted_section(sweep: PredictedResult, charts: Charts) -> dict:
    summary = sweep.summary
    return {
        "name": sweep.name,
        "title": summary["title"],
        "template": "predicted.html.j2",
        "question": question(summary),
        "facts": facts(summary),
        "predictions": count(summary["points"]),
        "charts": [
            charts.add(f"{sweep.name}-{name}", spec, f"{sweep.name}/charts/{name}")
            for name, spec in sweep.charts.items()
        ],
        "formulas": [_formulas(model) for model in summary["models"]],
    }


def _formulas(model: dict) -> Markup:
    """The components of a base's parameters; those that its models lack are left out."""
    point = model["fields"] | {"family": model["family"]}
    rows = [
        {"component": formulas.component_name(name), "formula": symbols.to_mathml(term)}
        for name, term in formulas.formulas(point, varying=model["varying"]).items()
        if term.total != 0
    ]
    html = ("component", "formula")
    return tables.table(rows, f"Formulas of {model['label']}", html=html)
