"""What all pages of a test run share."""

from functools import cache

import pytest
import vl_convert

from modelbudget.common import store
from modelbudget.common.code_digests import code_of
from modelbudget.report import page
from modelbudget.report.calculator_data import calculator
from modelbudget.report.vega_script import vega

VEGA = "vega", vega, store.key(vl_convert.__version__, code_of("modelbudget.report.vega_script"))


@pytest.fixture(scope="session")
def static_parts(catalogue, kept, calculator_once):
    """Return what depends on no sweep in the page of all: the calculator of a catalogue.

    It has few kinds of models (`few_kinds.py`).
    """

    @cache
    def of_catalogue(other) -> dict:
        return calculator_once() if other is catalogue else calculator(other)

    return of_catalogue


@pytest.fixture(scope="session", autouse=True)
def one_bundle(kept, readings_once):
    """Let all pages have one bundle of Vega, which takes a second to make."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(page, "vega", lambda: kept(*VEGA))
        yield
