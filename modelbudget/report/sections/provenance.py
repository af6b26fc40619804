"""Versions, commit and device of the results, and how to cite them."""

from modelbudget.report.section import Page, Section

PROVENANCE = "provenance.json"


def _contents(page: Page) -> list[dict]:
    provenance = page.part(PROVENANCE)
    return [
        {
            "id": "provenance",
            "short": "Provenance",
            "facts": _facts(provenance),
            "cite": _citation(provenance),
        }
    ]


def _facts(provenance: dict) -> list[tuple[str, list[str]]]:
    """Return terms and values without the time, so that equal results make equal pages."""
    versions = [f"{name} {version}" for name, version in provenance["versions"].items()]
    return [
        ("versions", versions),
        ("commit", [str(provenance["commit"])]),
        ("device", [str(provenance["device"])]),
    ]


def _citation(provenance: dict) -> dict[str, str]:
    """Return the citation as text and as BibTeX, without the year, which varies with the time."""
    version, commit = provenance["versions"]["modelbudget"], provenance["commit"]
    title = "modelbudget: where the budget of sequence models goes"
    author = "The modelbudget authors"
    return {
        "text": f"{author}. {title}. Version {version}, commit {commit}.",
        "bibtex": f"@software{{modelbudget,\n  title = {{{title}}},\n"
        f"  author = {{{{{author}}}}},\n  version = {{{version}}},\n"
        f"  note = {{commit {commit}}},\n}}",
    }


SECTION = Section(180, _contents, (PROVENANCE,))
