"""JSON of strangers: read within bounds, or refused in one line and at once."""

import json

import pytest

from modelbudget.api.budget_lock import ChangedValue, check, table
from modelbudget.common.bounded_json import parse_json
from modelbudget.common.errors import InputError
from modelbudget.common.printable import markdown

HOSTILE = {
    "[" * 100_000: "nested too deep",
    '{"a":' * 100_000: "nested too deep",
    "1e999": "a number too large",
    "9" * 5_000: "a number of 5,000 digits",
    "Infinity": "not a number of JSON",
    '{"a": 1, "b": 2, "a": 3}': "duplicate key 'a'",
    '"' + '\\"' * 1_000_000: "Unterminated",
}


def test_json_within_bounds_is_read_as_by_json():
    for value in ({"a": [1, -2.5, '[[{\\"', None, True]}, [[[[]]]], "}", 10**99, -1e308):
        assert parse_json(json.dumps(value)) == value


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_json_beyond_bounds_is_one_line(text, tmp_path):
    with pytest.raises(ValueError, match=HOSTILE[text]):
        parse_json(text)
    lock = tmp_path / "budget.lock"
    lock.write_text(text)
    with pytest.raises(InputError) as raised:
        check(lock)
    assert len(raised.value.mistakes) == 1


@pytest.mark.parametrize(
    ("content", "about"),
    [
        ('{"settings": {}, "models": {}}', "models: empty"),
        ('{"settings": {}, "models": {"gpt-2-124m": {}}, "models": {}}', "duplicate key 'models'"),
    ],
)
def test_a_budget_without_models_is_not_unchanged(tmp_path, content, about):
    (tmp_path / "budget.lock").write_text(content)
    with pytest.raises(InputError, match=about):
        check(tmp_path / "budget.lock")


def test_names_of_a_budget_are_escaped_in_its_table():
    hostile = "a|b\x1b[31m\n<img src=x> [x](http://y) @team `c`"
    (*_, row) = table([ChangedValue("m", hostile, "total", 1, 2)]).splitlines()
    assert "\x1b" not in row
    assert row.replace("\\|", "").count("|") == 6
    for character in "<>[]`@":  # a link needs an unescaped ] before its parentheses
        assert row.count(character) == row.count("\\" + character)
    assert markdown("layer.mlp.up") == "layer.mlp.up"
    assert markdown("n_layer (8), *_a_*") == r"n_layer (8), \*\_a\_\*"
