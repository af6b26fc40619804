"""All terms with their definitions."""

from modelbudget.report.section import Page, Section
from modelbudget.report.terms_explained import glossary_section


def _contents(_: Page) -> list[dict]:
    return [{"id": "glossary", "short": "Glossary", "terms": glossary_section()}]


SECTION = Section(170, _contents)
