"""The JSON Schema that editors complete with."""

import jsonschema
import pytest
import yaml
from conftest import ROOT

from modelbudget import schema

SWEEPS = sorted((ROOT / "configs" / "sweeps").iterdir())
VALIDATOR = jsonschema.Draft202012Validator(schema.sweep_schema())


def test_file_is_in_step_with_the_code():
    written = schema.PATH.read_text(encoding="utf-8")
    assert written == schema.text(), "run `python -m modelbudget.schema`"


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_shipped_sweeps_are_valid_and_name_the_schema(path):
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# yaml-language-server: $schema=")
    reference = text.partition("$schema=")[2].splitlines()[0]
    assert (path.parent / reference).resolve() == schema.PATH.resolve()
    VALIDATOR.validate(yaml.safe_load(text))


@pytest.mark.parametrize(
    "change", [{"gird": {}}, {"grid": {"d_modell": [4]}}, {"grid": {"d_model": [0]}}, {"points": 3}]
)
def test_mistakes_are_invalid(change):
    sweep = {"title": "t", "question": "q", "base": "decoder"} | change
    assert not VALIDATOR.is_valid(sweep)
