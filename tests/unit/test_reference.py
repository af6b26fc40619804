"""The generated pages of fields and formulas are those of the code."""

import runpy

import pytest
from helpers.project import ROOT

PAGES = runpy.run_path(str(ROOT / "tools" / "write_reference.py"))["PAGES"]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_in_step_with_the_code(page):
    assert (ROOT / "docs" / page).read_text(encoding="utf-8") == PAGES[page](), "make reference"
