"""Versions, commit and device of the results, and how to cite them.

Without the time and the year, so that equal results make equal pages.
"""

from modelbudget.report.section import Page, Section

PROVENANCE = "provenance.json"
TITLE, AUTHOR = "modelbudget: where the budget of sequence models goes", "The modelbudget authors"


def _contents(page: Page) -> dict:
    provenance = page.part(PROVENANCE)
    versions, commit = provenance["versions"], provenance["commit"]
    version = versions["modelbudget"]
    facts = [
        ("versions", [f"{name} {of}" for name, of in versions.items()]),
        ("commit", [str(commit)]),
        ("device", [str(provenance["device"])]),
    ]
    cite = {
        "text": f"{AUTHOR}. {TITLE}. Version {version}, commit {commit}.",
        "bibtex": f"@software{{modelbudget,\n  title = {{{TITLE}}},\n"
        f"  author = {{{{{AUTHOR}}}}},\n  version = {{{version}}},\n"
        f"  note = {{commit {commit}}},\n}}",
    }
    return {"facts": facts, "cite": cite}


SECTION = Section(180, "provenance", "Provenance", _contents, (PROVENANCE,))
