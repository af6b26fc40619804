"""Configs of the classes of points: the keys of a file as written, or made from our fields."""

import json
import shutil

import pytest
from helpers.config_files import LLAMA
from helpers.project import ROOT

import modelbudget as mb
from modelbudget.api.command.app import main
from modelbudget.architecture.terms import total
from modelbudget.huggingface import classes
from modelbudget.huggingface.keys_of_class import changed
from modelbudget.measurement.reference.class_counts import witness
from modelbudget.sweeps.class_config import FIELDS, FILE, class_config, classes_of
from modelbudget.sweeps.points_table import points_table
from modelbudget.sweeps.sweep_json import content

FEW_KEYS = LLAMA | {"num_key_value_heads": 2}
WRITTEN = FEW_KEYS | {
    "layer_types": ["full_attention"] * 2,
    "attn_implementation": "a/kernel-of-a-hub",
    "rope_parameters": {"rope_type": "default", "rope_theta": 7.0},
}
MPT = {
    "model_type": "mpt", "hidden_size": 32, "n_heads": 4, "n_layers": 2, "vocab_size": 100,
    "max_seq_len": 16, "expansion_ratio": 4, "attn_config": {"attn_type": "multihead_attention"},
}  # fmt: skip


@pytest.fixture
def classes_of_file(sweep, tmp_path):
    """Write a config.json and return the classes of a sweep over it."""

    def classes_of_file(config: dict, rest: str = "points: [{base: config.json}]"):
        (tmp_path / "config.json").write_text(json.dumps(config))
        return classes_of(points_table(sweep(rest).points))

    return classes_of_file


def test_keys_of_a_file_are_those_of_its_class(classes_of_file):
    (of_point,) = classes_of_file(WRITTEN)
    written = {k: v for k, v in WRITTEN.items() if k not in ("model_type", "attn_implementation")}
    assert (of_point.built_from, of_point.config) == (FILE, written)


def test_only_keys_of_swept_fields_differ_from_the_file(classes_of_file):
    _, deeper = classes_of_file(WRITTEN, "base: config.json\ngrid: {n_layer: [2, 3]}")
    changed = {k: v for k, v in deeper.config.items() if WRITTEN.get(k, "absent") != v}
    three = {"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3, "pad_token_id": 0}
    assert changed == three


def test_another_spelling_of_a_swept_key_is_replaced(classes_of_file):
    (wider,) = classes_of_file(MPT, "points: [{base: config.json, d_model: 64}]")
    assert wider.config["d_model"] == 64
    assert "hidden_size" not in wider.config
    assert wider.config["attn_config"] == MPT["attn_config"]


def test_keys_of_a_part_that_is_new_join_those_of_the_file():
    """No class has such keys yet, so that no sweep sees them replace those of the file."""
    file = {"rope": {"type": "yarn", "base": 1}, "rope_base": 1}
    keys = changed(file, {"n": 4}, {"n": 4, "rope": {"base": 3}}, {"rope_base": "rope.base"})
    assert keys == {"rope": {"type": "yarn", "base": 3}}


def test_a_catalogue_model_has_a_config_from_our_fields(sweep):
    (of_point,) = classes_of(points_table(sweep("points: [{base: gpt-2-124m}]").points))
    assert of_point.built_from == FIELDS
    assert of_point.config["n_embd"] == 768


def test_a_file_that_changes_only_for_its_class_makes_new_points(sweep, tmp_path):
    digests = set()
    for value in (1e-5, 1e-6):
        (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"rms_norm_eps": value}))
        digests.add(content(sweep("points: [{base: config.json}]")))
    assert len(digests) == 2


@pytest.fixture
def broken_keys(tmp_path, monkeypatch):
    """A copy of the key mapping in which a Llama's key heads are read as another field."""
    folder = tmp_path / "huggingface"
    shutil.copytree(ROOT / "configs" / "huggingface", folder)
    keys = folder / "keys.yaml"
    right, wrong = "num_key_value_heads: n_kv_head", "num_key_value_heads: d_rotary"
    assert right in keys.read_text()
    keys.write_text(keys.read_text().replace(right, wrong))
    monkeypatch.setattr(classes, "FOLDER", folder)
    readers = (classes.shared_keys, classes.translations)
    for reader in readers:
        reader.cache_clear()
    yield
    for reader in readers:
        reader.cache_clear()


def test_a_key_that_our_translation_loses_is_not_lost_for_the_class(
    broken_keys, sweep, tmp_path, classes_of_file
):
    (of_point,) = classes_of_file(FEW_KEYS)
    (point,) = sweep("points: [{base: config.json}]").points
    d, d_ff, d_key = 32, 48, 2 * 8
    truth = 2 * 100 * d + 2 * (2 * d * d + 2 * d * d_key + 3 * d * d_ff + 2 * d) + d
    assert witness(of_point.class_name, of_point.config).parameters == truth
    assert total(point.architecture.parameters(point.architecture)) == truth + 2 * 2 * d * d_key


def test_the_class_of_a_misread_file_disagrees(broken_keys, sweep, tmp_path, capsys, monkeypatch):
    """Formula and module agree, since both have the misread field; the class does not."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(FEW_KEYS))
    found = mb.model(str(path)).measure()
    assert found.table["agrees"].all()
    assert not found.agrees
    monkeypatch.setattr("sys.argv", ["modelbudget", "measure", str(path)])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 1
    assert "parameters, -2,048: DIFFERS" in capsys.readouterr().err


def test_a_class_is_no_architecture_whose_fields_its_config_cannot_say():
    """Llama rotates all channels: half of them had the memory of all under its name."""
    a = mb.model("llama-3.2-1b").architecture
    assert class_config("LlamaForCausalLM", a) == class_config(
        "LlamaForCausalLM", a.model_copy(update={"d_rotary": a.d_head})
    )
    with pytest.raises(ValueError, match=r"cannot be this architecture: d_rotary = 32 \(there"):
        class_config("LlamaForCausalLM", a.model_copy(update={"d_rotary": 32}))


def test_a_class_that_reads_the_types_of_its_layers_has_them():
    """Ministral's were those of Mistral, each with a window, where three of four have one."""
    a = mb.model("ministral-8b").architecture
    types = class_config("MinistralForCausalLM", a)["layer_types"]
    assert types[:4] == ["full_attention", *["sliding_attention"] * 3]
