"""All terms with their definitions."""

from modelbudget.report.glossary import glossary_section
from modelbudget.report.section import Page, Section


def _contents(_: Page) -> list[dict]:
    return [{"id": "glossary", "short": "Glossary", "terms": glossary_section()}]


SECTION = Section(170, _contents)
