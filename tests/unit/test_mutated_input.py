"""Hundreds of sweeps and model files that are nearly right: each runs, or is refused with the file,
the key and the reason; quickly, and never with a traceback.
"""

import copy
import json
import random
import re
import signal
from pathlib import Path
from unittest.mock import patch

import polars as pl
import pytest
import yaml
from helpers.bounded import bounded
from helpers.project import ROOT
from helpers.tiers import examples, some

from modelbudget.common.errors import MAX_LINE, InputError
from modelbudget.huggingface import bounded_check as checks_of_configs
from modelbudget.measurement.one_model import measure_one
from modelbudget.measurement.process.device import Room
from modelbudget.predict.predict import predict
from modelbudget.sweeps.expand import Expanded
from modelbudget.sweeps.points_table import points_table
from modelbudget.sweeps.sweep_file import Measure
from modelbudget.sweeps.sweep_json import summary
from modelbudget.workflow.chosen_sweeps import chosen_sweeps

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
            "attention_kernel": "math", "optimizer": "sgd",
        },
        "grid": {"batch": [1, 2], "recompute": ["none", "full"]},
        "measure": {"quantities": ["activation_bytes", "flops_forward"], "device": "auto"},
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


TRICKS = [
    "---\n",
    "...\n",
    "? [a, b]\n: c\n",
    "? complex\n",
    "<<: {a: 1}\n",
    "&a a: *a\n",
    "a: &a 1\nb: *a\n",
    "!!set {a}\n",
    "!!python/name:os.system\n",
    "%YAML 1.1\n",
    "0o17: 1\n",
    "1: 2\n",
    "null: 1\n",
    "? \n",
    "- a\n",
    "a: 1:30:00\n",
    "a: |2\n  b\n",
    "a: >-\n",
    "a: 'b\n",
    'a: "\\q"\n',
    "[a]: b\n",
    "{a: b}: c\n",
    "order: 0b1\n",
    "order: 1_0\n",
    "order: 010\n",
    "order: .inf\n",
    "order: 2001-01-01\n",
    "@a\n",
    "`a`\n",
    "\ta: 1\n",
    "a:b\n",
    "a: b: c\n",
    "# \x85\n",
    "\u2028",
    "\x07",
]
"""Lines of YAML that mean something else than they seem to, or nothing."""


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


def mutated(document: dict, chance: random.Random) -> bytes:
    """A file that is the document but for one to three changes."""
    tree = copy.deepcopy(document)
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        if "question" in tree and chance.random() < 0.4:
            _recombine(tree, chance)
        else:
            *above, last = chance.choice(places(tree) or [("title",)])
            holder = tree
            for key in above:
                holder = holder[key]
            _change(holder, last, chance)
    if document.get("model_type"):
        text = json.dumps(tree, ensure_ascii=chance.random() < 0.5, indent=1)
    else:
        text = yaml.safe_dump(tree, allow_unicode=chance.random() < 0.5, sort_keys=False)
    text = _scratched(text, chance) if chance.random() < 0.2 else text
    content = text.encode("utf-8", "surrogatepass")
    return _damaged(content, chance) if chance.random() < 0.1 else content


LEGAL = {
    "batch": [1, 64, 4096], "length": [1, 4, 4096],
    "attention_kernel": ["math", "flash", "efficient"],
    "backend": ["gpu", "cpu"], "dtype": ["float64", "float32", "bfloat16", "float16"],
    "master_weights": [True, False], "optimizer": ["sgd", "momentum", "adamw"],
    "foreach": [True, False], "fused": [True, False], "dropout": [True, False],
    "recompute": ["none", "selective", "full"],
    "n_layer": [1, 2, 10_000], "d_model": [1, 7, 64, 2**40], "n_head": [1, 3, 8, 10**6],
    "n_kv_head": [1, 2, 5], "d_head": [1, 3, 264], "d_ff": [1, 2**62], "n_vocab": [1, 2**62],
    "n_ctx": [1, 2**63 - 1], "tied": [True, False], "vocab_multiple": [1, 64, 2**50],
    "position": ["learned", "rope", "alibi", "none", "buckets"], "window": [0, 1, 2**40],
    "mixers": ["attention", "attention sliding_attention", "mamba"], "mlps": ["mlp", "moe"],
    "norm": ["layernorm", "rmsnorm"], "n_expert": [1, 8, 10**6], "n_expert_per_token": [1, 9],
}  # fmt: skip
"""Fields with values that each is allowed to have; together they need not be."""
BASES = [
    "gpt-2", "gpt-2-124m", "mixtral-8x7b", "decoder", "mlp", "encoder", "rwkv", "hybrid", "GPT-2",
    "gpt-2-small", "config.json", "../config.json", "none.json", "/", "", "hugging-face", "x" * 99,
]  # fmt: skip
EXPRESSIONS = [
    "d_model / 8", "d_model / (n_layer - 1)", "d_model % n_head = 0", "n_layer > 99", "not tied",
    "1 < n_layer <= 2", "norm = 'rmsnorm'", "norm > 3", "max()", "min(1)", "min(norm, 2)", "'a'",
    "d_model ** 2", "d_modle", "(((1)))", "1 if tied else 2", "d_model // 0", "tied + tied",
    "ceil(norm)", "9" * 200, "d_model * d_model * d_model * d_model", "round(d_model / 7, 1)",
    "d_model == d_model == d_model", "d_ff", "-d_model", "1e309", "lambda: 1", "a.b", "a[0]", "é",
]  # fmt: skip
QUANTITIES = [
    "parameters", "parameter_bytes", "gradient_bytes", "activation_bytes", "flops_forward", "flops",
    "cache_bytes", "flops_decode", "peak_training_bytes", "resident_bytes", "workspace_bytes",
    "peak_reserved_bytes", "unsupported_ops",
]  # fmt: skip


def _recombine(tree: dict, chance: random.Random) -> None:
    """Something that is allowed by itself, where it may not fit the rest."""
    name = chance.choice(list(LEGAL))
    value = chance.choice(LEGAL[name])
    match chance.randrange(8):
        case 0:
            _inside(tree, "fixed")[name] = value
        case 1:
            _inside(tree, "grid")[name] = chance.sample(LEGAL[name], chance.randint(1, 2))
        case 2:
            ends = sorted(chance.sample([1, 2, 3, 64, 10**6, 2**53 + 1, 2**63 - 2, 2**63 - 1], 2))
            _inside(tree, "grid")[name] = {
                "from": ends[0], "to": ends[1], "steps": chance.choice([2, 3, 50]),
                "scale": chance.choice(["linear", "logarithmic"]),
                "multiple_of": chance.choice([1, 8, 2**40]),
            }  # fmt: skip
        case 3:
            tree["base"] = chance.choice(BASES)
        case 4:
            _inside(tree, "derive")[name] = chance.choice(EXPRESSIONS)
        case 5:
            tree["constraints"] = chance.sample(EXPRESSIONS, chance.randint(1, 3))
        case 6:
            quantities = chance.sample(QUANTITIES, chance.randint(1, 3))
            devices = ["auto", "meta", "cpu", "none", "cuda"]
            tree["measure"] = {"quantities": quantities, "device": chance.choice(devices)}
            if chance.random() < 0.3:
                tree["fit"] = [chance.choice(["batch", "length", "n_layer"])]
        case 7:
            points = [{"base": chance.choice(BASES), name: value}, {name: value}]
            tree["points"] = chance.choice([points, [{"base": "gpt-2-124m", "label": "é"}]])


def _inside(tree: dict, key: str) -> dict:
    if not isinstance(tree.get(key), dict):
        tree[key] = {}
    return tree[key]


def _damaged(content: bytes, chance: random.Random) -> bytes:
    """Cut, with a wrong byte, or as another system writes it."""
    at = chance.randrange(len(content) + 1)
    return chance.choice([
        content[:at],
        content[:at] + bytes([chance.randrange(256)]) + content[at + 1 :],
        content.replace(b"\n", b"\r\n"),
        b"\xef\xbb\xbf" + content,
        content.decode("utf-8", "replace").encode("utf-16"),
        content.replace(b"  ", b"\t"),
        content + content,
        b"",
    ])  # fmt: skip


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
    """A line lost, repeated, moved to the right or cut; or a sign in the wrong place."""
    lines = text.splitlines(keepends=True)
    i = chance.randrange(len(lines))
    line = lines[i]
    cut, wrong = line[: len(line) // 2], f"{line[:-1]}: &*!\n"
    lines[i] = chance.choice(["", line * 2, f"  {line}", cut, wrong, chance.choice(TRICKS) + line])
    return "".join(lines)


FILES = {"accelerators": "configs/accelerators.yaml", "config": "configs/sweeps/config.json"}


def outcome(kind: str, content: bytes) -> str | list[str]:
    """What becomes of one file: 'runs', or why it is refused."""
    Path(FILES.get(kind, f"configs/{kind}/m.yaml")).write_bytes(content)
    try:
        sweeps = chosen_sweeps(None)
    except InputError as error:
        return error.mistakes
    for expanded in sweeps:
        if not isinstance(expanded, Expanded):
            continue
        json.dumps(summary(expanded)).encode()
        if expanded.sweep.solve:
            continue  # the run finds its points
        points = points_table(expanded.points)
        predicted = predict(points, ["parameters"])
        first = expanded.points[0]
        if first.architecture.has_formula and depth(first.architecture) <= 100:
            measured = measure_one(first.architecture, first.run, ON_META, Room(0, 0))
            expected = predicted.filter(architecture=first.architecture.digest())["predicted"].sum()
            n_runs = points.filter(architecture=first.architecture.digest())["run"].n_unique()
            assert expected == n_runs * sum(measured.values["parameters"].values()), (
                expanded.points[0]
            )
    return "runs"


ON_META = Measure(device="meta", quantities=["parameters"])


def depth(architecture) -> int:
    sizes = architecture.model_dump()
    return max((sizes[name] for name in sizes if name.endswith("_layer")), default=1)


def outcomes(kind: str, contents: list[bytes]) -> list:
    """Of each file in turn; one that takes more than seconds is broken."""
    found = []
    signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(TimeoutError()))
    for content in contents:
        signal.setitimer(signal.ITIMER_REAL, 20)  # of a machine that does other things too
        try:
            found.append(outcome(kind, content))
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
MORE = re.compile(
    r"configs/\S+?\.yaml: and (at least )?\d+ more mistakes"
    r"|configs/sweeps: every sweep has default: false; name one: --config sweeps=…"
)


@pytest.mark.parametrize("document", SWEEPS, ids=lambda document: document["title"])
def test_what_is_not_mutated_runs(project, document):
    assert outcome("sweeps", yaml.safe_dump(document).encode()) == "runs"


def hold(kind: str, documents: list[dict], number: int, seed: int, few: float = 0.3) -> None:
    """Of so many mutations each runs or is refused for a reason; at least a `few` are refused."""
    chance = random.Random(seed)
    contents = [mutated(chance.choice(documents), chance) for _ in range(number)]
    assert len(set(contents)) > 0.9 * number
    answer, found = bounded(outcomes, kind, contents, seconds=max(60, number), method="spawn")
    assert answer == "accepted", found
    broken = [(t, o) for t, o in zip(contents, found, strict=True) if isinstance(o, Exception)]
    assert not broken, f"{len(broken)}: {broken[0][1]!r}\n{broken[0][0].decode(errors='replace')}"
    refused = [o for o in found if o != "runs"]
    assert few * number < len(refused) < 0.98 * number
    for line in (line for lines in refused for line in lines):
        assert REASON.match(line) or MORE.fullmatch(line), line
        assert line.isprintable()
        assert len(line) <= MAX_LINE + 1


def of_every_model() -> None:
    Path("configs/sweeps/every.yaml").write_text("title: t\nquestion: q\nmodels: all\n")


def of_config() -> None:
    text = "title: t\nquestion: q\nbase: config.json\ngrid: {n_layer: [1, 2]}\n"
    Path("configs/sweeps/of-config.yaml").write_text(text)


ACCELERATORS = yaml.safe_load((ROOT / "configs/accelerators.yaml").read_text(encoding="utf-8"))
SHIPPED = {
    kind: [
        yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)
        for path in sorted((ROOT / "configs" / kind).glob("*.yaml"))
        if path.stem not in ("zoo", "named-models")
    ]
    for kind in ("sweeps", "models")
}
UNKNOWN = [
    {"model_type": "xlnet", "d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 8,
     "vocab_size": 30, "architectures": ["XLNetLMHeadModel"]},
    {"model_type": "gpt_bigcode", "n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 30},
    {"model_type": "jamba", "hidden_size": 16, "num_hidden_layers": 8, "vocab_size": 30,
     "num_attention_heads": 2, "num_key_value_heads": 2},
    {"model_type": "qwen2_vl", "text_config": {"hidden_size": 16, "num_hidden_layers": 1}},
]  # fmt: skip


def test_mutated_sweeps_run_or_are_refused(project):
    hold("sweeps", SWEEPS, examples(400), seed=1)


def test_mutated_models_run_or_are_refused(project):
    of_every_model()
    hold("models", MODELS, examples(150), seed=2)


def test_mutated_accelerators_run_or_are_refused(project):
    of_config()
    hold("accelerators", [ACCELERATORS], examples(90), seed=4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 14))
def test_many_more_mutated_sweeps(project, seed):
    hold("sweeps", SWEEPS, 300, seed)


@pytest.mark.slow
def test_mutations_of_the_shipped_sweeps(project):
    for path in (ROOT / "configs" / "models").iterdir():
        (project / "configs/models" / path.name).write_bytes(path.read_bytes())
    hold("sweeps", SHIPPED["sweeps"], 300, seed=20)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30, 34))
def test_mutations_of_the_shipped_models(project, seed):
    for path in (project / "configs/models").iterdir():
        path.unlink()
    of_every_model()
    hold("models", SHIPPED["models"], 150, seed, few=0.2)


@pytest.mark.slow
def test_many_more_mutated_accelerators(project):
    of_config()
    hold("accelerators", [ACCELERATORS], 200, seed=40)


@pytest.mark.slow
@pytest.mark.parametrize("document", [CONFIG, *UNKNOWN], ids=lambda one: one["model_type"])
def test_many_more_mutated_configs(project, document):
    of_config()
    hold("config", [document], 60, seed=50, few=0.1)


def test_mutated_configs_run_or_are_refused(project):
    """Each key of a config.json with each other of some values, as the base of a sweep.

    The next key has the values between; with TESTS=all each has all.
    """
    sweep = "title: t\nquestion: q\npoints: [{base: config.json}]\n"
    values = (0, 1, -1, 7, 10**4, 10**9, 10**30, 0.5, True, None, "", "é", [], {}, [1])
    assert len(values) % 2
    configs = some([CONFIG | {key: value} for key in CONFIG for value in values], 2)
    configs += [{k: v for k, v in CONFIG.items() if k != key} for key in CONFIG]
    answer, found = bounded(outcomes_of_configs, sweep, configs, seconds=60, method="spawn")
    assert answer == "accepted", found
    assert not [o for o in found if isinstance(o, Exception)], found
    for lines in found:
        for line in lines if lines != "runs" else []:
            assert REASON.match(line), line
    assert len(found) / 10 < found.count("runs") < len(found) / 2


def outcomes_of_configs(sweep: str, configs: list[dict]) -> list:
    found = []
    # One worker imports transformers for all of them.
    with patch("modelbudget.huggingface.bounded_check.end"):
        for config in configs:
            Path("configs/sweeps/config.json").write_text(json.dumps(config))
            found += outcomes("sweeps", [sweep.encode()])
    checks_of_configs.end()
    return found


def test_through_snakemake_itself(make_project):
    """What is refused starts nothing; what is accepted leaves a comparison that agrees."""
    project, chance = make_project(), random.Random(3)
    texts = [mutated(chance.choice(SWEEPS), chance) for _ in range(12)]
    sweeps = project.folder / "configs" / "sweeps"
    (sweeps / "config.json").write_text(json.dumps(CONFIG))
    for i, text in enumerate(texts):
        (sweeps / f"m{i}.yaml").write_bytes(text)
    run = project.snakemake()
    assert run.returncode != 0
    assert "Traceback" not in run.stdout + run.stderr, run.stdout + run.stderr
    head, *lines = run.stderr[run.stderr.index("Nothing was started.") :].splitlines()
    assert head == f"Nothing was started. {len(lines)} mistakes:"
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
        assert table.drop_nulls("prediction")["agrees"].all()
