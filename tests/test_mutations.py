"""Hundreds of sweeps and model files that are nearly right: each runs, or is refused with the file,
the key and the reason; quickly, and never with a traceback.
"""

import copy
import json
import random
import re
import signal
from pathlib import Path

import polars as pl
import pytest
import yaml
from bounded import bounded
from conftest import ROOT

from modelbudget import workflow
from modelbudget.errors import InputError
from modelbudget.measure.one_model import measure_one
from modelbudget.measure.place import Room
from modelbudget.points import points_table, summary
from modelbudget.predict import predict
from modelbudget.sweep import Measure

SWEEPS = [
    {
        "title": "Wider or deeper", "question": "Which of *both*?", "base": "gpt-2-124m",
        "fixed": {"n_vocab": 64, "n_ctx": 16, "dtype": "bfloat16"},
        "grid": {
            "d_model": {"from": 8, "to": 32, "steps": 3, "scale": "logarithmic", "multiple_of": 8},
            "n_layer": [1, 2], "tied": [True, False],
        },
        "derive": {"n_head": "d_model / 8", "d_ff": "4 * d_model"},
        "constraints": ["d_model >= 8 * n_layer"], "measure": {"device": "meta"}, "order": 5,
    },
    {
        "title": "One by one", "question": "What is in each?", "headline": "the second",
        "points": [
            {"base": "mixtral-8x7b", "n_layer": 2, "d_model": 32, "n_head": 4, "n_kv_head": 2},
            {"base": "mlp", "d_model": 3, "d_ff": 7, "label": "the second"},
            {"base": "config.json", "n_layer": 1, "n_vocab": 50},
        ],
        "measure": {"quantities": ["parameters", "parameter_bytes"], "memory_share": 0.5},
    },
    {
        "title": "A step", "question": "What does it take?", "base": "gpt-2",
        "fixed": {
            "n_layer": 2, "d_model": 16, "n_head": 2, "n_vocab": 32, "n_ctx": 8, "length": 4,
            "attention": "math", "optimizer": "sgd",
        },
        "grid": {"batch": [1, 2], "recompute": ["none", "full"]},
        "measure": {"quantities": ["saved_bytes", "flops_forward"], "device": "auto"},
    },
]  # fmt: skip
MODELS = [
    {
        "title": "A series", "family": "decoder", "source": "a paper, Table 1",
        "fields": {"n_vocab": 64, "n_ctx": 16, "tied": True, "norm": "rmsnorm", "gated": True},
        "derive": {"d_ff": "4 * d_model"},
        "models": {
            "small": {"label": "Small", "fields": {"d_model": 16, "n_layer": 1, "n_head": 2}},
            "wide": {
                "label": "Wide", "fields": {"d_model": 32, "n_layer": 2, "n_head": 4},
                "published": "50K", "published_value": 50000, "exact": 49999, "exact_source": "us",
            },
        },
    },
    {
        "title": "Read and written", "family": "encoder-decoder", "source": "another paper",
        "fields": {"n_vocab": 32, "d_model": 16, "n_head": 2, "d_ff": 32},
        "models": {
            "both": {"label": "Both", "fields": {"n_encoder_layer": 1, "n_decoder_layer": 1}},
        },
    },
]  # fmt: skip
CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 100,
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "hidden_act": "silu", "tie_word_embeddings": False,
}  # fmt: skip
VALUES = [
    0, 1, -1, 2, 3, 7, 10**4, 2**31, 2**63 - 1, 2**63, -(2**63), 10**30, True, False, None,
    0.5, 1e5, -0.0, 12.75, float("inf"), float("nan"), "2026-01-01", "yes", "1e5", "0x10", "1_000",
    "", " ", "norm", "gpt-2", "small", "..", "../x.json", "x.json", "{x}", "%s", "\\", "\x00",
    "\x85", "\u202e", "ｎ＿ｌａｙｅｒ", "é", "e\u0301", "🦜", "\ud83e", "a" * 300, "=1+1",
    "<b>", "a\nb", "n_layer", "d_model - 1", "d_model / 0", "4 *", "n_head % 0",
    [], {}, [[]], [{}], {"": ""},
    [None], [1, "a", True], {"a": {"b": {"c": 1}}}, {"from": 1}, {"from": 4, "to": 1, "steps": 2},
    {"from": 1, "to": 10**18, "steps": 3, "scale": "logarithmic"},
    {"from": 1, "to": 2, "steps": 99_999},
]  # fmt: skip
"""Half of them are what a file may hold in the right place."""
KEYS = [
    "", "n_layer", "N_LAYER", "d_model ", "n-layer", "base", "label", "title", "grid", "points",
    "é", "🦜", "\u202e", "a.b", "a[0]", "batch", "dtype", "d_ff", "models", "measure", "x" * 200,
    "null", "n_expert", "mixers", "tied", "vocab_multiple", "length", "family",
    "__class__", "config",
]  # fmt: skip


def places(tree, path=()) -> list[tuple]:
    """The path of every value in a tree."""
    found = [path] if path else []
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in items:
        if isinstance(value, dict | list):
            found += places(value, (*path, key))
        else:
            found.append((*path, key))
    return found


def mutated(document: dict, chance: random.Random) -> str:
    """YAML that is the document but for one to three changes."""
    tree = copy.deepcopy(document)
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        *above, last = chance.choice(places(tree) or [("title",)])
        holder = tree
        for key in above:
            holder = holder[key]
        _change(holder, last, chance)
    text = yaml.safe_dump(tree, allow_unicode=chance.random() < 0.5, sort_keys=False)
    return _scratched(text, chance) if chance.random() < 0.2 else text


def _change(holder, key, chance: random.Random) -> None:
    old = holder.get(key) if isinstance(holder, dict) else holder[key]
    match chance.randrange(9):
        case 0:
            del holder[key]
        case 1:
            holder[key] = [old]
        case 2 if isinstance(holder, dict):
            holder[chance.choice(KEYS)] = holder.pop(key)
        case 3 if isinstance(holder, dict):
            holder[chance.choice(KEYS)] = chance.choice(VALUES)
        case 4 if isinstance(holder, list):
            holder.append(copy.deepcopy(old))
        case 5 if isinstance(old, int):
            holder[key] = chance.choice([-old, 1, 2, 3, old + 1, 2 * old, old * 10**9, str(old)])
        case 6:
            holder[key] = chance.choice([v for v in VALUES if type(v) is type(old)] or VALUES)
        case _:
            holder[key] = copy.deepcopy(chance.choice(VALUES))


def _scratched(text: str, chance: random.Random) -> str:
    """A line lost, said twice, moved to the right or cut; or a sign in the wrong place."""
    lines = text.splitlines(keepends=True)
    i = chance.randrange(len(lines))
    line = lines[i]
    cut, wrong = line[: len(line) // 2], f"{line[:-1]}: &*!\n"
    lines[i] = chance.choice(["", line * 2, f"  {line}", cut, wrong])
    return "".join(lines)


def outcome(kind: str, text: str) -> str | list[str]:
    """What becomes of one file: 'runs', or why it is refused."""
    Path(f"configs/{kind}/m.yaml").write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        sweeps = workflow.chosen_sweeps(None)
    except InputError as error:
        return error.mistakes
    for expanded in sweeps:
        json.dumps(summary(expanded)).encode()
        points = points_table(expanded)
        predicted = predict(points, ["parameters"])
        first = expanded.points[0]
        if first.architecture.has_formula and depth(first.architecture) <= 100:
            measured = measure_one(first.architecture, first.run, ON_META, Room(0, 0))
            said = predicted.filter(architecture=first.architecture.digest())["predicted"].sum()
            n_runs = points.filter(architecture=first.architecture.digest())["run"].n_unique()
            assert said == n_runs * sum(measured.values["parameters"].values()), expanded.points[0]
    return "runs"


ON_META = Measure(device="meta", quantities=["parameters"])


def depth(architecture) -> int:
    sizes = architecture.model_dump()
    return max((sizes[name] for name in sizes if name.endswith("_layer")), default=1)


def outcomes(kind: str, texts: list[str]) -> list:
    """Of each file in turn; one that takes more than seconds is broken."""
    found = []
    signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(TimeoutError()))
    for text in texts:
        signal.setitimer(signal.ITIMER_REAL, 20)  # of a machine that does other things too
        try:
            found.append(outcome(kind, text))
        except Exception as error:
            found.append(error)
        signal.setitimer(signal.ITIMER_REAL, 0)
    return found


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    """A folder with a few named models, a config.json, and a sweep over what is mutated."""
    (tmp_path / "configs" / "sweeps").mkdir(parents=True)
    (tmp_path / "configs" / "models").mkdir()
    series = ("gpt-2", "mixtral")
    for name in ("configs/accelerators.yaml", *(f"configs/models/{one}.yaml" for one in series)):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    (tmp_path / "configs" / "sweeps" / "config.json").write_text(json.dumps(CONFIG))
    monkeypatch.chdir(tmp_path)
    return tmp_path


REASON = re.compile(r"configs/\S+?\.(yaml|json): (configs/\S+: )?\S.*?(:| =) ?\S", re.DOTALL)
"""A file; then a key or a line, and after it what is wrong."""


@pytest.mark.parametrize("document", SWEEPS, ids=lambda document: document["title"])
def test_what_is_not_mutated_runs(project, document):
    assert outcome("sweeps", yaml.safe_dump(document)) == "runs"


def hold(kind: str, documents: list[dict], number: int, seed: int) -> None:
    chance = random.Random(seed)
    texts = [mutated(chance.choice(documents), chance) for _ in range(number)]
    assert len(set(texts)) > 0.9 * number
    answer, found = bounded(outcomes, kind, texts, seconds=60, method="spawn")
    assert answer == "accepted", found
    broken = [(t, o) for t, o in zip(texts, found, strict=True) if isinstance(o, Exception)]
    assert not broken, f"{len(broken)}: {broken[0][1]!r}\n{broken[0][0]}"
    refused = [o for o in found if o != "runs"]
    assert 0.3 * number < len(refused) < 0.95 * number
    for line in (line for lines in refused for line in lines):
        assert REASON.match(line), line
        assert line.isprintable()


def test_mutated_sweeps_run_or_are_refused(project):
    hold("sweeps", SWEEPS, 400, seed=1)


def test_mutated_models_run_or_are_refused(project):
    Path("configs/sweeps/all.yaml").write_text("title: t\nquestion: q\nmodels: all\n")
    hold("models", MODELS, 150, seed=2)


def test_mutated_configs_run_or_are_refused(project):
    """Each key of a config.json with each of some values, as the base of a sweep."""
    sweep = "title: t\nquestion: q\npoints: [{base: config.json}]\n"
    values = (0, 1, -1, 7, 10**4, 10**9, 10**30, 0.5, True, None, "", "é", [], {}, [1])
    configs = [CONFIG | {key: value} for key in CONFIG for value in values]
    configs += [{k: v for k, v in CONFIG.items() if k != key} for key in CONFIG]
    answer, found = bounded(outcomes_of_configs, sweep, configs, seconds=60, method="spawn")
    assert answer == "accepted", found
    assert not [o for o in found if isinstance(o, Exception)], found
    for lines in found:
        for line in lines if lines != "runs" else []:
            assert REASON.match(line), line
    assert 15 < found.count("runs") < len(found) / 2


def outcomes_of_configs(sweep: str, configs: list[dict]) -> list:
    found = []
    for config in configs:
        Path("configs/sweeps/config.json").write_text(json.dumps(config))
        found += outcomes("sweeps", [sweep])
    return found


def test_through_snakemake_itself(make_project):
    """What is refused starts nothing; what is accepted leaves a comparison that agrees."""
    project, chance = make_project(), random.Random(3)
    texts = [mutated(chance.choice(SWEEPS), chance) for _ in range(12)]
    sweeps = project.folder / "configs" / "sweeps"
    (sweeps / "config.json").write_text(json.dumps(CONFIG))
    for i, text in enumerate(texts):
        (sweeps / f"m{i}.yaml").write_bytes(text.encode("utf-8", "surrogatepass"))
    run = project.snakemake()
    assert run.returncode != 0
    assert "Traceback" not in run.stdout + run.stderr, run.stdout + run.stderr
    head, *lines = run.stderr[run.stderr.index("Nothing was started.") :].splitlines()
    assert head == f"Nothing was started. {len(lines)} mistake(s):"
    bad = {line.partition(".yaml: ")[0] for line in lines}
    assert 2 < len(bad) < 12
    assert not (project.folder / "results").exists()

    for name in bad:
        (project.folder / f"{name}.yaml").unlink()
    good = [path.stem for path in sorted(sweeps.glob("*.yaml"))]
    run = project.snakemake(*(f"results/{name}/comparison.csv" for name in good))
    assert run.returncode == 0, run.stderr
    for name in good:
        table = pl.read_parquet(project.folder / "results" / name / "comparison.parquet")
        assert table.filter("formula")["agrees"].all()
