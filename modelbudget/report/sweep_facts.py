"""What a sweep file says: its question, its settings, and whose code its figures are about."""

from markdown_it import MarkdownIt

from modelbudget.report.charts.format import count
from modelbudget.report.solve_tables import bounds_and_objectives

OURS = "our torch modules"
OTHERS = {
    "hugging-face": "the class in transformers itself",
    "module": "the module that the sweep names",
}
"""Families without modules of ours → whose code is measured."""
# No HTML and no images: the page must not load anything from other machines.
_MARKDOWN = MarkdownIt("commonmark", {"html": False, "typographer": True})
_MARKDOWN.enable("smartquotes").disable("image")


def question(summary: dict) -> str:
    """Return the sweep's question as HTML."""
    return _MARKDOWN.render(summary["question"])


def implementer(family: str, implementation: str) -> str:
    """Describe whose code the figures of a model are about."""
    if family in OTHERS:
        return OTHERS[family]
    return (
        OURS if implementation == "modelbudget" else f"{OURS} with the settings of {implementation}"
    )


def facts(summary: dict) -> list[tuple[str, list[str]]]:
    """Return terms and values of the sweep file; terms without values are left out."""
    n_dropped = summary["dropped"]
    dropped = f", {count(n_dropped)} more dropped by constraints" if n_dropped else ""
    lines = [
        ("base", [summary["base"]] if summary["base"] else []),
        ("fixed", [f"{name} = {_shown(value)}" for name, value in summary["fixed"].items()]),
        ("axes", [f"{name}: {_range(values)}" for name, values in summary["axes"].items()]),
        ("derived", [f"{name} = {text}" for name, text in summary["derive"].items()]),
        ("constraints", summary["constraints"]),
        *bounds_and_objectives(summary),
        ("models", [f"{count(summary['points'])}{dropped}"]),
        ("notes", summary["notes"]),
    ]
    return [(term, values) for term, values in lines if values]


def _range(values: list) -> str:
    if len(values) <= 8:
        return ", ".join(map(_shown, values))
    return f"{len(values)} values, {_shown(values[0])} … {_shown(values[-1])}"


def _shown(value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return count(value) if isinstance(value, int) else value
