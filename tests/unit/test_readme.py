"""Sweep files that the README prints are sweep files."""

import re

import pytest
from helpers.project import ROOT

from modelbudget.sweeps.expand import expand

PRINTED = [
    block
    for block in re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    if "title:" in block
]


@pytest.mark.parametrize("text", PRINTED, ids=lambda text: re.search("title: (.*)", text)[1])
def test_a_sweep_of_the_readme_expands(text, tmp_path, catalogue):
    path = tmp_path / "sweep.yaml"
    path.write_text(text)
    assert expand(path, catalogue).points
