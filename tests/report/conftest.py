"""What all pages of a test run share."""

from functools import cache, partial

import pytest
import vl_convert
from helpers.project import ROOT

from modelbudget.common import store
from modelbudget.common.fingerprint import code, code_of, digest
from modelbudget.common.paths import files_in
from modelbudget.report import page
from modelbudget.report.assets import Assets, assets
from modelbudget.report.assets import calculator as calculator_of_page
from modelbudget.report.vega import vega

VEGA = "vega", vega, store.key(vl_convert.__version__, code_of("modelbudget.report.vega"))


@pytest.fixture(scope="session")
def static_parts(catalogue, kept):
    """Return the parts of the page of all sweeps that depend on none, of a catalogue."""

    @cache
    def of_catalogue(other) -> Assets:
        if other is not catalogue:
            return assets(other)
        made_of = store.key(code("calculator"), digest(files_in(ROOT / "configs" / "models")))
        calculator = kept("calculator", partial(calculator_of_page, catalogue), made_of)
        return Assets(kept(*VEGA), calculator)

    return of_catalogue


@pytest.fixture(scope="session", autouse=True)
def no_calculator(kept, readings_once):
    """Let pages be those of named sweeps, unless a test renders one with `static_parts`.

    The calculator and what else depends on no sweep take most of the time of a small page, in
    Python and in the browser.
    """
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(page, "assets", lambda catalogue: Assets(kept(*VEGA)))
        yield
