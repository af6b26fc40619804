"""Module trees of some instantiated models."""

from modelbudget.report.module_tree_html import tree_of
from modelbudget.report.section import Page, Section

TREES = "module_trees/trees.json"


def _contents(page: Page) -> list[dict]:
    trees = [tree_of(model) for model in page.part(TREES)]
    return [{"id": "architecture", "short": "Module trees", "trees": trees}]


SECTION = Section(110, _contents, (TREES,))
