"""Odd input through the public ways in: an answer, or one InputError that says what is allowed.

Command, files (config.json, safetensors, index, lock) and Python API; each case is drawn from a
seed, runs within `MOST_SECONDS`, and all of them within `MOST_BYTES` more than before.
"""

import contextlib
import gc
import inspect
import itertools
import json
import os
import random
import re
import resource
import time

import pytest
from torch import nn

import modelbudget as mb
from modelbudget.api.budget_lock import check
from modelbudget.api.command import app as command
from modelbudget.common.errors import MAX_LINE

MOST_SECONDS, MOST_BYTES = 5, 500_000_000
CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 100,
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "hidden_act": "silu", "tie_word_embeddings": False,
}  # fmt: skip
ODD = [
    None, True, 0, 1, -1, 2, 3.5, 10**30, 2**63, float("nan"), float("inf"), "", "a", "gpt-2-124m",
    "x" * 300, "\0", "\x1b]0;x\x07", "\ud83e", "../..", "h100", b"x", [], ["a"], {}, {"a": 1},
    {"batch": -1}, {"batch": 1_000_000_007}, {"zero": 3}, {1: 2}, (), object(), print, set(),
    ["parameters"], "parameters", "peak_training_bytes", 1_000_000_007, {"dtype": []},
]  # fmt: skip
CALLS = {
    "predict": 2, "predictions": 2, "memory": 1, "flops": 1, "conventions": 1, "formula": 2,
    "fit": 4, "measure": 2, "run": 1, "with_run": 1, "why_not": 2,
}  # fmt: skip
WORDS = [
    "gpt-2-124m", "show", "compare", "conventions", "models", "check", "lock", "--set", "-o",
    "--fit", "--batch", "--length", "--dtype", "--devices", "--json", "--csv", "--markdown",
    "--train", "--inference", "batch=1__0", "batch=1_0", "batch=" + "9" * 5_000, "=", "x=", "h100",
    "1e999", "-1", "0", "3", "1000000007", "a" * 300, "folder", "config.json", "\x1b[31m", "é",
    "bfloat16", "bf16", "n_layer=2", "d_model=7", "n_layer=", "tied=False", ".", "..", "--totals",
    "model.safetensors", "budget.lock", "a:b", "os:system", "--help",
]  # fmt: skip
TEXTS = [
    "1e999", "Infinity", "NaN", "[" * 100_000, "9" * 5_000, '"\\ud83e"', '"\\u0000"', "null", "-0",
    "{}", "[]", "true", "[[[]]]", '""', '"\\u001b[31m"', '{"a": 1, "a": 2}', "0.5", "1e308",
    "18446744073709551616", '"../x"', "[" + "9" * 99 + "]", "-1", f'"{"x" * 300}"',
]  # fmt: skip


def hostile_json(draw: random.Random, value) -> str:
    """Return the text of a value in which some texts of JSON are others, or some bytes are."""
    text = json.dumps(value)
    for _ in range(draw.randint(1, 3)):
        tokens = list(re.finditer(r'"[^"]*"|-?\d+|\[[^\[\]]*\]|true|false', text))
        if not tokens:
            return text
        at = draw.choice(tokens)
        text = text[: at.start()] + draw.choice(TEXTS) + text[at.end() :]
    return text[: draw.randrange(len(text))] if draw.random() < 0.1 else text


def tensors() -> dict:
    names = ("model.embed_tokens.weight", "lm_head.weight", "model.norm.weight")
    places = ([0, 6400], [6400, 12800], [12800, 12864])
    shapes = ([100, 32], [100, 32], [32])
    return {
        name: {"dtype": "BF16", "shape": shape, "data_offsets": place}
        for name, shape, place in zip(names, shapes, places, strict=True)
    }


def of_files(draw: random.Random, folder) -> None:
    path = folder / "model.safetensors"
    content = tensors()
    which = draw.choice(("config", "header", "index", "lock", "length"))
    config = hostile_json(draw, CONFIG) if which == "config" else json.dumps(CONFIG)
    (folder / "config.json").write_text(config)
    header = (hostile_json(draw, content) if which == "header" else json.dumps(content)).encode()
    length = (
        draw.choice((0, 1, 2**63, len(header) - 1, 10**8)) if which == "length" else len(header)
    )
    path.write_bytes(length.to_bytes(8, "little") + header + bytes(12864))
    if which == "index":
        index = {"weight_map": dict.fromkeys(content, path.name), "metadata": {"total_size": 9}}
        path = path.with_suffix(".safetensors.index.json")
        path.write_text(hostile_json(draw, index))
    if which == "lock":
        lock = {"settings": {"batch": 1}, "models": {"gpt-2-124m": {"parameters": {"head": 1}}}}
        (folder / "budget.lock").write_text(hostile_json(draw, lock))
        check(folder / "budget.lock")
    else:
        mb.model(str(path)).checkpoint()


def of_api(draw: random.Random, folder) -> None:
    where = draw.choice(("model", "module", "method", "method", "method"))
    if where == "module":
        function = draw.choice((mb.results, mb.measure))
        function(draw.choice(ODD))
    elif where == "model":
        fields = {draw.choice(("n_layer", "d_model", "dtype", "é")): draw.choice(ODD)}
        mb.model(draw.choice([*ODD, "gpt-2-124m"]), **fields)
    else:
        name = draw.choice(list(CALLS))
        arguments = [draw.choice(ODD) for _ in range(draw.randint(0, CALLS[name]))]
        getattr(mb.model("gpt-2-124m", n_layer=1, d_model=64, n_head=2), name)(*arguments)


def of_command(draw: random.Random, folder) -> None:
    words = [draw.choice(WORDS) for _ in range(draw.randint(1, 5))]
    os.environ["COLUMNS"] = "80"
    with (
        pytest.MonkeyPatch.context() as patch,
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        patch.setattr("sys.argv", ["modelbudget", *words])
        patch.chdir(folder)
        with pytest.raises(SystemExit) as ended:
            command.main()
    gc.enable()  # a process of one command needs no collector; this one runs a thousand of them
    assert ended.value.code in (0, 1, 2, None)


def fuzz(seeds, folder) -> dict[str, float]:
    """Run cases; return how many were answered and refused, and the longest time and memory."""
    counts = {"answered": 0, "refused": 0, "seconds": 0.0}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for seed in seeds:
        draw = random.Random(seed)
        place = folder / str(seed)
        place.mkdir()
        start = time.process_time()
        refusal = None
        try:
            draw.choice((of_files, of_api, of_command))(draw, place)
        except mb.InputError as error:
            refusal = error
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
        counts["answered" if refusal is None else "refused"] += 1
        for line in refusal.mistakes if refusal else ():
            assert line.isprintable(), (seed, line)
            assert len(line) <= MAX_LINE + 1, (seed, line)
            assert re.search(r"[=:] ", line), (seed, line)
        seconds = time.process_time() - start
        assert seconds < MOST_SECONDS, (seed, seconds)
        counts["seconds"] = max(counts["seconds"], seconds)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    counts["bytes"] = 1024 * (after - before)
    assert counts["bytes"] < MOST_BYTES, counts
    return counts


def test_odd_input_is_answered_or_refused(tmp_path):
    counts = fuzz(range(60), tmp_path)
    assert counts["answered"] > 5
    assert counts["refused"] > 20


@pytest.mark.slow
def test_much_odd_input_is_answered_or_refused(tmp_path):
    counts = fuzz(range(1_000, 4_000), tmp_path)
    print(counts)
    assert counts["answered"] + counts["refused"] == 3_000


VALID = {
    "name": "gpt-2-124m", "quantity": "parameters", "component": "head", "given": (),
    "quantities": ["parameters"], "accelerator": "h100-80gb", "file": "none.yaml", "settings": None,
}  # fmt: skip
"""Arguments that a function needs while another one is odd."""
FEW = [-1, 10**30, float("nan"), "", "\0", b"x", [], [None], {"batch": 10**30}, {1: 2}, object()]


def functions() -> dict:
    """Return the public functions with arguments: of the module, and of what these return."""
    model = mb.model("gpt-2-124m", n_layer=1, d_model=64, n_head=2)
    run, found = {"attention_kernel": "math"}, {"module": nn.Linear(2, 2)}
    returned = (
        model, model.memory(run), model.parameters(), model.conventions(run),
        model.fit("h100-80gb", run), mb.measure(**found),
    )  # fmt: skip
    names = [name for name in dir(mb) if name not in ("InputError", "Model", "__version__")]
    public = {f"mb.{name}": getattr(mb, name) for name in names}
    for one in returned:
        methods = [name for name in dir(type(one)) if name[0] != "_" or name == "__getitem__"]
        for name in methods:
            method = inspect.getattr_static(one, name)
            if inspect.isfunction(method) and len(inspect.signature(method).parameters) > 1:
                public[f"{type(one).__name__}.{name}"] = getattr(one, name)
    return public


def test_every_argument_of_the_public_functions_is_checked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    public = functions()
    assert {"mb.sweep", "Model.fit", "Predictions.__getitem__", "Breakdown.share"} <= public.keys()
    valid, refused = VALID | {"module": nn.Linear(2, 2)}, 0
    for label, function in public.items():
        parameters = inspect.signature(function).parameters.values()
        needed = [one.name for one in parameters if one.default is one.empty]
        given = {name: valid[name] for name in needed if name in valid}
        for parameter, odd in itertools.product(parameters, FEW):
            refusal = None
            try:
                if parameter.kind is parameter.VAR_KEYWORD:
                    function("gpt-2-124m", n_layer=odd)
                elif parameter.kind is parameter.POSITIONAL_ONLY or len(parameters) == 1:
                    function(odd)
                else:
                    function(**given | {parameter.name: odd})
            except mb.InputError as error:
                refusal = error
            except Exception as error:
                raise AssertionError(f"{label}: {parameter.name} = {odd!r}: {error!r}") from error
            lines = refusal.mistakes if refusal else ()
            assert all(line.isprintable() for line in lines), (label, lines)
            refused += bool(lines)
    assert refused > 900


def test_too_many_devices_are_refused_at_once():
    with pytest.raises(
        mb.InputError, match=r"devices = 1000000007: allowed: a whole number from 1"
    ):
        mb.model("gpt-2-124m").fit("h100", {}, 1_000_000_007)
