"""The generated pages are those of the code."""

import runpy

import pytest
from helpers.project import ROOT

from modelbudget.families import families

WRITER = runpy.run_path(str(ROOT / "scripts" / "dev" / "write_reference.py"))
PAGES, BUILT = WRITER["PAGES"], WRITER["BUILT"]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_in_step_with_the_code(page):
    assert (ROOT / "docs" / page).read_text(encoding="utf-8") == PAGES[page](), "make reference"


def test_the_page_of_formulas_has_every_family():
    """It is built, not tracked: nothing else runs what writes it."""
    page = BUILT["formulas.md"]()
    known = [name for name, family in families().items() if family.has_formula]
    assert all(f"\n## Family: {name}\n" in page for name in known)
