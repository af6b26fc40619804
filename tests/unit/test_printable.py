"""What a terminal would execute: refused in files of ours, escaped where it is printed."""

import json
import sys
from pathlib import Path

import pytest

from modelbudget.api.command.output import print_csv, print_json, print_notes
from modelbudget.api.frames import JSON_VERSION
from modelbudget.catalogue.accelerators import all_accelerators
from modelbudget.catalogue.named_models import Catalogue
from modelbudget.common.errors import InputError
from modelbudget.common.paths import MODELS

HOSTILE = "a\x1b]0;x\x07\x9b2J\u202eb\u2028\x7f\ud800\ncé漢\U0001f600"
"""Commands of a terminal, the other direction, ends of lines; then text as it is."""


def test_json_means_the_same_and_has_nothing_to_execute(capsys):
    value = {HOSTILE: [HOSTILE, 1]}
    print_json(value)
    out = capsys.readouterr().out
    assert all(line.isprintable() for line in out.splitlines())
    assert json.loads(out) == {"version": JSON_VERSION} | value
    assert "é漢\U0001f600" in out


@pytest.mark.parametrize("is_terminal", [False, True])
def test_csv_is_exact_but_on_a_terminal(capsys, monkeypatch, is_terminal):
    text = HOSTILE.replace("\ud800", "")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    print_csv([{"component": text, "parameters": 7}])
    out = capsys.readouterr().out
    assert (text in out) == (not is_terminal)
    if is_terminal:
        _, row = out.splitlines()
        assert row.isprintable()
        assert row.endswith(",7")


def test_notes_are_escaped(capsys):
    print_notes([HOSTILE])
    assert capsys.readouterr().err.removesuffix("\n").isprintable()


MODEL = """
title: TITLE
family: smallest
fields: {n_vocab: 5}
source: me
models: {mine: {label: LABEL, fields: {d_model: 3}}}
"""


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("TITLE", "mine.yaml: title = 'T\\x1b[2J': contains a control character"),
        ("LABEL", "mine.yaml: models.mine.label = 'T\\x1b[2J': contains a control character"),
    ],
)
def test_files_of_models_have_no_control_characters(tmp_path, key, line):
    text = MODEL.replace(key, '"T\\e[2J"').replace("TITLE", "t").replace("LABEL", "l")
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(InputError) as error:
        _ = Catalogue(tmp_path).bases
    assert line in str(error.value)
    assert Catalogue(MODELS).bases


def test_a_users_accelerators_have_none(tmp_path: Path):
    file = tmp_path / "own.yaml"
    file.write_text('accelerators:\n- {name: "M\\x9b", bytes: 30_000_000_000, source: me}\n')
    with pytest.raises(InputError, match=r"accelerators\[0\].name = 'M\\x9b': contains a control"):
        all_accelerators(file)
