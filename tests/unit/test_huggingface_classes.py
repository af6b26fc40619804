"""The files about Hugging Face's classes: one clear message for each mistake."""

import shutil
from pathlib import Path

import pytest
from helpers.project import ROOT

from modelbudget.catalogue import check_huggingface_files as checks
from modelbudget.common.errors import InputError
from modelbudget.huggingface import classes
from modelbudget.huggingface.classes import translations

TYPES = ("bert", "falcon", "gpt_oss", "mixtral", "mistral", "llama")
"""Files in which a test makes a mistake, and one more: reading all takes longer than to find it."""
CACHES = (classes.shared_keys, classes.translations, checks.check_huggingface_files)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A copy of some files, which a test may change."""
    copy = tmp_path / "huggingface"
    shutil.copytree(ROOT / "configs" / "huggingface", copy)
    for path in (copy / "model_types").iterdir():
        if path.stem not in TYPES:
            path.unlink()
    for module in (classes, checks):
        monkeypatch.setattr(module, "FOLDER", copy)
    for cache in CACHES:
        cache.cache_clear()
    yield copy
    for cache in CACHES:
        cache.cache_clear()


def replace(path: Path, old: str, new: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))


def mistakes(folder: Path) -> list[str]:
    with pytest.raises(InputError) as refusal:
        checks.check_huggingface_files()
    return [line.removeprefix(f"{folder}/") for line in refusal.value.mistakes]


MISTAKES = [
    ("falcon", "family: decoder", "family: decodr", "family = 'decodr': unknown family; did you"
     " mean decoder?"),
    ("falcon", "fixed:", "fixd:", "fixd: unknown key; did you mean fixed?"),
    ("falcon", "norm: layernorm", "nrom: layernorm", "fixed: 'nrom': unknown field; did you mean"
     " norm?"),
    ("falcon", "position: rotary", "positon: rotary", "alibi: 'positon': unknown field; did you"
     " mean position?"),
    ("falcon", "[parallel]", "[paralel]", "parallel_attn: 'paralel': unknown field; did you mean"
     " parallel?"),
    ("falcon", "[parallel]", "parallel", "switches.parallel_attn = 'parallel': must be a list"),
    ("falcon", "2 - shared_norm", "2 - shred_norm", "inverse.num_ln_in_parallel_attn: 'shred_norm':"
     " unknown field; did you mean shared_norm?"),
    ("falcon", "2 - shared_norm", "2 -", "inverse.num_ln_in_parallel_attn = '2 -': '2 -' is not an"
     " expression"),
    ("falcon", "shared_norm: (num_ln", "shared_norm: (num_nl", "computed.shared_norm:"
     " 'num_nl_in_parallel_attn' has no default; did you mean num_ln_in_parallel_attn?"),
    ("falcon", "- parallel_attn or", "- parallel or", "requires.0: 'parallel' has no default; did"
     " you mean parallel_attn?"),
    ("falcon", "n_embed: hidden_size", "n_embed: hiden_size", "aliases.n_embed: 'hiden_size' has no"
     " default; did you mean hidden_size?"),
    ("falcon", "vocab_size: 65024", "vocab: 65024", "defaults.vocab: unknown key; did you mean"
     " vocab_size?"),
    ("falcon", "vocab_size: 65024", "vocab_size: [1]", "defaults.vocab_size = [1]: must be"),
    ("falcon", "vocab_size: 65024", "vocab_size: 1\n  vocab_size: 2", "line 5: duplicate key"
     " 'vocab_size'"),
    ("bert", "(tied - 1)", "(tide - 1)", "left_out.parameters: 'tide': unknown field; did you mean"
     " tied?"),
    ("bert", "pooler: true", "poler: true", "classes.BertForPreTraining: 'poler': unknown field;"
     " did you mean pooler?"),
    ("gpt_oss", "swiglu_", "(swiglu_", "ignored[0] = '(swiglu_\\\\w+': "),
    ("gpt_oss", "sliding_window: 128", "window: 128", "mixers: 'sliding_window' has no default"),
    ("gpt_oss", "like: mixtral", "like: mixtrl", "like = 'mixtrl': no such file; did you mean"
     " mixtral?"),
    ("gpt_oss", "like: mixtral", "like: [mixtral]", "like = ['mixtral']: no such file"),
    ("mistral", "defaults.mlp_bias", "defaults.mlp_bais", "without: 'defaults.mlp_bais': is not in"
     " llama.yaml"),
    ("mistral", "without: [", "without: nothing  # [", "without = 'nothing': must be a list"),
    ("llama", "norm: rmsnorm", "nrom: rmsnorm", "fixed: 'nrom': unknown field; did you mean norm?"),
    ("keys", "n_embd: d_model", "n_embd: d_modle", "n_embd: 'd_modle': unknown field; did you mean"
     " d_model?"),
    ("keys", "afn: hidden_act", "afn: hiden_act", "same.afn = 'hiden_act': unknown key; did you"
     " mean hidden_act?"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "old", "new", "message"), MISTAKES)
def test_a_mistake_in_a_file_about_classes(folder, name, old, new, message):
    file = "keys.yaml" if name == "keys" else f"model_types/{name}.yaml"
    replace(folder / file, old, new)
    line, *more = mistakes(folder)
    assert len(more) <= 1
    assert line.startswith(f"{file}: {message}")
    assert len(line) < 300


def test_files_that_are_like_each_other(folder):
    """Only this sees a circle, which would end in a traceback."""
    replace(folder / "model_types" / "mistral.yaml", "like: llama", "like: gpt_oss")
    lines = mistakes(folder)
    assert len(lines) == 3
    assert all("that file is itself like this one" in line for line in lines)


def test_a_class_stands_in_one_file(folder):
    replace(folder / "model_types" / "falcon.yaml", "Falcon", "Llama")
    (line,) = mistakes(folder)
    where = "model_types/llama.yaml: classes.LlamaForCausalLM: "
    assert line == f"{where}is in another file too; allowed: once"


def test_the_mistakes_of_all_files_at_once(folder):
    for name in ("bert", "falcon"):
        replace(folder / "model_types" / f"{name}.yaml", "family: ", "family: un")
    assert [line.split(": ")[0] for line in mistakes(folder)] == [
        "model_types/bert.yaml", "model_types/falcon.yaml"
    ]  # fmt: skip


def test_the_shipped_files_have_no_mistake():
    checks.check_huggingface_files()


def test_no_key_has_two_meanings_in_one_file():
    for one in (classes.shared_keys(), *translations().values()):
        sections = (one.sizes, one.switches, one.choices, one.supported, getattr(one, "same", {}))
        found = [key for section in sections for key in section]
        assert len(found) == len(set(found))


def test_a_class_without_a_name_is_the_first_of_its_model_type():
    first = {name: next(iter(one.classes)) for name, one in translations().items()}
    assert first["BertForMaskedLM"] == "BertForPreTraining"
