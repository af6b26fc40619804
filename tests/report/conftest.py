"""What all pages of a test run share."""

from functools import cache

import pytest
import vl_convert

from modelbudget.common import store
from modelbudget.common.fingerprint import code_of
from modelbudget.report import page
from modelbudget.report.assets import Assets, assets, vega

VEGA = "vega", vega, store.key(vl_convert.__version__, code_of("modelbudget.report.assets"))


@pytest.fixture(scope="session")
def static_parts(catalogue, kept, calculator_once):
    """Return the parts of the page of all sweeps that depend on none, of a catalogue.

    The calculator has few kinds of models (`few_kinds.py`).
    """

    @cache
    def of_catalogue(other) -> Assets:
        if other is not catalogue:
            return assets(other)
        return Assets(kept(*VEGA), calculator_once())

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
