"""What a new user types first: names, values and devices, in this process."""

import csv
import gc
import io
import json
import os
import shlex
import sys
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
import transformers
from helpers.project import ROOT

import modelbudget as mb
from modelbudget.api.command import app, text_table
from modelbudget.api.command.tables_of_fit import of_fits
from modelbudget.api.find import find
from modelbudget.api.predictions import QUANTITIES
from modelbudget.architecture.stored_formats import FORMATS
from modelbudget.catalogue import named_models
from modelbudget.catalogue.named_models import Catalogue, as_spelled
from modelbudget.common.paths import CONFIGS

MODULE = """
from torch import nn

def build():
    return nn.ModuleDict({"a": nn.Linear(3, 5), "b": nn.Linear(5, 7)})
"""
SIZES = {"n_layer": 2, "d_model": 64, "n_head": 4}
SWEEPS = ("sweep", "grid", "fixed:", "measure.", "points", "base ")
"""What only the author of a sweep knows."""


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """Run the command in an empty folder; return its exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("MODELBUDGET_MODULES", "")

    def run(*words: str) -> SimpleNamespace:
        monkeypatch.setattr(sys, "argv", ["modelbudget", *words])
        with pytest.raises(SystemExit) as end:
            app.main()
        gc.enable()
        out, err = capsys.readouterr()
        return SimpleNamespace(code=end.value.code or 0, out=out, err=err)

    return run


@pytest.mark.parametrize(
    ("words", "about"),
    [
        ("palm", "palm: a series; allowed: palm-8b, palm-62b, palm-540b, "),
        ("gpt-2 --set n_layer=2", "or values of d_model, n_head"),
        ("chinchilla-a9", "and 40 more in `modelbudget models`"),
        ("gpt-2-124m --length 2048", "gpt-2-124m: length = 2,048: position: learned has n_ctx"),
        ("compare gpt-2-124m palm-8b --length 2048", "gpt-2-124m: length = 2,048"),
        ("lock gpt-2-124m --length 2048", "gpt-2-124m: length = 2,048"),
        ("lock gpt-2-124m -o .", ".: a folder; allowed: a file to write"),
        ("measure gpt-2-124m --device tpu", "'meta', 'auto', 'cpu', 'cuda'"),
        ("llama-5-8b", "did you mean llama-3-8b?"),
        ("google/gemma-3-4b-it-GPTQ", "no published model here; the nearest is gemma-3-4b; if "),
        ("llama-3-8b --trainer sft", "--trainer sft: has one model; allowed: --train"),
        (
            "llama-3-8b --trainer grpo --engine-share 2",
            "--engine-share 2.0: allowed: a number betw",
        ),
        ("llama-3-8b --json --csv", "--json, --csv, --markdown: allowed: one of them"),
        ("llama-3-8b --set =3", "--set =3: no value; allowed: FIELD=VALUE"),
        ("llama-3-8b --format json", "--format json: of no file; allowed: with --file gguf"),
        ("llama-3-8b --trainer dpo --length 8 --answer 9", "allowed: 1 to 7, with --length 8"),
        ("bert-base --serve h100", "one pass over all tokens: --fit h100 --inference"),
        ("llama-3-8b --serve h100 --draft ngram", "ngram: drafts from tokens, with neither"),
        ("llama-3-8b --serve h100 --draft ngram", "none, and --set drafted_tokens=N for the"),
        ("llama-3-8b --serve h100 --draft foo", "--draft foo: no published model (allowed: all"),
        ("llama-3-8b --trainer dpo --reference foo", "--reference foo: no published model (allow"),
        (
            "qwen3-next-80b-a3b --set tensor_parallel=2 --fit h200 --devices 8",
            "not known yet with gated_deltanet in mixers\n",
        ),
        (
            "glm-4.7-flash --set n_mtp_layer=1 --train --fit h200 --devices 8",
            "with zero: 3; allowed: replicas (data_parallel) alone, or n_mtp_layer: 0, as classes",
        ),
        (
            "models chinchilla-a9 --fit h100",
            "chinchilla-a9-44m: peak_inference_bytes: position",
        ),
        ("models --fit foo", "--fit foo: unknown accelerator 'foo'"),
        ("models palm --train", "models: settings of a run: allowed with --fit ACCELERATOR"),
        ("llama-3-8b --trainer dpo --reference foo", "file:function; or copy, none"),
        ("llama-3-8b --trainer dpo --reference o/X", "config.json and --reference config.json; or"),
        ("llama-3-8b --trainer grpo --reward llama3", "--reward llama3: a series; allowed: llama"),
        ("llama-3-8b --trainer grpo --reward llama", "llama-33b, llama-65b\n"),
        ("llama-3-8b --optimizer foo", "adamw-8bit, adamw-8bit-torchao, adamw-fp8"),
        ("llama-3-8b --weights foo", "bnb-4bit-double, int4-group"),
        ("llama-3-8b --optimizer foo", "all 46 are in docs/fields.md)"),
        (
            "llama-3-8b --train --set zero=1",
            "zero = 1: not known yet with data_parallel: 1, master_weights: false, gradient_casts: "
            "together; allowed: at least 2 (or context_parallel), true, accumulated",
        ),
        ("llama-3-8b --trainer --fit h100", "--trainer: no value; write --trainer dpo|grpo"),
        ("llama-3-8b --trainer dpo --fit", "--fit: no value; write --fit ACCELERATOR"),
        ("deepseek-v3 --set expert_parallel=8 --weights fp8-block", "allowed: dtype, or --serve"),
        ("llama-3-8b --rank 8", "--rank 8: of no adapter; allowed: with --adapter"),
        ("llama-3-8b --set adapter_rank=9", "adapter_rank = 9: of no adapter; allowed with adapt"),
        ("llama-3-8b --batch 1.5", "batch = '1.5': must be a whole number"),
        ("llama-3-8b --serve h100 --train", "--serve h100: allowed without --train"),
        ("llama-3-8b --serve h100 --reference copy", "--serve h100: allowed without --reference"),
        ("llama-3-8b --serve h100 --answer 9", "--serve h100: allowed without --answer"),
        ("llama-3-8b --file gguf --format Q8_0 --train", "--file gguf: allowed without --train"),
        ("llama-3-8b --file gguf --serve h100", "--file gguf: no --format; allowed: F32"),
        ("llama-3-8b --serve h100 --trainer grpo --reward a", "allowed without --trainer, --rew"),
        (
            "llama-3-8b --trainer dpo --devices 8",
            'for replicas write --set "data_parallel=8, gradient_buckets=copied"',
        ),
        (
            "llama-3-8b --output json",
            "--output: no such option; allowed: --json, --csv, --markdown",
        ),
        ("llama-3-8b --lora", "--lora: no such option; allowed: --adapter lora"),
        (
            "compare gpt2 gpt2 --trainer grpo",
            "--trainer: no such option; allowed: modelbudget MODEL --trainer",
        ),
        ("llama-3-8b --seq-len 4", "--seq-len: no such option; allowed: --length"),
        ("llama-3-8b --seq_len=4", "--seq_len: no such option; allowed: --length"),
        ("llama-3-8b --context 4", "--context: no such option; allowed: --length"),
        ("llama-3-8b --gpus 2", "--gpus: no such option; allowed: --devices"),
        ("llama-3-8b --vram 24GB", "--vram: no such option; allowed: --fit"),
        ("llama-3-8b --alpha 32", "--alpha: no such option; nothing in bytes or FLOPs of a step"),
        ("llama-3-8b --quant nf4", "--quant: no such option; allowed: --weights"),
        ("llama-3-8b --batch-size 2", "--batch-size: no such option; allowed: --batch"),
        ("llama-3-8b --precision 8", "--precision: no such option; allowed: --dtype"),
        ("llama-3-8b --hidden-size 8", "--hidden-size: no such option; allowed: --set d_model=…"),
        ("llama-3-8b --qlora", "no such option; allowed: --adapter lora --weights bnb-4bit"),
        ("llama-3-8b --adapter QLoRA", "write lora, with --weights bnb-4bit-double"),
        ("rwkv-7-2.9b --file gguf --format Q8_0", "are known here for this model; allowed: Llama"),
        ("llama-3-8b --weights nf4", "--weights nf4: write bnb-4bit or bnb-4bit-double"),
        ("llama-3-8b --weights q4_k_m", "allowed: --file gguf --format Q4_K_M"),
        ("llama-3-8b --fit 24 GiB", "GiB: a unit alone; allowed: without a space, such as 24GiB"),
        ("train llama-3-8b", "llama-3-8b: too many; MODEL = 'train' was read before"),
        ("llama-3-8b --lora-rank 8", "allowed: --set adapter_rank=…"),
        ("models --gpus 2", "No such option: --gpus"),
        ("llama-3-8b --length 32k", "--length 32k: write 32768 or 32000"),
        ("llama-3-8b --batch 1K", "--batch 1K: write 1024 or 1000"),
        ("llama-3-8b --set batched_tokens=8k", "batched_tokens=8k: write 8192 or 8000"),
        ("llama-3-8b --serve h100 --set utilisation=0.9", "number (percent of a device's memory"),
        ("llama-3-8b --serve h100 --set parallel=4", "true or false (attention and MLP read the"),
        ("llama3:latest", "a series; allowed: llama-3-8b, llama-3-70b, "),
        ("llama3", "a series; allowed: llama-3-8b, llama-3-70b, "),
        ("qwen3-coder", "several models; allowed: Qwen3-Coder-30B-A3B-Instruct, Qwen3-Coder-480B"),
        ("llama-3.2", "several models; allowed: llama-3.2-1b, llama-3.2-3b"),
        ("llama3.2", "several models; allowed: llama-3.2-1b, llama-3.2-3b"),
        ("whisper", "several models; allowed: whisper-tiny, whisper-base, whisper-small"),
        ("gemma4", "several models; allowed: gemma-4-"),
        ("xsum", "no published model; allowed: pegasus-xsum; or"),
        ("mpt", "several models; allowed: mpt-7b, mpt-30b"),  # was the first, the page's
        ("openchat/openchat-3.5-0106", "no published model here; if huggingface.co has it"),
        ("org/Fara-7B", "no published model here; if huggingface.co has it"),
        ("org/nosuch:model", "a path; write org.nosuch:model"),
        ("nosuch.file:build", "module = 'nosuch.file:build': no such file"),
        ("llama4", "a series; allowed: llama-4-scout, llama-4-maverick"),
        ("mygpt:latest", "MODEL = 'mygpt': no published model"),
        ("llama-folder/", "llama-folder/: no such folder; allowed: a config.json or a folder with"),
        ("./llama-3-8b", "./llama-3-8b: no such folder; allowed: a config.json or a folder with"),
        ("data/models/llama", "data/models/llama: no such folder; allowed: a config.json or a fol"),
        ("check", "budget.lock: no such file"),
        (
            "Qwen/Qwen9-8B",
            "curl -fLO https://huggingface.co/Qwen/Qwen9-8B/resolve/main/config.json "
            "&& modelbudget config.json",
        ),
        ("https://huggingface.co/Qwen/Qwen9-8B/tree/main", "if huggingface.co has it: curl -fLO"),
        (
            "https://huggingface.co/Qwen/Qwen9-8B/blob/main/config.json",
            "if huggingface.co has it: curl -fLO",
        ),
        ("mygpt.py:build", "write mygpt:build"),
        ("./models/mygpt.py:build", "write models.mygpt:build"),
        ("measure /a/mygpt.py:build", "write mygpt:build, with PYTHONPATH=/a"),
        ("gpt-2-124m --set n_head=7", "d_head"),
        ("gpt-2-124m --set attention_kernel=flash --dtype float32", "flash attention takes"),
        ("gpt-2-124m --set name=3", "name = 3: unknown field"),
        ("gpt-2-124m --set activation=elu", "activation = 'elu': must be 'gelu', "),
    ],
)
def test_a_mistake_is_one_line_of_what_to_write(command, words, about):
    found = command(*words.split())
    assert (found.code, found.out) == (2, ""), found.err
    assert about in found.err
    assert len(found.err.splitlines()) == 1
    assert not [word for word in SWEEPS if word in found.err]


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("adapter_config.json", {"peft_type": "LORA"}, "an adapter; allowed: the model that it is"),
        ("model_index.json", {"unet": []}, "a pipeline of diffusers; allowed: a model that reads"),
        ("config.json", {"_class_name": "UNet"}, "_class_name = 'UNet': of diffusers; allowed: a "),
    ],
)
def test_a_folder_of_something_else_is_named(command, tmp_path, name, content, line):
    """It was asked for a config.json, or for a model_type."""
    (tmp_path / name).write_text(json.dumps(content))
    found = command(str(tmp_path))
    assert (found.code, found.out) == (2, "")
    assert found.err.startswith(f"{tmp_path / name}: {line}")
    assert command(str(tmp_path / name)).err == found.err


GEMMA_2 = ["gemma-2-27b", "gemma-2-9b", "gemma-2-2b", "gemma-2b"]


@pytest.mark.parametrize(
    ("purpose", "settings", "fitting"),
    [
        ("inference", {}, GEMMA_2[1:]),
        ("training", {"length": 256, "optimizer": "adamw-8bit"}, GEMMA_2[2:]),
        ("training", {"length": 256, "adapter": "lora", "weights": "bnb-4bit-double"}, GEMMA_2),
    ],
)
def test_models_that_fit_have_the_peak_of_each(command, purpose, settings, fitting):
    """Of each alone, graded by hand: a reserve of 1343 MiB, and 1.28 times the prediction."""
    train = ["--train"] * ("optimizer" in settings)
    options = [f"--{name}={value}" for name, value in settings.items()]
    found = command("models", "gemma-2", "--fit=24GB", *train, *options, "--json")
    rows = json.loads(found.out)["models"]
    assert [row["name"] for row in rows] == fitting
    for row in rows:
        peak = mb.model(row["name"]).predict(f"peak_{purpose}_bytes", settings).total
        fits = 1.28 * peak <= 24e9 - 1343 * 2**20
        assert (row["peak"], row["grade"]) == (peak, "fits" if fits else "tight")


def test_models_without_an_answer_are_counted(command):
    """Of `gpt-2` all but Cerebras-GPT 2.7B had none, which was one of one model that fits."""
    found = command("models", "gpt-2", "--fit=24GB", "--length=2048")
    assert (found.out, found.err.partition(": ")[0]) == ("", "gpt-2-124m")
    found = command("models", "125m", "--fit=24GB", "--length=1025")
    assert found.out.startswith("3 of 3 models with a formula fit")
    assert found.err.startswith("1 model without an answer: microsoft/codebert-base: ")


def test_a_trainers_file_is_no_model(command, tmp_path):
    """It was no published model, with the number of those."""
    (tmp_path / "qlora.yml").write_text("base_model: Qwen/Qwen3-14B\n")
    assert "trainer's settings as options" in command(str(tmp_path / "qlora.yml")).err


def test_what_is_not_known_of_a_model_is_said_once_and_not_in_words_of_sweeps(command):
    bert = command("bert-base")
    assert bert.code == 0
    reason = "cache_bytes, flops_decode: encoder keeps no cache: its inference is one pass over all"
    assert bert.err.count("encoder keeps no cache") == 1
    assert reason in bert.err
    assert not [word for word in SWEEPS if word in bert.err]


def test_a_series_is_answered_with_the_sizes_that_it_lacks(command):
    words = [f"--set={name}={value}" for name, value in SIZES.items()]
    found = command("gpt-2", *words, "--csv")
    (total,) = {mb.model("gpt-2", **SIZES).parameters().total}
    rows = [row.split(",") for row in found.out.splitlines() if '"parameters"' in row]
    assert sum(int(row[-2]) for row in rows) == total
    # embeddings, positions, two layers of GPT-2's matrices, biases and norms, final norm
    assert total == (50257 + 1024) * 64 + 2 * (12 * 64**2 + 13 * 64) + 2 * 64


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ("--dtype=bf16", "--dtype=bfloat16"),
        ("--dtype=fp16", "--set=dtype=float16"),
        ("--set=autocast=bf16", "--set=autocast=bfloat16"),
        ("--set=tied=False", "--set=tied=false"),
        ("--set=tied=TRUE", "--set=tied=true"),
        (
            "--set=optimizer=sgd, foreach=false,n_layer=3",
            "--set=n_layer=3 --optimizer=sgd --set=foreach=false",
        ),
    ],
)
def test_other_spellings_of_values_are_understood(command, short, long):
    found, expected = (
        command("gpt-2-124m", "--csv", short),
        command("gpt-2-124m", "--csv", *long.split()),
    )
    assert found.code == 0, found.err
    assert found.out == expected.out


def test_short_dtypes_are_understood_in_python():
    model = mb.model("gpt-2-124m", dtype="bf16")
    assert model.run().dtype == "bfloat16"
    assert model.run({"dtype": "fp16"}).dtype == "float16"
    assert mb.RunConfig(dtype="fp16").dtype == "float16"


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("llama-3.1-8b", "llama-3-8b"),
        ("llama-3.1-70b", "llama-3-70b"),
        ("llama-3.3-70b", "llama-3-70b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3-8b"),
        ("deepseek-r1", "deepseek-v3"),
        ("Qwen/Qwen3-8B", "qwen-3-8b"),
        ("gpt2", "gpt-2-124m"),
        ("bert-base-uncased", "bert-base"),
        ("google/gemma-3-1b-it", "gemma-3-1b"),
        ("glm-4.6", "glm-4.5"),
    ],
)
def test_a_name_of_equal_shape_is_answered_and_says_whose_it_is(command, name, base):
    found, other = command(name), command(base)
    assert found.code == 0, found.err
    assert f"{name}: has the shape of {base} (" in found.err
    assert f"{name} (shape of {mb.model(base).label})" in found.out
    assert found.out.splitlines()[1:] == other.out.splitlines()[1:]


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("qwen3:8b", "Qwen 3 8B"),
        ("gpt-oss:20b", "gpt-oss 20B"),
        ("GPT_OSS 20B", "gpt-oss 20B"),
        ("mistral-7b", "Mistral 7B"),
        ("llama4:scout", "Llama 4 Scout 109B-A17B (text)"),
        ("qwen3-coder-30b", "Qwen3-Coder-30B-A3B-Instruct (shape of Qwen 3 30B-A3B)"),
        ("smollm3", "SmolLM3 3B"),  # a series of one model
        ("phi-2", "Phi-2"),
        ("phi3:mini", "Phi-3 mini"),
        ("llama3.1:8b", "meta-llama/Llama-3.1-8B (shape of Llama 3 8B)"),
        ("qwen3-coder:30b", "Qwen3-Coder-30B-A3B-Instruct (shape of Qwen 3 30B-A3B)"),
        ("qwen3-vl:8b", "Qwen3-VL-8B-Instruct (shape of Qwen 3 8B)"),
        ("qwen2.5vl:7b", "Qwen2.5-VL-7B-Instruct (shape of Qwen 2.5 7B)"),
        ("qwen3:235b", "Qwen 3 235B-A22B"),
        ("mistral:7b", "Mistral 7B"),
        ("llama3.3", "Llama-3.3-70B-Instruct (shape of Llama 3 70B)"),
        ("gemma3n:e4b", "Gemma 3n E4B (text)"),
    ],
)
def test_names_as_ollama_and_people_spell_them(command, name, label):
    """A colon was read as a function of a module, `qwen3:8b` as a missing file."""
    answer = command(name)
    assert answer.code == 0, answer.err
    assert answer.out.startswith(f"{label}: batch 1")


def test_spellings_stand_for_one_model():
    """No two names differ in hyphens alone; dots are kept: 1.7b is not 17b."""
    bases = Catalogue(ROOT / "configs" / "models").bases
    names = [base.name for base in bases.values() if base.model]
    assert len({as_spelled(name) for name in names}) == len(names)
    with pytest.raises(mb.InputError, match=r"did you mean qwen-3-1\.7b"):
        mb.model("qwen3-17b")


def test_a_name_of_equal_shape_stands_for_one_model():
    """No name means two models; one that is also a name here means that model."""
    bases = Catalogue(ROOT / "configs" / "models").bases
    models = [base for base in bases.values() if base.model]
    shapes = {name.casefold(): base.name for base in models for name in base.model.same_shape}
    assert len(shapes) == sum(len(base.model.same_shape) for base in models) > 100
    without_owner = {name.rpartition("/")[2]: base for name, base in shapes.items() if "/" in name}
    for base in models:
        assert without_owner.get(base.name, base.name) == base.name


def test_a_name_of_two_owners_is_read_in_full(tmp_path):
    """Only here: the first of two models of one name was taken without its owner."""
    head = "title: T\nfamily: decoder\nsource: s\nsame_shape_source: s\nmodels:\n"
    for i, owner in enumerate(("A", "b")):
        (tmp_path / f"{owner}.yaml").write_text(
            f"{head}  {owner}-1:\n    label: L\n    fields: {{n_layer: {i + 1}}}\n"
            f"    same_shape: [{owner}/Tiny-1, {owner}/other-{owner}]\n"
        )
    for name, n_layer in (("a/tiny-1", 1), ("B/Tiny-1", 2), ("other-b", 2)):
        assert named_models.find(tmp_path, name).fields["n_layer"] == n_layer
    with pytest.raises(mb.InputError, match="'tiny-1': of several owners; allowed: A/Tiny-1, b/T"):
        named_models.find(tmp_path, "tiny-1")


@pytest.mark.parametrize(
    ("name", "as_model", "n_ctx"),
    [
        ("unsloth/Meta-Llama-3.1-8B-Instruct", "llama-3-8b", 131072),
        ("bartowski/Qwen_Qwen3-32B-GGUF", "qwen-3-32b", 40960),
        ("unsloth/Qwen3-30B-A3B-Instruct-2507-GGUF", "qwen-3-30b-a3b", 262144),
        ("lmstudio-community/gpt-oss-20b-GGUF", "gpt-oss-20b", 131072),
    ],
)
def test_a_copy_of_a_model_is_taken_for_it_by_name(name, as_model, n_ctx):
    """Pages of GGUF files have no config.json, which the answer named instead."""
    base = find(name)
    assert base.label.startswith(f"{name} (")
    assert base.fields == find(as_model).fields | {"n_ctx": n_ctx}
    assert "by its name; its own config.json was not read" in base.notes[-1].text


@pytest.mark.parametrize(
    ("name", "as_model", "gguf"),
    [
        ("hf.co/bartowski/Qwen_Qwen3-32B-GGUF:Q5_K_M", "qwen-3-32b", "Q5_K_M"),
        ("Qwen/Qwen3-32B-GGUF", "qwen-3-32b", "Q4_K_M"),
        ("qwen3:32b-q8_0", "qwen-3-32b", "Q8_0"),
    ],
)
def test_a_copy_for_llama_cpp_names_the_options_of_its_file(name, as_model, gguf):
    """Its weights were in bfloat16 without a word; with a tag it was a function's path."""
    base = find(name)
    assert base.fields["n_layer"] == find(as_model).fields["n_layer"]
    assert base.notes[-1].text.endswith(f"those of the GGUF file: `gguf={gguf}`")


@pytest.mark.parametrize(
    ("name", "as_model", "weights"),
    [
        ("Qwen/Qwen3-8B-AWQ", "Qwen/Qwen3-8B", "awq"),
        ("Qwen2.5-72B-Instruct-GPTQ-Int8", "Qwen/Qwen2.5-72B-Instruct", "gptq-8bit"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", "Qwen/Qwen3-30B-A3B-Instruct-2507", "fp8-block"),
        ("Qwen/Qwen3.6-27B-FP8", "Qwen/Qwen3.6-27B", "fp8-block"),  # gates stay in the dtype
        ("RedHatAI/Meta-Llama-3.1-70B-Instruct-FP8-dynamic", "llama-3.1-70b", "fp8-channel"),
        ("RedHatAI/Mistral-7B-Instruct-v0.3-quantized.w4a16", "mistral-7b-v0.3", "int4-group"),
        ("neuralmagic/gemma-2-9b-it-quantized.w8a8", "gemma-2-9b", "int8-channel"),
        ("unsloth/gemma-2-9b-it-bnb-4bit", "gemma-2-9b", "bnb-4bit-double"),
        ("mlx-community/Qwen3-8B-MLX-6bit", "Qwen/Qwen3-8B", "mlx-6bit"),
    ],
)
def test_the_name_of_a_copy_says_its_format(name, as_model, weights):
    """All were answered by how to download their config.json."""
    base = find(name)
    assert base.fields == find(as_model).fields | {"weights": weights}
    assert f"with weights {weights}, which " in base.notes[-1].text


@pytest.mark.parametrize(
    "name",
    [
        "TheBloke/Mistral-7B-Instruct-v0.2-GPTQ",  # of several formats, one a branch
        "unsloth/Qwen3-8B-unsloth-bnb-4bit",  # whose exceptions differ from model to model
        "Qwen/Qwen3-Next-80B-A3B-Instruct-FP8",  # so do its gates
        "someone/Qwen3-8B-FP8",  # one of several libraries
    ],
)
def test_a_name_that_leaves_the_format_open_is_no_model(name):
    with pytest.raises(mb.InputError, match="if huggingface"):
        find(name)


@pytest.mark.parametrize("name", ["qwen3:8b-q4_K_M", "qwen3:8b-fp16", "Qwen3-8B-Chat"])
def test_a_tag_or_a_tuned_model_is_taken_for_the_model(name):
    assert find(name).fields == find("qwen-3-8b").fields


def test_a_folder_that_is_missing_is_no_copy_of_a_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    with pytest.raises(mb.InputError, match="no such folder"):
        find("models/Meta-Llama-3.1-8B-Instruct")


@pytest.mark.parametrize(
    ("name", "n_ctx"),
    [
        ("llama-3.1-8b", 131072),
        ("Llama-3.3-70B-Instruct", 131072),
        ("meta-llama/Meta-Llama-3-8B", 8192),
        ("mistral-small-3.2", 131072),
        ("Qwen/Qwen3-4B-Instruct-2507", 262144),
        ("qwen2.5-coder-7b", 32768),
    ],
)
def test_a_model_of_the_same_shape_has_its_own_context(name, n_ctx):
    """By config.json: a line said that vLLM refuses 32,768 tokens of Llama 3.1, as of Llama 3."""
    assert find(name).fields["n_ctx"] == n_ctx


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("gpt2", transformers.GPT2Config()),
        ("bert-base-uncased", transformers.BertConfig()),
        ("gpt-j-6B", transformers.GPTJConfig()),
        ("gpt-neox-20b", transformers.GPTNeoXConfig()),
        ("google-t5/t5-small", transformers.T5Config()),
    ],
)
def test_a_name_whose_sizes_are_defaults_of_a_class_has_them(name, config):
    """The source of these names is read here: a wrong line of `same_shape` is seen."""
    fields = find(name).fields
    assert fields["d_model"] == config.hidden_size
    assert fields["n_head"] == config.num_attention_heads
    assert fields.get("n_layer", fields.get("n_encoder_layer")) == config.num_hidden_layers


def test_an_answer_about_training_speaks_of_no_engine():
    """It said that vLLM refuses the length of a training run."""
    model, long = mb.model("tinyllama-1.1b"), {"length": 8192}
    of_training, of_both = (
        "; ".join(model.predictions(quantities, long).notes)
        for quantities in (["activation_bytes"], ["activation_bytes", "cache_bytes"])
    )
    assert "length 8,192: more than n_ctx = 2,048" in of_training
    assert "vLLM" not in of_training
    assert "vLLM refuses it" in of_both


def test_decoding_with_latents_says_what_is_computed_again():
    """By hand: 2 · 1,024 tokens · 61 layers · 512 · 128 heads · (128 + 128); none without MLA."""
    notes = mb.model("deepseek-v3").predictions(["flops_decode"]).notes
    again = 2 * 1024 * 61 * 512 * 128 * 256
    assert any(
        note.startswith(f"flops_decode: {again:,} are for keys and values") for note in notes
    )
    assert not mb.model("llama-3-8b").predictions(["flops_decode"]).notes[1:]


def test_help_is_what_the_command_alone_prints_and_no_line_of_it_is_cut(command, monkeypatch):
    """A user's first screen: of 80 columns, with line breaks."""
    monkeypatch.setenv("COLUMNS", "80")
    alone, asked = command(), command("--help")
    assert (alone.code, alone.err) == (0, "")
    assert alone.out == asked.out
    assert "\n  show " in alone.out
    assert "..." not in alone.out.partition("Options:")[2]


@pytest.mark.parametrize("words", ["gpt-2-124m", "gpt-2-124m --csv", "--help", "show --help"])
def test_a_pipe_without_reader_ends_it_in_order(capsys, words):
    """`| head -1`: typer alone ends with 1, which here means that two witnesses differ."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["modelbudget", *words.split()])
        patch.setattr(sys, "stdout", pipe)
        with pytest.raises(SystemExit) as end:
            app.main()
        gc.enable()
    assert not end.value.code
    assert "Error" not in capsys.readouterr().err


def test_where_no_request_is_served_the_reason_is_given(command):
    """By hand: 141 GB of weights; the cache of a token is 2 · 80 · 8 · 128 numbers."""
    weights = command("llama-3-70b", "--serve", "h100")
    assert "no request fits: weights and the rest need 145 GB of 78.1 GB" in weights.err
    cache = command("llama-3-70b", "--serve", "160GB", "--length", "100000")
    assert "one of 100,000 tokens needs 32.8 GB" in cache.err
    assert cache.err.endswith(", or --length 7296\n")
    assert "--length" not in weights.err


def test_weights_are_served_as_they_were_released(command):
    """gpt-oss 20B was said to fit no card of 24 GB, for which it was released in 12.8 GiB."""
    served = command("gpt-oss-20b", "--serve", "rtx-4090", "--json")
    assert json.loads(served.out)["notes"] == [
        "weights: mxfp4, as released; in bfloat16: `weights=dtype`"
    ]
    as_asked = command("gpt-oss-20b", "--serve", "rtx-4090", "--weights", "mxfp4", "--json")
    assert {**json.loads(served.out), "notes": []} == json.loads(as_asked.out)
    assert json.loads(as_asked.out)["requests"] > 0
    assert not as_asked.err
    whole = command("gpt-oss-20b", "--serve", "rtx-4090", "--weights", "dtype", "--json")
    (weights,) = (term for term in json.loads(whole.out)["terms"] if term["name"] == "weights")
    # Those of the release's index, 20,914,757,184 parameters, in two bytes each
    assert weights["n_bytes"] == 2 * 20_914_757_184
    assert json.loads(whole.out)["requests"] == 0
    models = (base.model for base in Catalogue(CONFIGS / "models").bases.values() if base.model)
    assert {model.released_weights for model in models} <= {None, *FORMATS}


@pytest.mark.parametrize("name", ["4090", "RTX 4090", "rtx-4090-24gb"])
def test_a_card_is_found_by_its_number(name):
    assert mb.model("gpt-2-124m").fit(name).accelerator.name == "RTX 4090"


@pytest.mark.parametrize("name", ["dgx-spark", "rtx-pro-6000", "rtx-4090", "24GB"])
def test_what_fits_a_card_has_a_line_for_each_row(name):
    """Of cards without a driver's report, the text of the data sheet was in a cell: two tables."""
    run = {"dtype": "bfloat16"}
    gpt_2 = mb.model("gpt-2-124m")
    fits, predicted = [gpt_2.fit(name, run, training=False)], gpt_2.predictions(["parameters"], run)
    table = of_fits(fits, predicted)
    assert len(text_table.lines(table, 80)) == 1 + len(table.rows)


@pytest.mark.parametrize(
    ("option", "card", "says"),
    [
        ("--fit", "24", "--fit 24: no unit; write 24GB"),
        ("--serve", "1.5t", "--serve 1.5t: unknown accelerator"),
        ("--serve", "24g", "--serve 24g: no unit; write 24GB"),
        ("--serve", "2x4090", "--serve 2x4090: several devices; write 4090, with --devices 2"),
        ("--fit", "8 x h100", "--fit 8 x h100: several devices; write h100, with --devices 8"),
        ("--fit", "v100x4", "--fit v100x4: several devices; write v100, with --devices 4"),
        ("--fit", "M4 Pro", "apple-16gb, apple-24gb"),
        ("--fit", "M2-16GB", "did you mean apple-16gb?"),
        ("--serve", "macbook pro 24gb", "did you mean apple-24gb?"),
        ("--fit", "3x", "--fit 3x: unknown accelerator '3x'"),
        ("--fit", "--serve=h1", "--fit --serve=h1: unknown accelerator"),
        ("--serve", "h1=--fit", "--serve h1=--fit: unknown accelerator"),
    ],
)
def test_a_device_as_people_write_it_is_understood(command, option, card, says):
    """Each was an unknown accelerator, of --fit, with the names of four cards of NVIDIA."""
    assert says in command("gpt-2-124m", option, card).err


def test_a_refused_share_of_devices_offers_one_that_is_served(command):
    """By hand: blocks of 128 rows in 1,536 channels are whole in quarters, not in eighths.

    What was typed as offered was refused as a setting outside of serving.
    """
    words = "qwen-3-235b-a22b", "--serve", "h100", "--devices", "8", "--weights", "fp8-block"
    refused = command(*words)
    offered = "allowed: --set tensor_parallel=4, or --set expert_parallel=8: whole experts on each"
    assert refused.err.rstrip().endswith(offered)
    of_experts = json.loads(command(*words, "--set", "expert_parallel=8", "--json").out)
    assert of_experts["requests"] > 0
    served = json.loads(command(*words, "--set", "tensor_parallel=4", "--json").out)
    assert served["requests"] > 0
    assert served["replicas"] == 2


def test_replicas_that_share_experts_are_offered_where_shares_of_a_dense_layer_are_refused(command):
    """By hand: 18,432 rows are 144 blocks of 128, whole in sixteenths and not in 64ths.

    Nothing was offered that serves DeepSeek V3 on 64 devices of 24 GB, of which 16 have no room.
    """
    words = "deepseek-v3", "--serve", "24GB", "--devices", "64", "--weights", "fp8-block"
    of_experts = "data_parallel=4, expert_parallel=64"
    offered = f', or --set "tensor_parallel=16, {of_experts}": experts on all'
    assert command(*words).err.rstrip().endswith(offered)
    words += ("--set", "tensor_parallel=16")
    assert f'what helps: --set "{of_experts}"' in command(*words).err
    served = command(*words, "--set", of_experts, "--json")
    assert json.loads(served.out)["requests"] > 0


def test_an_engine_with_room_is_named_where_several_devices_have_none(command):
    """By hand: a quarter of 141 GB needs more than 25.4 GB, in 8 bits 18 GB; type what it says."""
    words = "llama-3-70b", "--inference", "--devices", "4", "--fit", "rtx-4090"
    (line,) = (line for line in command(*words).err.splitlines() if "fewer bits" in line)
    typed = line.split("fewer bits: ")[1].split()
    assert json.loads(command("llama-3-70b", *typed, "--json").out)["requests"] > 0
    for others in (("--weights", "awq"), ("--set", "n_layer=8")):  # refused, and it fits
        assert "fewer bits" not in command(*words, *others).err


def test_a_device_that_a_file_does_not_fit_is_named_by_its_option(command):
    words = "gpt-oss-20b", "--file", "gguf", "--format", "MXFP4_MOE", "--fit", "rtx-4060-ti"
    assert command(*words).err.startswith("--fit rtx-4060-ti: unknown accelerator")


def test_sequences_beyond_what_positions_are_for_are_named(command):
    """Only here: an engine refuses them, and --serve said nothing of it."""
    line = "length 9,000: more than n_ctx = 8,192"
    assert line in command("llama-3-8b", "--length", "9000").err
    for engine in ((), ("--file", "gguf", "--format", "Q4_0")):
        words = ("llama-3-8b", "--serve", "h100", "--length", "9000", *engine)
        assert line in command(*words).err
        assert "n_ctx" not in command(*words[:4], "8192", *engine).err
    assert "n_ctx" not in command("mamba-130m", "--length", "9000").err


def test_an_optimizer_that_refuses_small_tensors_is_named(command):
    """Recorded on an H100 (docs/limits.md): 4,096 numbers of a norm are enough, 1,024 are not."""
    words = "--train", "--optimizer", "momentum-8bit"
    line = "raises an error on a GPU for layer.norm.attention, in bfloat16 with fewer than 4,096"
    assert line in command("qwen-3-0.6b", *words).err
    for others in (("llama-3-8b",), ("qwen-3-0.6b", "--adapter", "lora"),
                   ("qwen-3-0.6b", "--dtype", "float32")):  # fmt: skip
        assert "raises an error" not in command(*others, *words).err


def test_memory_is_of_a_driver_a_data_sheet_or_given(command):
    """Only here: the memory of a device by its name was said to be given."""
    sources = {"t4": "driver", "tpu-v5e": "data sheet", "24GB": "given"}
    for device, source in sources.items():
        rows = command("gpt-2-124m", "--serve", device).out.splitlines()
        assert next(row for row in rows if row.startswith("memory")).endswith(source)


@pytest.mark.parametrize(
    ("words", "kinds"),
    [
        ("qwen-3-30b-a3b --weights fp8-block --serve 14GB", ["--devices"]),
        ("llama-3.3-70b --serve rtx-4090 --file gguf --format Q4_K_M", ["--set", "--devices"]),
        # Only here: what llama.cpp has not, AWQ and more devices, was offered.
        ("qwen-3-8b --serve 16GB --set cache_layout=cells", ["--file", "--set"]),
        (
            "gpt-oss-120b --serve h100 --length 100000",
            ["--set", "--set", "--set", "--devices", "--length"],
        ),
    ],
)
def test_each_option_that_is_offered_makes_a_request_fit(command, words, kinds):
    """Only here: the same few were named whether they helped or not (gemma-2-9b's cache in fp8)."""
    _, _, offered = command(*words.split()).err.strip().partition("what helps: ")
    options = [shlex.split(option) for option in offered.split(", or ")]
    assert [option[0] for option in options] == kinds
    for option in options:
        served = command(*words.split(), *option)
        assert served.code == 0
        assert "no request fits" not in served.err


def test_what_fits_is_in_each_format(command):
    """CSV had components alone, whatever --fit was asked."""
    words = ("gpt-2-124m", "--fit", "h100")
    of_json = json.loads(command(*words, "--json").out)["fit"]
    rows = [*csv.DictReader(io.StringIO(command(*words, "--csv").out))]
    solved = {(row["purpose"], row["field"]): int(row["largest"]) for row in rows}
    expected = {(of["purpose"], name): n for of in of_json for name, n in of["largest"].items()}
    assert solved == expected
    assert {row["grade"] for row in rows} == {"fits"}


def test_the_requests_that_fit_are_in_each_format(command):
    """Only here: CSV lacked their number, and JSON what helps where none fits."""
    words = ("llama-3.1-8b", "--serve", "rtx-4090", "--length", "200000")
    text, data = command(*words), json.loads(command(*words, "--json").out)
    assert text.err.endswith(f"; what helps: {', or '.join(data['what_helps'])}\n")
    rows = [*csv.DictReader(io.StringIO(command(*words, "--csv").out))]
    for row in rows:
        assert row["requests"] == row["most_requests"] == "0"
        assert row["length"] == "200000"
        assert int(row["largest_length"]) == data["largest_length"]
    assert -int(rows[1]["bytes"]) == data["terms"][0]["n_bytes"]


def test_a_long_prompt_is_offered_an_engine(command):
    """Whose weights and cache have room: here what does not fit are the masks of all scores."""
    same = ["--reserve", "1GB", "--length", "131072"]
    words = ("gemma-3-27b", "--fit", "h100", "--inference", *same)
    line = "inference: fits an engine, which reads a prompt in parts: "
    offered = command(*words).err.partition(line)[2].split("\n")[0].split()
    assert offered == ["--serve", "h100", *same]
    assert "no request fits" not in command(words[0], *offered).err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("gemma-3-27b --fit h100 --length 131072 --weights fp8-channel", "in parts:"),
        (
            'gemma-3-27b --fit h100 --dtype float16 --set "cache_dtype=fp8, n_layer=40"',
            "an engine:",
        ),
        ("llama-3-8b --fit apple-16gb --set n_layer=36 --batch 2", "fewer bits:"),
        ('llama-3-70b --fit "RTX 4090" --devices 4 --set n_layer=70', "fewer bits:"),
    ],
)
def test_an_offered_command_is_about_the_same_model(command, words, line):
    """Only here: settings of the model and the run were left out of the command that is offered."""
    name, *given = shlex.split(words)
    answer = command(name, *given, "--inference")
    offered = shlex.split(answer.err.partition(line)[2].splitlines()[0])
    served = command(name, *offered)
    assert served.code == 0, served.err
    assert "no request fits" not in served.err
    given.remove("--fit")
    assert {*given} <= {*offered}


def test_the_class_that_an_answer_offers_is_answered(command):
    """Only here: with `--fit`, the offered option was refused for classes without a formula."""
    name, *words = "gemma-3-1b", "--fit", "apple-16gb", "--set", "n_layer=2", "--length", "64"
    assert command(name, *words).err.splitlines()[0].endswith("--implementation transformers")
    of_class = command(name, *words, "--implementation", "transformers")
    assert of_class.code == 0, of_class.err
    assert "training, transformers " in of_class.out
    assert "inference, transformers " in of_class.out
    assert "has not been compared" not in of_class.err


def test_a_largest_length_is_named_with_its_batch(command):
    """Only here: of a batch of four, the largest length was that of one sequence."""

    def fit(*words):
        answer = command("gpt-2-124m", "--set", "n_ctx=1000000", "--fit", "24GB", "--train", *words)
        return answer.out, answer.out.split("\n\n")[1].splitlines()

    text, rows = fit("--batch", "4")
    assert "  of batch" not in fit()[0]
    (row, of_batch), *_ = (pair for pair in pairwise(rows) if "largest length" in pair[0])
    assert of_batch.strip() == "of batch 1"
    length = row.split("length")[1].split()[0].replace(",", "")
    assert fit("--batch", "1", "--length", length)[1][0].split()[1] == "tight"
    assert fit("--batch", "4", "--length", length)[1][0].split()[1:4] == ["does", "not", "fit"]
    text, rows = fit("--batch", "4", "--length", "80000")  # of 40,000 another change is enough
    helped = text.partition("together")[2]
    assert "one sequence at a time" in helped
    assert "largest length of batch 4" in helped


def test_the_mask_of_a_window_has_a_byte_of_each_score_next_to_it(command):
    """Only here: distances of 8 bytes a score were the largest part of a long prompt's peak.

    Two bytes of the mask and one that says which keys are in the window, as transformers has it.
    """

    def peak(window):
        words = ("gemma-3-27b", "--inference", "--length", "131072", "--set", f"window={window}")
        quantities = json.loads(command(*words, "--json").out)["quantities"]
        return quantities["peak_inference_bytes"]["total"] - quantities["cache_bytes"]["total"]

    scores = 131_072**2
    assert 2 * scores < peak(1024) - peak(131_072) < 3.1 * scores


def test_a_mac_is_offered_what_runs_there(command):
    """Only here: kernels of bitsandbytes, GPTQ and FP8 were offered to Macs.

    The command of the line answers, with room.
    """
    words = ("llama-3-8b", "--fit", "apple-16gb", "--inference")
    mac, card = (command(*words[:2], device, words[3]) for device in ("apple-16gb", "12GB"))
    assert "weights=" in card.out
    assert "weights=" not in mac.out
    line = "inference: fits llama.cpp with fewer bits: "
    assert line not in card.err
    offered = mac.err.partition(line)[2].split("\n")[0].split()
    assert offered[:4] == ["--serve", "apple-16gb", "--file", "gguf"]
    assert "fits" in command("llama-3-8b", *offered).out
    plain = command("llama-3-8b", *offered[:2])
    assert "what helps: --file gguf --format Q4_K_M\n" in plain.err
    assert "llama.cpp on a Mac: --file gguf" in plain.err
    training = command(*words[:3]).out
    assert "activation checkpointing" in training
    assert "8-bit" not in training
    assert "QLoRA" not in training


def test_encoders_are_not_served_for_a_reason(command):
    of_llama_cpp = command("t5-base", "--serve", "t4", "--set", "cache_layout=cells").err
    assert of_llama_cpp == (
        "t5-base: cache_layout = cells: llama.cpp computes keys and values of a source again for "
        "each token, and keeps none; allowed: paged, dynamic, static, contiguous\n"
    )
    short = command("gemma-2-9b", "--serve", "l4", "--length", "8192").err
    assert "no request fits: the cache of one of 8,192 tokens needs" in short
    assert short.endswith("; what helps: --weights fp8-channel, or --devices 2, or --length 2736\n")
    longer = command("llama-3-8b", "--serve", "a10g", "--length", "8192").out
    assert "tokens; n_ctx 8,192" in longer
    served = command("t5-base", "--serve", "t4", "--set", "target_length=64")
    assert "1,024 + 64 tokens" in served.out
    assert "a request has a source of 1,024 tokens, and a target of 64" in served.err
    prefix = command("t5-base", "--serve", "t4", "--set", "shared_prefix=64").err
    assert prefix.startswith(
        "t5-base: shared_prefix: vLLM shares no blocks next to cross-attention"
    )
    t5 = command("t5-base", "--fit", "t4", "--inference")
    assert "inference: largest batch" in t5.out
    assert "inference: a source of 1,024 tokens, and a target of 1,024 (target_length)" in t5.err
    refused = command("bert-base", "--serve", "t4").err.strip()
    assert refused == (
        "bert-base: encoder keeps no cache to serve from; its inference is one pass over all "
        "tokens: --fit t4 --inference"
    )
    assert "inference: largest batch" in command("bert-base", *refused.split()[-3:]).out


def test_an_encoder_without_a_head_fits_and_has_flops(command):
    """A user embeds texts with it: there was no answer but the parameters."""
    found = command("bert-base", "--set", "lm_head=false, transform=false", "--fit", "t4")
    assert "inference: largest batch" in found.out
    assert "FLOPs of the forward pass       96.6 GFLOP" in found.out
    assert "peak_training_bytes: lm_head = false" in found.err
    of_training = command("bert-base", "--train").err
    assert "not BertForPreTraining: it learns two tasks at once" in of_training
    assert "--implementation" not in of_training  # which would answer with an error alone
    offered = command("bert-base").err.partition("BertForPreTraining may need more: ")[2].split()
    assert offered[2] == "--inference"  # the class's step is not traced
    of_class, ours = (
        json.loads(command("bert-base", *words, "--json").out)["quantities"]["peak_inference_bytes"]
        for words in (offered[:3], ["--inference"])
    )
    assert 0 <= of_class["total"] - ours["total"] < 30_000  # the classes of the next sentence


def test_a_device_below_capability_8_has_the_kernel_and_the_precision_of_torch(command):
    """Only here: a V100 was said to have room for a step whose scores of attention do not fit."""

    def answered(*settings, model="gpt-2-124m", device="v100", more=()):
        given = [word for setting in settings for word in ("--set", setting)]
        return command(model, "--train", "--fit", device, *given, *more)

    def fit_and_notes(*settings, **of):
        answer = answered(*settings, **of, more=["--json"])
        return json.loads(answer.out)["fit"][0], answer.err

    def fit_of(*settings, **of):
        return fit_and_notes(*settings, **of)[0]

    def notes_of(*settings, **of):
        return answered(*settings, **of).err

    half, no_scores = "dtype=float16", "attention_kernel=efficient"
    fit, notes = fit_and_notes()
    assert fit["needed"] == fit_of(half, no_scores, device="a100")["needed"]
    settings = fit["settings"]
    assert "dtype float16" in settings
    assert "attention_kernel efficient" in settings
    assert "V100: dtype float16" in notes
    assert "attention_kernel efficient" in notes
    assert fit["largest"] == fit_of(half, no_scores)["largest"]
    # Of bfloat16, memory-efficient attention is of 8.0 on.
    bfloat16, notes = fit_and_notes("dtype=bfloat16")
    with_scores = fit_of(half, "attention_kernel=math")["needed"]
    assert bfloat16["needed"] == with_scores > fit["needed"]
    assert "no memory-efficient attention in bfloat16 there" in notes
    grouped, notes = fit_and_notes(model="qwen-2.5-0.5b")
    scores = fit_of(half, "attention_kernel=math", model="qwen-2.5-0.5b")["needed"]
    assert grouped["needed"] == scores
    assert "attention_kernel math" in notes
    assert "not efficient: n_kv_head" in notes
    notes = notes_of("attention_kernel=flash")
    assert "torch has no FlashAttention there" in notes
    assert "adamw: divides by zero" in notes  # as torch 2.13's does with gradients of 1e-4
    large = ("llama-3-8b", "--train", "--dtype", "float32", "--fit")
    assert "bfloat16" in command(*large, "a100").out
    assert "bfloat16" not in command(*large, "v100").out
    assert "tensor cores" not in notes_of(device="a100")
    assert "adamw: divides by zero" not in notes_of("dtype=float32", "autocast=float16")
    trainer = command("gpt-2-124m", "--trainer", "dpo", "--fit", "t4").out
    assert "dtype float16" in trainer
    assert "attention_kernel efficient" in trainer
    assert "weights float16" in command("gpt-2-124m", "--serve", "t4").out


def test_the_largest_batch_together_is_said_with_margins(command):
    words = ("llama-3-8b", "--fit", "a100-40gb", "--train", "--length", "2048")
    shown, (fit,) = command(*words).out, json.loads(command(*words, "--json").out)["fit"]
    together, run = fit["together"], {"length": 2048} | fit["together"]["fields"]
    n = together["largest_with_margins"]["batch"]
    assert 0 < n < together["largest"]["batch"]
    row = ["largest", "batch", str(n), "with", "margins", str(together["largest"]["batch"])]
    assert row in [line.split() for line in shown.splitlines()]
    model, sizes = mb.model("llama-3-8b"), {"batch": n}
    assert model.fit("a100-40gb", run | sizes).grade == "fits"
    assert model.fit("a100-40gb", run | {"batch": n + 1}).grade == "tight"


def test_a_tpu_has_the_kernels_and_the_optimizer_that_torch_takes_there(command):
    """Only here: TPUs were answered with FlashAttention and `foreach`, which XLA has not."""
    asked = command("gpt-2-124m", "--fit", "tpu-v5e", "--length", "64")
    words = "--fit", "tpu-v5e", "--adapter", "lora", "--weights", "bnb-4bit", "--length", "64"
    assert "weights bnb-4bit: bitsandbytes lists no TPU" in command("gpt-2-124m", *words).err
    assert "foreach false, attention_kernel math" in asked.out.splitlines()[0]
    assert (
        "TPU v5e: attention_kernel math, not flash or efficient: torch has no kernel" in asked.err
    )
    assert "TPU v5e: torch_xla compiles the step and XLA plans its memory" in asked.err
    assert "TPU v5e: foreach false, torch's default there" in asked.err
    assert "float16" not in asked.err


def test_a_mac_has_the_kernels_and_the_optimizer_that_torch_takes_there(command):
    """Only here: a Mac was said to train with FlashAttention and `foreach`, which MPS has not."""
    mac, model = ("--fit", "apple-64gb"), "gpt-2-124m"
    same = ("--fit", "a100", "--train", "--set", "attention_kernel=math, foreach=false")

    def fit(*words, model=model):
        answer = json.loads(command(model, *words, "--json").out)
        return answer["fit"][0], answer

    trained, _ = fit(*mac, "--train")
    assert trained["needed"] == fit(*same)[0]["needed"]
    assert trained["needed"] > fit("--fit", "a100", "--train")[0]["needed"]
    assert "foreach false, attention_kernel math" in trained["settings"]
    lines = command(model, *mac, "--train")
    assert "attention_kernel math, not flash or efficient: torch has no backward pass" in lines.err
    assert "Apple 64GB: foreach false" in lines.err
    assert "expandable_segments" not in lines.out
    forced = command(model, *mac, "--train", "--set", "attention_kernel=flash").err
    assert "torch has no backward pass" in forced
    asked, _ = fit(*mac, "--inference")
    assert "attention_kernel flash" in asked["settings"]
    assert asked["needed"] == fit("--fit", "a100", "--inference")[0]["needed"]
    assert "Metal's" in command(model, *mac, "--inference").err
    # bitsandbytes at 95f9af3, backends/mps/ops.py: formats, and no optimizer of 8 bits
    words = model, *mac, "--adapter", "lora", "--weights", "bnb-4bit", "--optimizer", "adamw-8bit"
    for bits in (command(*words).err, command(*words, "--trainer", "dpo").err):
        assert "Apple 64GB: weights bnb-4bit: bitsandbytes has kernels for Metal" in bits
        assert "Apple 64GB: optimizer adamw-8bit: no kernels there; allowed: adamw" in bits
        assert "Apple 64GB: foreach false" in bits
    both, answer = fit(*mac)
    assert both["needed"] == trained["needed"]
    assert [of["needed"] for of in answer["fit"]] == [
        answer["quantities"][f"peak_{purpose}_bytes"]["total"]
        for purpose in ("training", "inference")
    ]
    heads = (*mac, "--inference", "--set", "n_head=16")
    assert "attention_kernel math" in fit(*heads)[0]["settings"]
    assert "d_head = 48" in command(model, *heads).err
    assert "Metal's" not in command(model, "--fit", "a100").err


def test_what_was_not_measured_is_named_where_nothing_was_compared(command):
    """More bytes than this process may use: a device by its name is not replaced by meta."""
    found = command("measure", "palm-540b", "--device", "cpu")
    assert found.code == 1
    assert found.err.splitlines()[0] == "nothing was compared"
    assert "not measured: parameter_bytes, parameters: " in found.err
    assert "needs 1,080,712,949,760 bytes on cpu" in found.err
    assert "0 of 0" not in found.err


def test_a_gpu_that_is_not_there(command, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = command("measure", "gpt-2-124m", "--device", "cuda")
    assert (found.code, found.out) == (2, "")
    assert found.err == "device = 'cuda': torch finds no CUDA device; allowed: auto, meta, cpu\n"


def test_an_accelerator_that_is_no_name():
    with pytest.raises(mb.InputError, match="accelerator = 80: allowed: text"):
        mb.model("gpt-2-124m").fit(80)


def test_a_users_module_is_shown_by_component(command, tmp_path):
    (tmp_path / "mygpt.py").write_text(MODULE)
    found = command("measure", "mygpt:build", "--markdown")
    assert found.code == 0, found.err
    assert "| b | 42 | 67.7 % |" in found.out
    assert "| a | 20 | 32.3 % |" in found.out
    assert "| parameters | 62 |" in found.out
    assert "none" not in found.out
    compared = mb.model("mygpt:build").measure()
    assert compared.agrees is None  # only here: nothing to compare with was agreement
    assert "nothing was compared" in repr(compared)
    predicted = command("mygpt:build")
    assert (predicted.code, predicted.out) == (2, "")
    assert predicted.err.startswith("mygpt:build: no formula covers it; `modelbudget measure`")
    assert len(predicted.err.splitlines()) == 1
    assert "| |" not in found.out.replace("|  |", "| |")


def test_one_side_of_a_comparison_is_varied(command):
    found = command("compare", "gpt-2-124m", "gpt-2-124m", "--set-b", "tied=false", "--markdown")
    assert found.code == 0, found.err
    assert "| component | GPT-2 124M | GPT-2 124M, tied false |" in found.out
    assert "dtype bfloat16, optimizer adamw, foreach true, attention_kernel flash" in found.out
    assert "| head |  | 38,597,376 |" in found.out
    first = command("compare", "gpt-2-124m", "gpt-2-124m", "--set-a", "batch=2", "--json").out
    assert [one["run"]["batch"] for one in json.loads(first)["models"]] == [2, 1]
    lines = found.err.splitlines()
    assert len(lines) == len(set(lines)), "what holds of both is printed once"
    assert "gradients" not in command("compare", "gpt-2-124m", "gpt2", "--inference").out


def test_what_fits_names_its_grade_and_margins(command):
    words = ("gpt-2-124m", "--length", "1", "--train", "--dtype", "float32", "--set",
             "foreach=false", "--markdown", "--fit")  # fmt: skip
    found = command(*words, "2.5GB", "--reserve", "2GB")
    assert found.code == 0, found.err
    assert "| training | tight | 2" in found.out
    assert found.out.index("| training | tight") < found.out.index("Totals, for the")
    assert "| layer.mlp.up |" not in found.out  # not the question; it moved the answer off a screen
    assert "| margins: reserve | 2 GB | as given |" in found.out
    assert "| margins: worst reading | 1.28 × | the prediction |" in found.out
    assert "| training | fits |" in command(*words, "rtx-4090").out
    without = command("gpt-2-124m", "--reserve", "2GB")
    assert (without.code, without.out) == (2, "")
    assert "--reserve 2GB: of no accelerator; allowed: with --fit" in without.err


def test_several_devices_say_how_they_share_and_never_by_shards_in_inference(command):
    words = ("llama-3-8b", "--fit", "h100", "--devices", "2")
    both = command(*words)
    assert both.code == 0, both.err
    shared = "training by zero: 3, data_parallel: 2; inference by tensor_parallel: 2"
    assert f"H100, each of 2: {shared}" in both.out
    assert "KV cache" not in both.out
    assert "not known of shards" not in both.err
    assert "zero: 3; also: --inference" in command("llama-3-8b", "--devices", "2").err
    asked = command("gpt-2-124m", "--fit", "h100", "--train", "--inference")
    assert asked == command("gpt-2-124m", "--fit", "h100")  # it showed components alone
    two = ("gpt-2-124m", "--devices", "4", "--set", "data_parallel=2", "--train")
    assert "\n2 of 4 devices; --fit" in command(*two).err
    assert "by zero: 3, data_parallel: 2, on 2 of them" in command(*two, "--fit", "h100").out
    alone = command(*words, "--inference", "--json")
    assert alone.code == 0, alone.err
    (fit,) = json.loads(alone.out)["fit"]
    model = mb.model("llama-3-8b")
    answer = model.fit("h100", devices=2, training=False)
    assert fit["sharing"] == answer.sharing == {"tensor_parallel": 2}
    half = model.predict("parameter_bytes", {"tensor_parallel": 2}).total
    assert 0.5 * model.predict("parameter_bytes").total < half < fit["needed"]
    small = model.fit("40GB", devices=2)
    assert small.sharing == {"zero": 3, "data_parallel": 2}
    assert small.grade == "does not fit"
    assert small.together.text == "fused AdamW, loss in 16 chunks"
    assert small.together.needed < 40 * 10**9
    for name, devices, why in (
        ("gpt-2-124m", "8", "n_head = 12: tensor_parallel = 8 devices do not divide it"),
        (
            "gpt-oss-20b",
            "2",
            "not known yet with moe in mlps, down_bias = true; in training allowed: ",
        ),
    ):
        refused = command(name, "--inference", "--fit", "h100", "--devices", devices)
        assert (refused.code, refused.out) == (2, "")
        assert why in refused.err
        served = f"; of an engine: --serve h100 --devices {devices}"
        assert (served in refused.err) == ("not known" in why)
        assert "zero" not in refused.err


def test_a_users_own_file_of_accelerators(command, tmp_path):
    file = tmp_path / "own.yaml"
    file.write_text(
        "accelerators:\n"
        "- {name: Mine, bytes: 30_000_000_000, source: me}\n"
        "- {name: Other, bytes: 30_000_000_000, source: me, driver_gib: 20, driver_source: it}\n"
    )
    words = ("gpt-2-124m", "--train", "--json", "--accelerators", "own.yaml", "--fit")
    for name, memory, source in (("mine", 30 * 10**9, "me"), ("other-30gb", 20 * 2**30, "it")):
        (fit,) = json.loads(command(*words, name).out)["fit"]
        assert (fit["memory"], fit["memory_source"]) == (memory, source)
        assert mb.model("gpt-2-124m").fit(name, accelerators=file).accelerator.bytes == memory
    unknown = command(*words, "h100")
    assert unknown.code == 2
    assert "--fit h100: own.yaml: unknown accelerator 'h100' (allowed: " in unknown.err
    assert "mine-30gb, other-30gb)" in unknown.err
    file.write_text("accelerators:\n- {name: Mine, byte: 3, source: me}\n")
    wrong = command(*words, "mine").err
    assert "own.yaml: " in wrong
    assert "byte: unknown key; did you mean bytes?" in wrong
    alone = command("gpt-2-124m", "--accelerators", "own.yaml").err
    assert "--accelerators own.yaml: of no accelerator; allowed: with --fit" in alone


@pytest.mark.parametrize(
    ("construct", "line"),
    [
        (lambda: mb.RunConfig(batch=-1), "batch = -1: must be at least 1"),
        (
            lambda: mb.model("gpt-2-124m").memory(batch=4),
            "memory(): got an unexpected keyword argument 'batch' "
            "(settings: a RunConfig, keys with values, or None)",
        ),
        (
            lambda: mb.model("gpt-2-124m").memory()["zzz"],
            "quantity = 'zzz': not among the predictions (allowed: "
            f"{', '.join(name for name in QUANTITIES if name.endswith('_bytes'))})",
        ),
        (lambda: mb.RunConfig(8), "RunConfig(): 8 has no name; allowed: batch=8, length=4096, …"),
        (lambda: mb.Model("gpt-2"), "Model(): base = 'gpt-2': must be a base; allowed: "
         "model('gpt-2')"),
    ],
)  # fmt: skip
def test_constructors_refuse_wrong_arguments_in_one_line(construct, line):
    with pytest.raises(mb.InputError) as error:
        construct()
    assert str(error.value) == line
