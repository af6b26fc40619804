"""The tensors of a checkpoint against the formula: real files, and headers with a mistake."""

import json
import math
import os
from pathlib import Path

import pytest
import transformers
from test_command import LLAMA, PARAMETERS, command

import modelbudget as mb
from modelbudget.api.checkpoint_tensors import compare_checkpoint
from modelbudget.api.command import text_table
from modelbudget.api.model import Model
from modelbudget.measurement.reference.class_counts import build
from modelbudget.sweeps.class_config import class_config
from modelbudget.sweeps.derive import named_architecture

SIZES = {"vocab_size": 1000, "hidden_size": 64, "intermediate_size": 172, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip
OTHERS = (
    ("Mixtral", SIZES | {"num_local_experts": 4}),
    ("Bert", {name: SIZES[name] for name in list(SIZES)[:-1]}),
    ("GPT2", {"n_embd": 64, "n_layer": 2, "n_head": 4}),
)
TRULY_DIFFERENT = {"T5ForConditionalGeneration": -32_128 * 512}
"""T5 v1.1 small has a head of its own; transformers 5 ties it to the embedding."""


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """Save a real model in one file and in shards."""
    folder = tmp_path_factory.mktemp("llama")
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).bfloat16()
    model.save_pretrained(folder / "whole")
    model.save_pretrained(folder / "shards", max_shard_size="100KB")
    return folder


def with_tensors(folder: Path, change) -> Path:
    """Write a config.json and a header whose tensors `change` edits; there are no values."""
    tensors = {"model.embed_tokens.weight": [1000, 64], "lm_head.weight": [1000, 64],
               "model.norm.weight": [64]}  # fmt: skip
    for i in range(2):
        layer = {
            "self_attn.q_proj": [64, 64], "self_attn.k_proj": [32, 64],
            "self_attn.v_proj": [32, 64], "self_attn.o_proj": [64, 64], "mlp.up_proj": [172, 64],
            "mlp.gate_proj": [172, 64], "mlp.down_proj": [64, 172], "input_layernorm": [64],
            "post_attention_layernorm": [64],
        }  # fmt: skip
        tensors |= {f"model.layers.{i}.{name}.weight": shape for name, shape in layer.items()}
    change(tensors)
    (folder / "config.json").write_text(json.dumps(LLAMA))
    write_header(folder / "model.safetensors", tensors)
    return folder


def write_header(path: Path, shapes: dict, edit=lambda content: None) -> None:
    """Write the header of a file that is as long as its tensors, and takes no room on a disk."""
    content, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + 2 * math.prod(shape)
        content[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    edit(content)
    header = json.dumps(content).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(path, 8 + len(header) + end)


def test_a_real_checkpoint_agrees_whole_in_shards_and_by_its_index_alone(llama, tmp_path, capfd):
    for name in (
        "whole",
        "whole/model.safetensors",
        "shards",
        "shards/model.safetensors.index.json",
    ):
        found = mb.model(llama / name).checkpoint()
        assert found.agrees, found.differences
        assert sum(part.stored for part in found.parts) == PARAMETERS
        assert found.dtypes == {"BF16": 21}
        assert found.to_pandas()["stored"].sum() == found.to_polars()["predicted"].sum()
    assert not capfd.readouterr().err  # no progress bar of the class, in a process of its own
    assert mb.model(llama / "whole" / "config.json").checkpoint() is None
    for name in ("config.json", "model.safetensors.index.json"):
        (tmp_path / name).write_text((llama / "shards" / name).read_text())
    (part,) = mb.model(tmp_path).checkpoint().parts
    assert (part.quantity, part.predicted, part.stored) == ("parameter_bytes",) + 2 * (
        2 * PARAMETERS,
    )


def test_shards_that_are_not_there_are_said_without_an_index(llama, tmp_path):
    (first, *_, last) = sorted((llama / "shards").glob("*.safetensors"))
    n = int(first.stem[-5:])
    for file in (last, llama / "shards" / "config.json"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    found = mb.model(tmp_path / last.name).checkpoint()
    assert found.refusal == f"{n - 1} of {n} shards are not there, the first {first.name!r}"
    assert not found.parts
    assert found.refusal in command(last.name, cwd=tmp_path).stderr


def test_weights_without_a_config_name_both_files(tmp_path):
    """Only config.json was named, which nobody had written on the command line."""
    (tmp_path / "own.safetensors").touch()
    found = command("own.safetensors", cwd=tmp_path)
    assert found.returncode == 2
    needed = "own.safetensors: needs the model's config.json: config.json: no such file"
    assert found.stderr.strip() == needed


def test_a_header_of_fine_grained_experts_is_read(tmp_path):
    """Spaces after it, as the format allows, make it as long as that of 50,000 tensors."""
    folder = with_tensors(tmp_path, lambda tensors: None)
    content = (folder / "model.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + length].ljust(5_000_000)
    n_bytes = len(header).to_bytes(8, "little")
    (folder / "model.safetensors").write_bytes(n_bytes + header + content[8 + length :])
    assert mb.model(folder).checkpoint().agrees


def test_the_time_for_a_name_grows_with_its_letters_alone(monkeypatch):
    measured = []
    of_text = text_table._length
    monkeypatch.setattr(
        text_table, "_length", lambda text: (measured.append(len(text)), of_text(text))[1]
    )
    table = text_table.Table("", ("tensor",), [("a" * 4_000,)])
    assert len(text_table.lines(table, 80)) == 1 + -(-4_000 // 78)
    assert sum(measured) < 20 * 4_000


def test_other_classes_tied_heads_and_experts_agree(tmp_path):
    for name, sizes in OTHERS:
        kind = "BertForPreTraining" if name == "Bert" else f"{name}ForCausalLM"
        config = getattr(transformers, f"{name}Config")(**sizes)
        kind = getattr(transformers, "GPT2LMHeadModel" if name == "GPT2" else kind)
        kind(config).save_pretrained(tmp_path / name)
        found = mb.model(tmp_path / name).checkpoint()
        assert found.agrees, found.differences
        assert (
            sum(part.stored for part in found.parts) == mb.model(tmp_path / name).parameters().total
        )


def test_a_difference_names_its_tensors_and_is_exit_code_1(tmp_path):
    def change(tensors):
        tensors["model.layers.1.mlp.up_proj.weight"] = [173, 64]
        tensors["model.layers.1.mlp.adapter.weight"] = [7, 64]
        tensors["model.rotary_emb.inv_freq"] = [8]

    found = command(".", cwd=with_tensors(tmp_path, change))
    assert found.returncode == 1, found.stderr
    rows = [line.split() for line in found.stdout.splitlines()]
    assert ["layer.mlp.up,", "parameters", "22,016", "22,080", "+64"] in rows
    assert ["model.layers.1.mlp.up_proj.weight", "[173,", "64]"] in rows
    assert ["MLP,", "parameters", "0", "448", "+448"] in rows
    assert ["model.layers.*.mlp.adapter.weight", "1", "×", "[7,", "64]"] in rows
    assert "inv_freq" not in found.stdout
    assert "1 buffers or copies left out" in found.stderr
    as_json = json.loads(command(".", "--json", cwd=tmp_path).stdout)
    assert sum(row["difference"] for row in as_json["checkpoint"]) == 64 + 448


def renamed(tensors, before, after):
    tensors[after] = tensors.pop(before)


LAYER = "model.layers.1."


@pytest.mark.parametrize(
    ("change", "name", "of_class", "stored"),
    [
        (
            lambda t: t.update(
                {f"{LAYER}mlp.up_proj.weight": [64, 64], f"{LAYER}mlp.gate_proj.weight": [280, 64]}
            ),
            f"{LAYER}mlp.up_proj.weight", (172, 64), (64, 64),
        ),
        (
            lambda t: t.update({f"{LAYER}mlp.down_proj.weight": [172, 64]}),
            f"{LAYER}mlp.down_proj.weight", (64, 172), (172, 64),
        ),
        (
            lambda t: renamed(t, f"{LAYER}mlp.up_proj.weight", "model.layers.7.mlp.up_proj.weight"),
            "model.layers.7.mlp.up_proj.weight", None, (172, 64),
        ),
    ],
)  # fmt: skip
def test_names_and_shapes_are_those_of_the_class(tmp_path, change, name, of_class, stored):
    found = mb.model(with_tensors(tmp_path, change)).checkpoint()
    assert not found.agrees
    assert {"name": name, "of_class": of_class, "stored": stored} in found.names()


def test_a_wrong_name_is_printed_escaped_and_is_exit_code_1(tmp_path):
    hostile = "model.\x1b]0;owned\x07.weight"
    folder = with_tensors(tmp_path, lambda t: renamed(t, "model.norm.weight", hostile))
    found = command(".", cwd=folder)
    assert found.returncode == 1, found.stderr
    assert "\x1b" not in found.stdout + found.stderr
    assert r"model.\x1b]0;owned\x07.weight" in found.stdout
    assert "names and shapes: 2 differ from LlamaForCausalLM" in found.stderr


@pytest.mark.parametrize(
    ("edit", "about"),
    [
        (lambda c: c["model.norm.weight"].update(data_offsets=[0, 0]), "0 bytes in data_offsets"),
        (lambda c: c["model.norm.weight"].update(data_offsets=[0, 128]), "starts at 0"),
        (lambda c: c["model.norm.weight"].update(dtype="FOO"), "dtype = 'FOO'; allowed: BOOL"),
        (lambda c: c["model.norm.weight"].update(shape=[10**99] * 90), "dimensions|whole numbers"),
        (lambda c: c.pop("model.layers.1.input_layernorm.weight"), "starts at"),
    ],
)
def test_offsets_and_dtypes_that_are_wrong_are_one_line(tmp_path, edit, about):
    shapes: dict = {}
    folder = with_tensors(tmp_path, shapes.update)
    write_header(folder / "model.safetensors", shapes, edit)
    with pytest.raises(mb.InputError, match=about) as raised:
        mb.model(folder).checkpoint()
    assert len(raised.value.mistakes) == 1


def test_a_file_that_is_cut_and_a_key_given_twice_are_one_line(tmp_path):
    path = with_tensors(tmp_path, lambda _: None) / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(mb.InputError, match="bytes after the header"):
        mb.model(tmp_path).checkpoint()
    path.write_bytes((18).to_bytes(8, "little") + b'{"a": {}, "a": {}}')
    with pytest.raises(mb.InputError, match="duplicate key 'a'"):
        mb.model(tmp_path).checkpoint()


def test_copies_of_a_tied_embedding_are_counted_once(tmp_path):
    (with_tensors(tmp_path, lambda _: None) / "config.json").write_text(
        json.dumps(LLAMA | {"tie_word_embeddings": True})
    )
    assert mb.model(tmp_path).checkpoint().agrees
    lacking = with_tensors(tmp_path, lambda tensors: tensors.pop("lm_head.weight"))
    (head,) = mb.model(lacking).checkpoint().differences
    assert (head.predicted, head.stored) == (64_000, 0)


@pytest.mark.parametrize(
    ("content", "about"),
    [
        (b"", "its header has 0 bytes"),
        (b"version https://git-lfs.github.com/spec/v1", "its header has"),
        ((9).to_bytes(8, "little") + b'{"a": 1}}', "no safetensors file"),
        ((28).to_bytes(8, "little") + b'{"a": {"data_offsets": [0]}}', "no safetensors file"),
    ],
)
def test_a_file_that_is_no_checkpoint_is_one_line(tmp_path, content, about):
    (with_tensors(tmp_path, lambda _: None) / "model.safetensors").write_bytes(content)
    with pytest.raises(mb.InputError, match=about) as raised:
        mb.model(tmp_path).checkpoint()
    assert "model.safetensors: " in raised.value.mistakes[0]


@pytest.mark.parametrize(
    "content", ['{"weight_map": {"a": "../x"}, "metadata": {"total_size": 1}}', "{}", "[", "[]"]
)
def test_an_index_that_is_none_is_one_line(tmp_path, content):
    path = with_tensors(tmp_path, lambda _: None) / "model.safetensors.index.json"
    path.write_text(content)
    with pytest.raises(mb.InputError, match=r"model\.safetensors\.index\.json: "):
        mb.model(tmp_path).checkpoint()


def test_the_state_dict_of_every_class_agrees(catalogue, tmp_path):
    seen = set()
    for base in catalogue.bases.values():
        if base.model is None or base.transformers in seen | {None}:
            continue
        kind, path = base.transformers, tmp_path / "model.safetensors"
        seen.add(kind)
        model = build(kind, class_config(kind, named_architecture(base)))
        tensors = {
            id(one): name for name, one in reversed(model.state_dict(keep_vars=True).items())
        }
        state = model.state_dict()
        write_header(path, {name: list(state[name].shape) for name in tensors.values()})
        found = compare_checkpoint(Model(base), path)
        assert found.refusal is None
        differs = sum(part.difference for part in found.parts)
        assert differs == TRULY_DIFFERENT.get(kind, 0), (base.name, found.differences)
    assert len(seen) > 30


def test_differences_that_cancel_are_none_only_with_the_names_of_the_class(tmp_path, monkeypatch):
    def change(tensors):
        up, query = (
            f"model.layers.0.{name}.weight" for name in ("mlp.up_proj", "self_attn.q_proj")
        )
        tensors[up], tensors[query] = tensors[query], tensors[up]

    monkeypatch.setattr(
        "modelbudget.api.checkpoint_tensors.find_spec", lambda _: None
    )  # not installed
    checkpoint = mb.model(with_tensors(tmp_path, change)).checkpoint()
    assert checkpoint.loading is None
    assert sum(part.difference for part in checkpoint.differences) == 0
    assert not checkpoint.agrees
