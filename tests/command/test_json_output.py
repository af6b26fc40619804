"""`--json` of every command against its schema, which allows no other key."""

import inspect
import json
import sys

import jsonschema
import pytest
from helpers.config_files import LLAMA
from helpers.gguf_files import KEYS_OF_FILE, written

from modelbudget.api.command import app
from modelbudget.api.command.app import subcommands
from modelbudget.api.frames import JSON_VERSION
from scripts.dev.answer_schemas import OUTPUTS, schema

SCHEMA = schema()
PRINTED = {
    "Show": (
        "gpt-2-124m", "config.json --inference --fit 24GB", "model.gguf",
        "config.json --train --fit 24GB --devices 2 --length 8",
        "config.json --adapter lora --rank 8 --fit 24GB",
        "config.json --implementation transformers --length 8",
    ),
    "Serve": ("llama-3-8b --serve h100-80gb", "gpt-2-124m --serve 24GB --set cache_layout=static"),
    "Trainer": ("gpt-2-124m --trainer dpo --fit 24GB", "gpt-2-124m --trainer grpo"),
    "GgufFile": ("gpt-2-124m --file gguf --format Q8_0",),
    "Compare": ("compare gpt-2-124m config.json",),
    "Conventions": ("conventions config.json", "conventions mamba-130m"),
    "Measure": ("measure config.json --train --length 8", "measure own:build"),
    "Models": ("models palm", "models palm --fit h100"),
    "Explain": ("explain train.log", "explain model.gguf"),
    "Vectors": ("vectors cache_bytes", "vectors blocks"),
}  # fmt: skip
"""Command lines by the definition of what they print."""


@pytest.fixture
def printed(tmp_path, monkeypatch, capsys):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "own.py").write_text(
        "from torch import nn\n\ndef build():\n    return nn.Linear(3, 5)\n"
    )
    (tmp_path / "train.log").write_text("trainable params: 524,288 || all params: 1,236,338,688\n")
    written(tmp_path / "model.gguf", KEYS_OF_FILE, {})
    monkeypatch.chdir(tmp_path)

    def run(line: str) -> dict:
        monkeypatch.setattr(sys, "argv", ["modelbudget", *line.split(), "--json"])
        with pytest.raises(SystemExit) as end:
            app.main()
        assert not end.value.code, capsys.readouterr().err
        return json.loads(capsys.readouterr().out)

    return run


@pytest.mark.parametrize("name", PRINTED)
def test_what_a_command_prints_is_what_its_schema_says(printed, name):
    """Only this sees a key that is added, renamed or lost without its description."""
    validator = jsonschema.Draft202012Validator(SCHEMA | {"anyOf": [{"$ref": f"#/$defs/{name}"}]})
    for line in PRINTED[name]:
        content = printed(line)
        assert content["version"] == JSON_VERSION, line
        errors = [
            f"{line}: {one.json_path}: {one.message}" for one in validator.iter_errors(content)
        ]
        assert not errors


def test_every_command_with_json_has_a_definition():
    """Commands are found by their parameter; their names lead the lines above."""
    with_json = {
        name.capitalize()
        for name, one in subcommands().items()
        if "json" in inspect.signature(one.run).parameters
    }
    names = {kind.__name__ for kind in OUTPUTS}
    assert with_json <= names == set(PRINTED)
    assert names - with_json == {"Serve", "Trainer", "GgufFile"}  # of options of show
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
