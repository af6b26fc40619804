"""The JSON Schema that editors complete with."""

import re

import jsonschema
import pytest
import yaml
from helpers.project import ROOT

from modelbudget.common.files import yaml_files
from modelbudget.sweeps import json_schema

NAMED = re.compile(r"# yaml-language-server: \$schema=(\S+)")
SWEEPS = {
    path: named[1]
    for path in yaml_files(ROOT / "configs" / "sweeps")
    if (named := NAMED.match(path.read_text(encoding="utf-8")))
}
"""Those that name the schema: the shipped ones do, and nobody's own has to."""
VALIDATOR = jsonschema.Draft202012Validator(json_schema.sweep_schema())


def test_file_is_in_step_with_the_code():
    written = json_schema.PATH.read_text(encoding="utf-8")
    assert written == json_schema.text(), "run `python -m modelbudget.sweeps.json_schema`"


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_sweeps_that_name_the_schema_are_valid(path):
    assert (path.parent / SWEEPS[path]).resolve() == json_schema.PATH.resolve()
    VALIDATOR.validate(yaml.safe_load(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    "change", [{"gird": {}}, {"grid": {"d_modell": [4]}}, {"grid": {"d_model": [0]}}, {"points": 3}]
)
def test_mistakes_are_invalid(change):
    sweep = {"title": "t", "question": "q", "base": "decoder"} | change
    assert not VALIDATOR.is_valid(sweep)
