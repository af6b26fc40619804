"""Files that mean harm: refused with a reason, or read as the plain text that they are.

Those of a test are read in a process of their own that may take seconds and one GiB, so that what
would fill the memory, hang or kill the interpreter fails a test and nothing else.
"""

import csv
import io
import itertools
import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import polars as pl
import pytest
import vl_convert
from helpers.bounded import bounded
from helpers.config_files import LLAMA, XLNET
from helpers.few_kinds import only_classes
from helpers.project import ROOT
from helpers.results import result

from modelbudget.catalogue.check_huggingface_files import check_huggingface_files
from modelbudget.catalogue.named_models import Catalogue
from modelbudget.common.errors import InputError
from modelbudget.common.spreadsheet import csv as as_csv
from modelbudget.huggingface import unknown_class
from modelbudget.measurement.build import build
from modelbudget.report.config_translation import default_decoders
from modelbudget.report.page import render
from modelbudget.report.page_results import Results
from modelbudget.workflow.chosen_sweeps import chosen_sweeps

HEAD = "title: t\nquestion: q\n"
GOOD = HEAD + "base: gpt-2-124m\ngrid: {n_layer: [1]}\n"


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    """A folder with a few named models, and no sweep yet."""
    (tmp_path / "configs" / "sweeps").mkdir(parents=True)
    (tmp_path / "configs" / "models").mkdir()
    series = ("gpt-2", "palm", "mixtral", "big-lstm-characters")
    for name in ("accelerators.yaml", *(f"models/{one}.yaml" for one in series)):
        name = Path("configs", name)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    monkeypatch.chdir(tmp_path)
    check_huggingface_files()  # once: each process that is forked would read all of them
    return tmp_path


def points(names=None) -> list[str]:
    """What the Snakefile reads; of each point its label."""
    return [point.label for sweep in chosen_sweeps(names) for point in sweep.points]


def refusal(text: str | bytes) -> list[str]:
    """Why a sweep file is refused."""
    (mistakes,) = refusals(text)
    return mistakes


def refusals(*texts: str | bytes) -> list[list[str]]:
    """Why each of some sweep files is refused, one after the other in one process."""
    answer, found = bounded(mistakes_of, texts)
    assert answer == "accepted", found
    assert len(found) == len(texts)
    for mistakes in found:
        assert mistakes
        assert all(line.startswith("configs/sweeps/bad.yaml: ") for line in mistakes), mistakes
        assert all(line.isprintable() for line in mistakes)
    return found


def mistakes_of(texts: tuple[str | bytes, ...]) -> list[list[str]]:
    """Return the mistakes of each file, none of one that is accepted."""
    found = []
    for text in texts:
        content = text if isinstance(text, bytes) else text.encode()
        Path("configs/sweeps/bad.yaml").write_bytes(content)
        try:
            points()
            found.append([])
        except InputError as error:
            found.append(error.mistakes)
    return found


LAUGHS = "a0: &a0 [ha, ha]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)
)
YAML = {
    "billion laughs": (f"{LAUGHS}title: *a9\n", "line 2: *a0: only a short text"),
    "billion laughs as a merge": (
        "a: &a {x: 1}\nb: {<<: [*a, *a]}\n",
        "line 2: *a: only a short text",
    ),
    "a list within itself": ("points: &p [*p]\n", "line 1: *p"),
    "a long text repeated often": (f"a: &a {'x' * 501}\nb: *a\n", "line 2: *a"),
    "a name of two values": ("a: &a x\nb: &a [1]\ntitle: *a\n", "line 2: &a: names a second value"),
    "a command": ("title: !!python/object/apply:os.system [touch pwned]\n", "line 1: tag:yaml.org"),
    "a name of Python's": ("title: !!python/name:os.system\n", "tags are not read"),
    "an object of one's own": ("title: !model {a: 1}\n", "line 1: !model: tags are not read"),
    "bytes": ("title: !!binary aGE=\n", "binary: tags are not read"),
    "a set": ("points: !!set {a}\n", "set: tags are not read"),
    "brackets without end": ("points: " + "[" * 300_000, "line 1: nested more than 20 deep"),
    "braces without end": ("points: " + "{a: " * 300_000, "nested more than 20 deep"),
    "dashes without end": ("points:\n" + "- " * 300_000, "nested more than 20 deep"),
    "a very long file": (f"title: {'x' * 2**22}\n", "longer than 4,194,304 bytes"),
    "a long title": (f"{GOOD}headline: h\n".replace("t\n", "t" * 201 + "\n", 1), "at most 200"),
    "a number of a million digits": (f"{GOOD}order: {'9' * 10**6}\n", "1,000,000 digits"),
    "a hexadecimal one": (f"{GOOD}order: 0x{'f' * 10**6}\n", "1,000,002 digits"),
    "one of minutes and seconds": (f"{GOOD}order: {':'.join(['59'] * 10**5)}\n", "digits"),
    "a date that is none": (f"{GOOD}order: 2001-99-99\n", "'2001-99-99': month must be in 1..12"),
    "a date": (f"{GOOD}order: 2001-09-09\n", "order = datetime.date(2001, 9, 9): must be a whole"),
    "a control character": (b"title: \x07\n", "UTF-8 YAML"),
    "no text": (b"\xff\xfe\x00title", "UTF-8"),
    "a key that moves the cursor": (
        GOOD + '"\\e[2J\\ngird": 1\n',
        "'\\x1b[2J\\ngird': unknown key",
    ),
    "thousands of unknown fields": (
        HEAD + "base: palm-8b\nfixed:\n" + "".join(f"  f{i}: 1\n" for i in range(30_000))
        + "grid: {n_layer: [1]}\n",
        "fixed.f0: unknown field",
    ),
    "thousands of unknown keys": (
        GOOD + "".join(f"k{i}: 1\n" for i in range(30_000)),
        "k0: unknown key",
    ),
    "thousands of points that are none": (
        HEAD + "base: palm-8b\npoints: [" + "1, " * 30_000 + "]\n",
        "points[0] = 1: must be keys with values",
    ),
    "thousands of unknown bases": (
        HEAD + "points:\n" + "".join(f"- {{base: gpt-{i}x}}\n" for i in range(30_000)),
        "points[0].base = 'gpt-0x': unknown base",
    ),
    "thousands of constraints": (
        GOOD + "constraints: [" + "n_layer > 0, " * 30_000 + "]\n",
        "constraints",
    ),
    "a billion layers": (GOOD.replace("[1]", "[1000000000]"), "must be at most 10,000"),
    "a billion experts": (
        HEAD + "base: mixtral-8x7b\ngrid: {n_expert: [1000000000]}\n",
        "must be at most 1,000,000",
    ),
    "a billion heads": (
        HEAD + "base: gpt-2-124m\nfixed: {d_head: 1}\ngrid: {n_head: [1000000000]}\n",
        "must be at most 1,000,000",
    ),
}  # fmt: skip


def test_yaml_that_means_harm_is_refused(project):
    texts, reasons = zip(*YAML.values(), strict=True)
    for name, reason, mistakes in zip(YAML, reasons, refusals(*texts), strict=True):
        assert reason in mistakes[0], name
        assert len(mistakes) <= 21, name
    assert not Path("pwned").exists()


def test_many_values_on_many_axes_are_refused_before_they_are_written_out(project):
    axes = "".join(f"  f{i}: {{from: 1, to: 2, steps: 100000}}\n" for i in range(10_000))
    (line,) = refusal(f"{HEAD}base: palm-8b\ngrid:\n{axes}")
    assert "grid: 1,000,000,000 values in all; at most 100,000 are allowed" in line


def test_what_is_no_file_is_refused(project):
    Path("configs/sweeps/folder.yaml").mkdir()
    os.mkfifo("configs/sweeps/pipe.yaml")  # who reads it waits for ever
    Path("configs/sweeps/zero.yaml").symlink_to("/dev/zero")
    answer, mistakes = bounded(points)
    assert (answer, mistakes) == (
        "refused",
        [f"configs/sweeps/{name}.yaml: not a file" for name in ("folder", "pipe", "zero")],
    )


EXPRESSIONS = {
    "().__class__.__bases__[0].__subclasses__()": "uses",
    "d_model.__class__": "uses attribute",
    "__import__('os').system('touch pwned')": "uses attribute",
    "open('pwned', 'w')": "calls 'open'",
    "eval('1')": "calls 'eval'",
    "max(1, 2)(2)": "calls 'max(1, 2)'",
    "1()": "calls '1'",
    "(lambda: 1)()": "uses lambda",
    "[x for x in range(10**9)]": "uses listcomp",
    "(x := 1)": "is not an expression",
    "f'{d_model}'": "uses joinedstr",
    "max(*[1])": "uses starred",
    "max(1, key=open)": "key: unknown field",
    "9**9**9": "uses pow",
    "1 << 10**9": "uses lshift",
    "'a' * 10000000000": "'a' is not a number",
    "'%10000000000d' % 5": "is not a number",
    "'a' + 'b'": "'a' is not a number",
    "round(d_model / 3, 10000000000)": "gives round 2 values; allowed: 1",
    "1e400": "not a number that is allowed",
    "1j": "not a number that is allowed",
    "b'1'": "not a number that is allowed",
    "9" * 400: "not a number that is allowed",
    " * ".join(["9999999999"] * 35): "a number of more than 1000 bits",
    "-" * 499 + "1": "too deep",
    "(" * 240 + "1" + ")" * 240: "is not an expression",
    "x" * 501: "501 characters long; at most 500",
    "d_model\x00": "contains a control character",
}


@pytest.mark.parametrize("place", ["derive: {{d_ff: {}}}", "constraints: [{}]"])
def test_an_expression_computes_with_numbers_and_nothing_else(project, place):
    texts = [f"{GOOD}{place.format(json.dumps(text))}\n" for text in EXPRESSIONS]
    for (text, reason), mistakes in zip(EXPRESSIONS.items(), refusals(*texts), strict=True):
        assert reason in mistakes[0], text
    assert not Path("pwned").exists()


def test_products_of_products_end(project):
    """Each the 45th power of the one before: the fourth would have ten million digits."""
    names = ["d_model", "n_ctx", "n_vocab", "d_ff", "d_head"]
    rules = [f"  {name}: {' * '.join([of] * 45)}\n" for of, name in itertools.pairwise(names)]
    lines = refusal(f"{GOOD}derive:\n{''.join(rules)}")
    assert "n_vocab: 'n_ctx * n_ctx" in lines[0]
    assert "a number of more than 1000 bits" in lines[0]


SECRET = "the content of a file elsewhere"


@pytest.fixture
def outside(project) -> Path:
    path = project / "outside.json"
    path.write_text(json.dumps(LLAMA | {"secret": SECRET}))
    return path


def test_a_base_is_read_from_the_folder_of_the_sweep_alone(outside):
    Path("configs/sweeps/link.json").symlink_to(outside)
    bases = ("../../outside.json", "x/../../../outside.json", str(outside), "link.json")
    for (line,) in refusals(*(f"{HEAD}base: {base}\ngrid: {{n_layer: [1]}}\n" for base in bases)):
        assert "lies outside of configs/sweeps" in line
        assert SECRET not in line


def test_a_model_reads_a_config_from_its_own_folder_alone(outside):
    Path("configs/models/m.yaml").write_text(
        "title: t\nfamily: decoder\nmodels: {m: {label: l, source: s, config: ../../outside.json}}"
    )
    Path("configs/sweeps/good.yaml").write_text(GOOD)
    answer, (line,) = bounded(points)
    assert answer == "refused"
    assert line.startswith("configs/models/../../outside.json: lies outside of configs/models")


@pytest.mark.parametrize(
    "name", ["../../outside", "/etc/passwd", "..", "*", "a/b", "$(touch pwned)"]
)
def test_a_sweep_is_asked_for_by_its_name(project, name):
    Path("configs/sweeps/good.yaml").write_text(GOOD)
    answer, lines = bounded(points, [name])
    assert answer == "refused"
    assert lines == [f"--config sweeps={name}: unknown sweep (allowed: good)"]


CODE = "from pathlib import Path\nPath('pwned').touch()\nraise SystemExit('this code was run')\n"
REMOTE = {
    "auto_map": {"AutoConfig": "modeling_evil.EvilConfig", "AutoModel": "modeling_evil.Evil"},
    "trust_remote_code": True,
    "_name_or_path": "evil/model",
}


def built() -> list[str]:
    """Every model of the sweeps as a module on meta: its class."""
    return [
        type(build(point.architecture, "meta", "float32")).__name__
        for sweep in chosen_sweeps(None)
        for point in sweep.points
    ]


@pytest.fixture(scope="module")
def loaded() -> None:
    """The library is loaded here, and not again in each process."""
    unknown_class.fields_of(XLNET)


@pytest.mark.usefixtures("loaded")
@pytest.mark.parametrize(
    ("config", "answer"),
    [
        (LLAMA, ("accepted", ["DecoderModel"])),
        (XLNET, ("accepted", ["XLNetLMHeadModel"])),
        (XLNET | {"attn_implementation": "evil/kernels"}, ("accepted", ["XLNetLMHeadModel"])),
        ({"model_type": "evil", "architectures": ["Evil"]}, "that auto_map names is never run"),
        ({"model_type": "llama", "architectures": ["Evil"]}, "not a model class of transformers"),
        ({"model_type": "llama", "architectures": ["os.system"]}, "not a model class of"),
        ({"model_type": "llama", "architectures": ["pipeline"]}, "not a model class of"),
    ],
    ids=["known", "unknown", "backend", "own type", "own class", "os", "function"],
)  # fmt: skip
def test_code_beside_a_config_is_never_run(project, config, answer):
    for name in ("modeling_evil.py", "evil.py", "configuration_evil.py"):
        Path("configs/sweeps", name).write_text(CODE)
        Path(name).write_text(CODE)
    Path("configs/sweeps/config.json").write_text(json.dumps(config | REMOTE))
    Path("configs/sweeps/s.yaml").write_text(f"{HEAD}points: [{{base: config.json}}]\n")
    outcome, what = bounded(built, seconds=60)
    if isinstance(answer, tuple):
        assert (outcome, what) == answer
    else:
        assert outcome == "refused", what
        assert answer in what[0]
    assert not Path("pwned").exists()


CONFIGS = {
    "10^9 layers": (LLAMA | {"num_hidden_layers": 10**9}, "must be at most 10,000"),
    "10^18 layers": (LLAMA | {"num_hidden_layers": 10**18}, "must be at most 10,000"),
    "10^18 layers of another class": (XLNET | {"n_layer": 10**18}, "must be at most 10,000"),
    "10^18 words": (XLNET | {"vocab_size": 10**18}, "must be at most 16,777,216"),
    "a list of 10^9 layers": (
        {"model_type": "swin", "architectures": ["SwinModel"], "depths": [2, 10**9]},
        "depths = [2, 1000000000]: must be at most 10,000",
    ),
    "lists in lists": (XLNET | {"x": [[10**18]]}, "must be at most"),
    "nested without end": ("[" * 10**6, "not readable as UTF-8 JSON"),
    "objects without end": ('{"model_type": "xlnet", "a": ' + '{"a": ' * 900 + "1" + "}" * 901, ""),
    "a number of a million digits": ('{"a": ' + "9" * 10**6 + "}", "not readable as UTF-8 JSON"),
    "a very long file": ('{"a": "' + "a" * 2**22 + '"}', "longer than 4,194,304 bytes"),
    "spans of 10^18 characters": (None, "must be at most 64"),
}


@pytest.mark.usefixtures("loaded")
@pytest.mark.parametrize(("config", "reason"), CONFIGS.values(), ids=CONFIGS)
def test_a_config_is_refused_before_anything_is_built(project, config, reason):
    text = config if isinstance(config, str) else json.dumps(config)
    Path("configs/sweeps/config.json").write_text(text)
    sweep = f"{HEAD}points: [{{base: config.json}}]\n"
    if config is None:
        sizes = "d_model: 8, n_layer: 1, d_hidden: 8"
        sweep = f"{HEAD}points: [{{base: big-lstm-characters, {sizes}, n_span: {10**18}}}]\n"
    assert reason in refusal(sweep)[0]


EVIL = (
    """<script>pwned=1</script><img src=x onerror="pwned=1">'"><b onclick='pwned=1'>`${pwned=1}"""
)
FORMULA = "=cmd|'/c calc'!A1"
MODELS = """
title: {text}
family: decoder
source: {text}
remark: {text}
fields: {{n_vocab: 8, n_ctx: 4, d_model: 4, n_head: 2, n_layer: 1}}
models:
  {name}:
    label: {text}
    published: {text}
    published_source: {text}
    published_value: 999
    exact: 998
    exact_source: {text}
    reason: {text}
    stand_in: {text}
"""
SWEEP = """
title: {text}
question: {question}
headline: {text}
fixed: {{n_vocab: 8}}
derive: {{d_ff: 4 * d_model}}
constraints: [{constraint}]
points:
  - {{base: {name}, label: {text}}}
  - {{base: {name}, label: {formula}}}
"""
QUESTION = (
    EVIL + "\n\n[a](javascript:pwned=1) ![b](https://evil.example/b.png) <javascript:pwned=1>"
)


def swept(texts: dict[str, str], catalogue_folder: Path, sweep: Path) -> tuple[Results, Catalogue]:
    quoted = {name: json.dumps(text) for name, text in texts.items()}
    (catalogue_folder / "evil.yaml").write_text(MODELS.format(**quoted))
    sweep.write_text(SWEEP.format(**quoted))
    catalogue = Catalogue(catalogue_folder)
    one = result(sweep, catalogue)
    zoo_file = sweep.with_name("zoo.yaml")
    zoo_file.write_text(f"title: {quoted['text']}\nquestion: {quoted['question']}\nmodels: all\n")
    return Results([one, result(zoo_file, catalogue)]), catalogue


class Markup(HTMLParser):
    """Every element of a page with the names of its attributes."""

    def __init__(self, page: str):
        super().__init__()
        self.elements, self.values, self.text = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, *(name for name, _ in attrs)))
        self.values += [value or "" for _, value in attrs]

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture
def evil(project) -> tuple[Results, Catalogue]:
    """Results of sweeps and models of which every text means harm."""
    texts = {
        "text": EVIL, "question": QUESTION, "constraint": f"norm != {EVIL[:40]!r}",
        "name": f"../../{EVIL}", "formula": FORMULA,
    }  # fmt: skip
    return swept(texts, project / "configs" / "models", project / "configs" / "sweeps" / "s.yaml")


@pytest.fixture
def classes_of_models(evil):
    """Let calculators have only the classes that models name: others have no text of files."""
    names = {base.transformers for base in evil[1].bases.values()}
    with only_classes({name: a for name, a in default_decoders().items() if name in names}):
        yield


@pytest.mark.usefixtures("classes_of_models")
def test_text_of_files_is_text_in_the_page(evil, project, open_page):
    page = render(*evil)
    plain = {
        "text": "text", "question": "text\n\n[a](b) ![b](c) text", "constraint": "norm != 'text'",
        "name": "name", "formula": "label",
    }  # fmt: skip
    harmless = swept(plain, project / "configs" / "models", project / "configs/sweeps/s.yaml")
    assert set(Markup(page).elements) <= set(Markup(render(*harmless)).elements)
    assert not any(re.match(r"\s*javascript:", value) for value in Markup(page).values)
    assert EVIL in "".join(Markup(page).text)
    path = project / "page.html"
    path.write_text(page, encoding="utf-8")
    tab = open_page(path.as_uri())
    tab.wait_for_selector("#sweeps, .chart svg, main", state="attached")
    assert tab.evaluate("typeof pwned") == "undefined"
    assert tab.locator("img, b[onclick]").count() == 0
    assert all(address.startswith("file:") for address in tab.requests), tab.requests
    assert all(
        "Infinite extent" in line for line in tab.messages
    )  # of a chart with nothing to draw


def test_text_of_files_is_text_in_pictures(evil):
    results, _ = evil
    for sweep in results.sweeps:
        for spec in sweep.charts().values():
            picture = vl_convert.vegalite_to_svg(spec)
            elements = Markup(picture).elements
            names = {name for element in elements for name in element}
            assert not {"script", "img", "b", "foreignobject", "onerror", "onclick"} & names
            assert "text" in names


def test_no_text_is_a_formula_in_a_spreadsheet(evil):
    """OWASP: a cell that begins with one of = + - @, a tab or a line's end may be computed."""
    results, _ = evil
    first, second = results.sweeps
    for table in (first.comparison, second.zoo):
        text = next(name for name in ("label", "remark") if name in table.columns)
        for start in ("=", "+", "-", "@", "\t", "\r", "\n", "＝", 'x";=', "x\n="):
            cells = list(csv.reader(io.StringIO(as_csv(table.with_columns(
                pl.lit(f"{start}1").alias(text)
            )), newline="")))  # fmt: skip
            assert len(cells) == table.height + 1
            column = cells[0].index(text)
            for row in cells[1:]:
                assert row[column].lstrip("'") == f"{start}1"
                assert not re.match(r"[=+\-@\t\r\n＝]", row[column])
    for line in as_csv(first.comparison.filter(pl.col("label") == FORMULA)).splitlines()[1:]:
        assert f'"\'{FORMULA}"' in line


def test_numbers_stay_numbers_in_a_spreadsheet():
    table = pl.DataFrame({"difference": [-1, None], "label": ["a", None]})
    assert as_csv(table) == '"difference","label"\n-1,"a"\n,\n'
