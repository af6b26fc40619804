"""CITATION.cff is in step with the package."""

import yaml
from helpers.project import ROOT

from modelbudget import __version__


def test_version_and_license():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == __version__
    assert citation["license"] == "MIT"
