"""`explain` of files as programs write them here: transformers, safetensors, PEFT, gguf, torch.

The programs are the witness: every tensor and byte of their files is exact or bounded by formula.
Files that are cut, empty or of other numbers are refused in one line, or unexplained.
"""

import json
import pickle
import shutil
import struct

import pytest
from helpers.explained_share import explained_share
from helpers.gguf_files import KEYS_OF_FILE, written
from helpers.small_classes import SMALL

from modelbudget.api.explain import explain
from modelbudget.common.errors import InputError

WRITTEN = {
    **{kind: (kind, {}, "float32") for kind in SMALL},
    "two shards": ("LlamaForCausalLM", {"max_shard_size": "20KB"}, "float32"),
    "in bfloat16": ("Qwen3ForCausalLM", {}, "bfloat16"),
    "in float16, sharded": ("MixtralForCausalLM", {"max_shard_size": "30KB"}, "float16"),
    "tied": ("Qwen2ForCausalLM", {"tie_word_embeddings": True}, "bfloat16"),
}
"""Class, what is changed, dtype."""


def save(kind: str, folder, dtype: str = "float32", **changed):
    import torch
    import transformers

    sizes = SMALL.get(kind, SMALL["Qwen3ForCausalLM"])
    config = getattr(transformers, kind).config_class(**sizes | changed)
    model = getattr(transformers, kind)(config).to(getattr(torch, dtype))
    return model, folder


@pytest.mark.parametrize("name", WRITTEN)
def test_a_folder_that_transformers_saves(tmp_path, name):
    kind, changed, dtype = WRITTEN[name]
    sizes = {key: value for key, value in changed.items() if key == "max_shard_size"}
    model, folder = save(
        kind, tmp_path, dtype, **{k: v for k, v in changed.items() if k not in sizes}
    )
    model.save_pretrained(folder, **sizes)
    found = explain(folder)
    assert {one.verdict for one in found.lines} == {"exact"}, found.lines
    assert explained_share(found) == 1
    files = list(folder.glob("*.safetensors"))
    assert (len(files) > 1) == bool(sizes)
    if not sizes:
        assert found.lines[-1].n_bytes == files[0].stat().st_size


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    ("rank", "targets"),
    [
        (2, ["q_proj", "v_proj"]),
        (4, ["o_proj"]),
        (3, "all-linear"),
        (1, ["gate_proj", "up_proj"]),
        (2, ["model.layers.0.self_attn.k_proj"]),
    ],
)
def test_an_adapter_that_peft_saves(tmp_path, rank, targets):
    from peft import LoraConfig, get_peft_model

    model, _ = save("LlamaForCausalLM", tmp_path)
    model.save_pretrained(tmp_path / "base")
    lora = LoraConfig(r=rank, target_modules=targets, task_type="CAUSAL_LM")
    get_peft_model(model, lora).save_pretrained(tmp_path / "adapter")
    found = explain(tmp_path / "adapter", str(tmp_path / "base"))
    assert [one.verdict for one in found.lines] == ["exact"] * 3
    assert explained_share(found) == 1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["Qwen3NextForCausalLM", "Qwen3MoeForCausalLM"])
@pytest.mark.parametrize(
    "targets", [["q_proj", "in_proj_qkvz", "out_proj"], "all-linear", ["down_proj"]]
)
def test_an_adapter_around_matrices_that_the_class_joins(tmp_path, kind, targets):
    """Names of these classes were not known, and of experts PEFT adapts whole stacks."""
    from peft import LoraConfig, get_peft_model

    recurrence = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8,
                  "linear_value_head_dim": 8, "num_hidden_layers": 4}  # fmt: skip
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
    model, _ = save(kind, tmp_path, **experts, **recurrence if "Next" in kind else {})
    model.save_pretrained(tmp_path / "base")
    lora = LoraConfig(r=3, target_modules=targets, task_type="CAUSAL_LM")
    get_peft_model(model, lora).save_pretrained(tmp_path / "adapter")
    found = explain(tmp_path / "adapter", str(tmp_path / "base"))
    assert [one.verdict for one in found.lines] == ["exact"] * 3, found.lines


@pytest.mark.parametrize("of_type", ["F16", "Q8_0", "Q4_0", "Q5_1", "IQ4_NL"])
def test_a_file_that_gguf_writes(tmp_path, of_type):
    path = written(tmp_path / "a.gguf", KEYS_OF_FILE, {"blk.0.attn_q.weight": of_type})
    found = explain(path)
    assert {one.verdict for one in found.lines} == {"exact"}
    assert found.lines[-1].n_bytes == path.stat().st_size


def test_a_message_that_torch_prints(tmp_path):
    """Bytes of a module's tensors, printed by torch and read as a trainer's log."""
    import torch

    (tmp_path / "a.log").write_text(f"max_memory_allocated: {torch.zeros(1000).nbytes} bytes\n")
    found = explain(tmp_path / "a.log", "gpt-2-124m")
    assert [(one.name, one.verdict, one.n_bytes) for one in found.lines] == [
        ("peak", "asked", 4000)
    ]
    assert found.asked


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    model, folder = save("LlamaForCausalLM", tmp_path_factory.mktemp("saved"))
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("part", [0.0, 0.001, 0.5, 0.999])
def test_a_safetensors_file_that_is_cut(tmp_path, saved, part):
    shutil.copytree(saved, tmp_path / "cut")
    path = tmp_path / "cut" / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content))])
    with pytest.raises(InputError) as error:
        explain(tmp_path / "cut")
    assert len(error.value.mistakes) == 1


def tensor(dtype: str, shape: list[int], offsets: list[int]) -> bytes:
    return json.dumps({"a": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}).encode()


@pytest.mark.parametrize(
    "header",
    [
        b"{}", b"[]", b"null", b"{" * 1000, b'{"a": 1}',
        tensor("F32", [2**62, 2**62], [0, 4]), tensor("F32", [-1], [4, 0]),
        tensor("Q9", [1], [0, 4]),
    ],
)  # fmt: skip
def test_a_hostile_header_is_no_traceback(tmp_path, saved, header):
    shutil.copytree(saved, tmp_path / "other")
    (tmp_path / "other" / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    try:
        lines = [f"{one.verdict}" for one in explain(tmp_path / "other").lines]
    except InputError as error:
        lines = ["unexplained", *error.mistakes[1:]]
    assert "unexplained" in lines


def test_a_header_of_a_petabyte_is_not_read(tmp_path, saved):
    shutil.copytree(saved, tmp_path / "long")
    (tmp_path / "long" / "model.safetensors").write_bytes(struct.pack("<Q", 2**50) + b"{}")
    with pytest.raises(InputError) as error:
        explain(tmp_path / "long")
    assert len(error.value.mistakes) == 1


@pytest.mark.parametrize("part", [4, 30, 200, 5000])
def test_a_gguf_file_that_is_cut(tmp_path, part):
    path = written(tmp_path / "a.gguf", KEYS_OF_FILE, {})
    path.write_bytes(path.read_bytes()[:part])
    with pytest.raises(InputError) as error:
        explain(path)
    assert len(error.value.mistakes) == 1


@pytest.mark.parametrize("part", [1, 20, 60])
def test_a_snapshot_that_is_cut(tmp_path, part):
    block = {"size": 512, "requested_size": 4, "state": "active_allocated", "address": 0}
    content = pickle.dumps({"segments": [{"total_size": 2**21, "blocks": [block]}]})
    (tmp_path / "a.pickle").write_bytes(content[:part])
    with pytest.raises(InputError) as error:
        explain(tmp_path / "a.pickle")
    assert len(error.value.mistakes) == 1
