"""Versions, commit and device of the results.

Without the time and the year, so that equal results make equal pages.
"""

from modelbudget.report.section import Page, Section

PROVENANCE = "provenance.json"


def _contents(page: Page) -> dict:
    return page.results.parts[PROVENANCE]


SECTION = Section(180, "provenance", "Provenance", _contents, (PROVENANCE,))
