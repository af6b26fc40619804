"""The page of all shipped sweeps is small enough to be sent, and to open on a phone."""

import pytest
import yaml
from helpers.page import Text
from helpers.results import PARTS, charts_of_sweep, result

from modelbudget.catalogue.accelerators import accelerators
from modelbudget.common.paths import ACCELERATORS, SWEEPS
from modelbudget.report.calculator_data import calculator
from modelbudget.report.page import render
from modelbudget.report.page_results import Results

MOST_BYTES, MOST_ELEMENTS = 1_350_000, 7_940
"""The bytes that the page of a run may have, too; 1 % above the 7,860 elements that it measures."""


def shipped(path, catalogue, devices):
    """Results of a sweep with all of its charts."""
    sweep = result(path, catalogue)
    charts = charts_of_sweep(sweep.summary["axes"], sweep.comparison, devices)
    specs = {n: c.to_dict() for n, c in charts.items()} | sweep.charts()
    return sweep._replace(charts=specs.copy)


@pytest.mark.slow
def test_the_page_of_the_shipped_sweeps_is_small(catalogue):
    """Formulas stand for measurements, which have as many rows, charts and digits."""
    devices = accelerators(ACCELERATORS)
    files = {path: yaml.safe_load(path.read_text()) for path in sorted(SWEEPS.glob("*.yaml"))}
    points = {path for path, of in files.items() if of.get("default", True) and "solve" not in of}
    measured = [path for path in points if files[path].get("measure", {}).get("device") != "none"]
    assert len(measured) > 20
    sweeps = [shipped(path, catalogue, devices) for path in sorted(measured)]
    page = render(Results(sweeps, parts=PARTS), catalogue, calculator(catalogue))
    assert len(page.encode()) < MOST_BYTES
    assert len(Text(page).tags) < MOST_ELEMENTS
