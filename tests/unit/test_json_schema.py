"""The JSON Schemas that editors complete with."""

import importlib
import re
from collections import Counter
from functools import cache

import jsonschema
import pytest
import yaml
from helpers.project import ROOT

from modelbudget.architecture import record_data
from modelbudget.architecture.run_config import RunConfig
from modelbudget.common.files import load_yaml, yaml_files
from modelbudget.common.strict import Strict
from modelbudget.components.layer import all_parts
from modelbudget.families import families
from scripts.dev import write_file_schemas

NAMED = re.compile(r"# yaml-language-server: \$schema=(\S+)")
CONFIGS = ROOT / "configs"
FILES = {
    path: named[1]
    for folder in (CONFIGS, CONFIGS / "sweeps", CONFIGS / "models")
    for path in yaml_files(folder)
    if (named := NAMED.match(path.read_text(encoding="utf-8")))
}
"""Those that name a schema: the shipped ones do, and nobody's own has to."""
PLAIN = {
    "cell",
    "down_bias",
    "key_bias",
    "norm",
    "output_bias",
    "position",
    "query_bias",
    "value_bias",
}
"""Fields whose names say what they are."""
OF_NO_SCHEMA = (
    "architecture.adapter_methods", "architecture.optimizers", "architecture.stored_formats",
    "catalogue.quantised_copies", "catalogue.implementations", "catalogue.memory_margins",
    "catalogue.published_readings", "catalogue.published_scaling", "huggingface.classes",
    "huggingface.peft_classes",
)  # fmt: skip
"""Files with records of data files that have no schema."""
SWEEP = {"title": "t", "question": "q", "base": "decoder"}
SERIES = {"title": "t", "family": "decoder", "source": "s"}


@cache  # not while tests are collected, as each process does
def validator(name: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(write_file_schemas.SCHEMAS[name]())


@pytest.mark.parametrize("name", write_file_schemas.SCHEMAS)
def test_file_is_in_step_with_the_code(name):
    written = (write_file_schemas.FOLDER / name).read_text(encoding="utf-8")
    assert written == write_file_schemas.text(name), "run `make schema`"


def test_every_field_has_a_meaning_and_every_section_a_record():
    """Only this sees a field that no data file describes, or a section that nothing reads."""
    kinds = [RunConfig, *families().values()]
    fields = [field for kind in kinds for field in kind.model_fields.items()]
    undescribed = {name for name, of in fields if not of.description} - PLAIN
    assert not undescribed, "described in architecture_fields.yaml or run_settings.yaml"
    records = Counter(base for kind in kinds for base in {*kind.__mro__})
    names = Counter(base.__name__ for base in records)
    sections = {name for path in record_data.FILES for name in load_yaml(path)}
    sections -= all_parts().keys()
    assert {name: names[name] for name in sections} == dict.fromkeys(sections, 1)


def test_every_key_with_a_meaning_is_read():
    """Only this sees a key of file_keys.yaml that no record has, or that two of one name have."""
    for reader in OF_NO_SCHEMA:
        importlib.import_module(f"modelbudget.{reader}")
    waiting, records = [Strict], {}
    while waiting:
        below = waiting.pop().__subclasses__()
        waiting += below
        for record in below:
            if record.__module__.startswith("modelbudget."):
                records.setdefault(record.__name__, set()).add(record)
    for name, keys in write_file_schemas.MEANINGS.items():
        (record,) = records[name]
        assert keys.keys() <= record.model_fields.keys(), name


def test_every_schema_is_named_by_a_file():
    named = {(path.parent / FILES[path]).resolve().name for path in FILES}
    assert named == set(write_file_schemas.SCHEMAS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_files_that_name_a_schema_are_valid(path):
    schema = (path.parent / FILES[path]).resolve()
    assert schema.parent == write_file_schemas.FOLDER.resolve()
    validator(schema.name).validate(yaml.safe_load(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    ("schema", "change"),
    [
        ("sweep", SWEEP | {"gird": {}}),
        ("sweep", SWEEP | {"grid": {"d_modell": [4]}}),
        ("sweep", SWEEP | {"grid": {"d_model": [0]}}),
        ("sweep", SWEEP | {"points": 3}),
        ("sweep", SWEEP | {"base": 3}),
        ("model", SERIES | {"family": "decodr"}),
        ("model", SERIES | {"fields": {"d_modell": 4}}),
        ("model", SERIES | {"models": {"a": {"label": "A", "fields": {"d_model": 0}}}}),
        ("model", SERIES | {"models": {"a": {"label": "A", "publishd": "7B"}}}),
        ("accelerators", {"accelerators": [{"name": "A", "bytes": 0, "source": "s"}]}),
    ],
)
def test_mistakes_are_invalid(schema, change):
    assert not validator(f"{schema}.schema.json").is_valid(change)


def test_known_bases_are_offered(catalogue):
    offered, _ = write_file_schemas.sweep_schema()["$defs"]["Base"]["anyOf"]
    assert set(offered["enum"]) == set(catalogue.bases)
    assert validator("sweep.schema.json").is_valid(SWEEP | {"base": "my-model.json"})
    assert validator("model.schema.json").is_valid(SERIES)
