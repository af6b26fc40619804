"""All terms with their definitions."""

from modelbudget.report.section import Page, Section
from modelbudget.report.terms_explained import GLOSSARY, anchor


def _contents(_: Page) -> list[dict]:
    terms = [(anchor(term), term, GLOSSARY[term]) for term in sorted(GLOSSARY, key=str.casefold)]
    return [{"id": "glossary", "short": "Glossary", "terms": terms}]


SECTION = Section(170, _contents)
