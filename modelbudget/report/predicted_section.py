"""The section of a sweep that is predicted and not measured."""

from markupsafe import Markup

from modelbudget.architecture.evaluators import symbols
from modelbudget.report import formula_tables, tables
from modelbudget.report.chart_specs import Charts
from modelbudget.report.charts.format import count
from modelbudget.report.page_results import PredictedResult
from modelbudget.report.sweep_facts import facts, implementer, question
from modelbudget.sweeps.quantity_names import OF_RUN


def predicted_section(sweep: PredictedResult, charts: Charts) -> dict:
    """Return the context of the section's template."""
    summary = sweep.summary
    return {
        "id": sweep.name,
        "short": summary["title"],
        "template": "predicted.html.j2",
        "question": question(summary),
        "facts": [*facts(summary), *_whose(summary)],
        "predictions": count(summary["points"]),
        "charts": [charts.add(f"{sweep.name}-{name}", spec) for name, spec in sweep.charts.items()],
        "formulas": [_formulas(model) for model in summary["models"]],
    }


def _whose(summary: dict) -> list[tuple[str, list[str]]]:
    """Return whose implementation the memory and FLOPs are about."""
    named = summary["fixed"].get("implementation", "modelbudget")
    wanted = OF_RUN & set(summary["measure"]["quantities"])
    return [("memory and FLOPs of", [implementer("", named)])] if wanted else []


def _formulas(model: dict) -> Markup:
    """Return the table of a base's components that have parameters, with their formulas."""
    point = model["fields"] | {"family": model["family"]}
    rows = [
        {
            "component": formula_tables.component_name(name),
            "formula": Markup(symbols.to_mathml(term)),
        }
        for name, term in formula_tables.formulas(point, varying=model["varying"]).items()
        if term.total != 0
    ]
    return tables.table(rows, f"Formulas of {model['label']}")
