"""All terms with their definitions."""

from modelbudget.report.section import Page, Section
from modelbudget.report.tables import GLOSSARY, anchor


def _contents(_: Page) -> dict:
    terms = [(anchor(term), term, GLOSSARY[term]) for term in sorted(GLOSSARY, key=str.casefold)]
    return {"terms": terms}


SECTION = Section(170, "glossary", "Glossary", _contents)
