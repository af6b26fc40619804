"""The calculator: the arithmetic of the page against Python's, digit by digit, and its controls."""

import itertools
import json
import random
import re
from collections import Counter
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

import pytest
from helpers.few_kinds import compared_classes, few_classes, few_models, kind_of
from helpers.results import result
from helpers.tiers import ALL, examples
from pydantic import ValidationError

import modelbudget as mb
from modelbudget.architecture.run_config import HALF, RunConfig
from modelbudget.architecture.run_constraints import run_mistake
from modelbudget.architecture.run_values import MASKS
from modelbudget.architecture.terms import total
from modelbudget.catalogue.implementations import implementations
from modelbudget.catalogue.memory_margins import memory_margins
from modelbudget.catalogue.named_models import Base
from modelbudget.common.errors import InputError
from modelbudget.families.decoder import Decoder
from modelbudget.huggingface.classes import translations
from modelbudget.huggingface.config_file import read
from modelbudget.huggingface.read_config import fields_of, keys_by_field
from modelbudget.predict.by_program import terms_by_program
from modelbudget.predict.formula import formula
from modelbudget.predict.largest_that_fits import as_class
from modelbudget.predict.prediction_or_reason import predicted
from modelbudget.report.calculator_data import models_of_calculator
from modelbudget.report.calculator_runs import CHOICES, OF_CLASSES, OF_RUN, OPTIONS, STATES
from modelbudget.report.page import render
from modelbudget.report.page_results import Results
from modelbudget.sweeps.derive import named_architecture, resolve, resolved, whole
from modelbudget.sweeps.device_defaults import device_defaults

EXACT_BELOW = 2**53
INFERENCE = "peak_inference_bytes"
BY_PROGRAM = {CHOICES.quantities["cache_bytes"]: "cache_bytes", CHOICES.peaks[INFERENCE]: INFERENCE}
"""Rows that the page has where no closed formula holds."""
ACTIVE = "active parameters per token"

ANSWERS = """async (addresses) => {
  const answers = [];
  for (const address of addresses) {
    const calculator = document.getElementById("calculator");
    const answered = new Promise((done) => {
      calculator.addEventListener("answered", done, { once: true });
    });
    location.hash = address;
    await answered;
    const texts = (all) => [...all].map((one) => one.textContent);
    const rows = [...document.querySelectorAll("#calculator-table tbody tr")];
    answers.push({
      rows: Object.fromEntries(rows.map((row) => texts(row.cells))),
      reasons: texts(document.querySelectorAll("#calculator-answer li")),
    });
  }
  return answers;
}"""


@pytest.fixture(scope="module")
def bases(catalogue) -> dict[str, Base]:
    """Decoders of all kinds that the page of tests has."""
    return {base.name: base for base in models_of_calculator(few_models(catalogue))}


@pytest.fixture(scope="module")
def models(bases) -> dict[str, Decoder]:
    return {name: decoder_of(base) for name, base in bases.items()}


def decoder_of(base: Base) -> Decoder:
    architecture = named_architecture(base)
    assert isinstance(architecture, Decoder)
    return architecture


@pytest.fixture(scope="module")
def address(catalogue, static_parts, tmp_path_factory) -> str:
    """A page of the smallest sweep: the calculator needs none."""
    folder = tmp_path_factory.mktemp("calculator")
    sweep, path = folder / "sweep.yaml", folder / "report.html"
    sweep.write_text("title: A test\nquestion: Why?\nbase: mlp\ngrid: {d_model: [5]}\n")
    page = render(Results([result(sweep, catalogue)]), catalogue, static_parts(catalogue))
    path.write_text(page, encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def opened(open_page, address):
    def open_at(fragment: str = "", **how):
        tab = open_page(address + fragment, **how)
        if how.get("script", True):
            tab.wait_for_selector("#calculator-table tbody tr", state="attached")
            tab.evaluate("document.querySelector('#calculator .fields').open = true")
        return tab

    return open_at


FOLLOW = """(address) => new Promise((answered) => {
  document.getElementById("calculator").addEventListener("answered", answered, { once: true });
  location.hash = address;
})"""


@pytest.fixture(scope="module")
def only_tab(read_page, address):
    tab = read_page(address)
    tab.wait_for_selector("#calculator-table tbody tr", state="attached")
    return tab


@pytest.fixture
def at(only_tab):
    """Moves the one tab of all tests that paste no file to a link: opening a page takes longer."""

    def at_link(fragment: str):
        only_tab.messages.clear()
        only_tab.evaluate(FOLLOW, fragment)
        return only_tab

    return at_link


OF_MESH = [*CHOICES.of_several, *CHOICES.of_several.values(), "master_weights", "gradient_casts"]
ONE_DEVICE = {name: RunConfig.model_fields[name].default for name in OF_MESH}


class Setting:
    """A model of the catalogue with some fields changed, computed in Python.

    Other fields follow the changed ones as in a sweep.
    """

    def __init__(self, base: Base, settings: dict, changes: dict):
        self.name, self.settings, self.changes = base.name, settings, changes
        first = {name: choices[0] for name, choices in OPTIONS.items()}
        of_run = first | settings | {name: changes[name] for name in OF_RUN if name in changes}
        of_run |= {name: bool(of_run[name]) for name in SWITCHES if name in of_run}
        of_run.setdefault("length", min(decoder_of(base).n_ctx, 1024))
        for name, devices in CHOICES.of_several.items():
            if of_run.get(devices, 1) == 1:
                of_run.pop(name, None)
        if of_run.get("zero") == 1:
            of_run |= {"master_weights": True, "gradient_casts": "accumulated"}
        self.a, self.reason, self.of_page = None, "", True
        try:
            values = {name: whole(name, v) for name, v in resolve(base, changes, {}).items()}
            self.run = RunConfig.model_validate(of_run)
            a = Decoder.model_validate(
                {k: bool(values[k]) if k in SWITCHES else values[k] for k in Decoder.model_fields}
            )
            defaults = device_defaults(Decoder)
            # What is added to scores, but for windows, the page computes by math alone.
            adds = a.sinks or a.position in MASKS
            if "attention_kernel" not in settings:
                kernel = defaults["attention_kernel"](vars(a) | vars(self.run))
                self._set("attention_kernel", "math" if adds else kernel)
            self._set("foreach", defaults["foreach"](vars(a) | vars(self.run)))
            self.reason = run_mistake(a, self.run)
            if adds and self.run.attention_kernel != "math":
                kernel = self.run.attention_kernel
                self.reason = f"attention_kernel = '{kernel}': what position: {a.position} or sinks"
            self.a = None if self.reason else a
        except ValidationError as error:
            self.reason = str(error.errors()[0].get("ctx", {}).get("error", ""))
        except ValueError as error:  # a field that follows is no whole number
            self.reason = f"{str(error).split(' = ')[0]} = " if "whole" in str(error) else ""

    def _set(self, name: str, value) -> None:
        self.run = self.run.model_copy(update={name: value})

    def written(self) -> dict:
        moved = {name: int(v) if v in (0, 1) else v for name, v in self.changes.items()}
        return {"model": self.name} | self.settings | moved

    def budgets(self) -> dict[str, dict[str, int]]:
        """Every quantity that has a formula here, by component."""
        a = self.alike()
        terms = {"parameters": Decoder.parameters(a)}
        terms |= {
            name: getattr(Decoder, name)(a, self.run_of(name))
            for name in CHOICES.quantities.keys() - {STATES}
            if self.is_known(name, a)
        }
        return {
            name: {part: term.total for part, term in found.items() if term.total}
            for name, found in terms.items()
        }

    def alike(self) -> Decoder:
        """The model with layers of one kind, where it has no experts: all are dense."""
        assert self.a is not None
        return self.a.model_copy(update={"n_dense_layer": 0}) if self.a.mlps == "mlp" else self.a

    def peak(self, quantity: str) -> int | None:
        """The largest of all phases, if there is a formula."""
        run, a = self.run_of(quantity), self.alike()
        if not self.is_known(quantity, a):
            return None
        return max(term.total for term in getattr(Decoder, quantity)(a, run).values())

    def is_known(self, quantity: str, a: Decoder) -> bool:
        in_page = self.of_page or quantity in CHOICES.of_inference
        return in_page and bool(Decoder.has_formula_for(quantity, a, self.run_of(quantity)))

    def run_of(self, quantity: str) -> RunConfig:
        """Return the run, of one device for inference: devices share the training alone."""
        if quantity not in CHOICES.of_inference:
            return self.run
        return self.run.model_copy(update=ONE_DEVICE)

    def numbers(self, by: str = "parameters") -> dict[str, int]:
        """The numbers of the table, by the title of each row."""
        budgets = self.budgets()
        sums = {name: sum(parts.values()) for name, parts in budgets.items()}
        if "gradient_bytes" in sums:
            of_training = ("parameter_bytes", "gradient_bytes", "optimizer_bytes")
            sums[STATES] = sum(sums[name] for name in of_training)
        active = {ACTIVE: total(Decoder.active_parameters(self.a))}
        rows = {
            CHOICES.quantities[name]: n for name, n in sums.items() if name in CHOICES.quantities
        }
        if peak := self.peak(OF_CLASSES):
            rows[CHOICES.peaks[OF_CLASSES]] = peak
        whole = {"all parameters": sums["parameters"]}
        return budgets.get(by, {}) | whole | rows | active


@pytest.fixture(scope="module")
def kinds(catalogue, models) -> set[tuple]:
    """The kinds of models whose formulas the page has."""
    return {kind_of(a) for a in (*models.values(), *few_classes(catalogue).values())}


@pytest.fixture(scope="module")
def with_peaks(catalogue, models):
    """Whether the page has the formulas of a model's peaks.

    It has those of published models and of the defaults of classes whose run settings are known.
    """
    of_classes = [few_classes(catalogue)[name] for name in compared_classes(catalogue)]
    published = {kind_of(a) for a in (*models.values(), *of_classes)}

    return lambda a: kind_of(a) in published


SWITCHES = [
    name
    for record in (Decoder, RunConfig)
    for name, field in record.model_fields.items()
    if field.annotation is bool
]


def drawn(bases: dict[str, Base], dice: random.Random) -> Setting:
    """One to five moves from a model: sizes over nine decades, and switches."""
    base = bases[dice.choice(list(bases))]
    changes = {}
    on_one_device = [*(n for n in Decoder.numeric() if n not in CHOICES.absent), "batch", "length"]
    for field in dice.sample(on_one_device, dice.choice([1, 1, 2, 3, 5])):
        least = int(field in OF_RUN or Decoder.model_fields[field].default != 0)
        size = round(2 ** dice.uniform(0, 30)) if dice.random() < 0.9 else least
        changes[field] = dice.choice([0, 1]) if field in SWITCHES else size
    if dice.random() < 0.3:
        changes["n_kv_head"] = dice.randint(1, 64)
        changes["n_head"] = changes["n_kv_head"] * dice.randint(1, 8)
    settings = {"dtype": dice.choice(["float32", *HALF]), "attention_kernel": "math"}
    if dice.random() < 0.4:
        settings = {
            "dtype": dice.choice([*HALF, "bfloat16", "float32"]),
            "attention_kernel": "flash",
        }
    elif dice.random() < 0.2:
        settings = {"dtype": "float32", "attention_kernel": "efficient"}
    for name in OPTIONS:
        if name not in settings:
            settings[name] = dice.choice(OPTIONS[name])
    if dice.random() < 0.2:
        changes = {"n_vocab": 128 * dice.randint(1, 999)}  # what several devices divide
    if dice.random() < 0.3:
        changes["data_parallel"] = dice.choice([2, 3, 8, 1000])
    if dice.random() < 0.3:
        changes["tensor_parallel"] = dice.choice([2, 4, 8])
        changes["sequence_parallel"] = dice.choice([0, 1])
    if dice.random() < 0.2:
        changes["pipeline_parallel"] = dice.choice([2, 3, 4])
        changes["n_microbatch"] = dice.choice([1, 4, 8])
        changes["batch"] = 8 * dice.randint(1, 4)
    return Setting(base, settings, changes)


def by_program(setting: Setting, quantity: str) -> int | str:
    """Return a quantity of inference of one device by its program."""
    terms = terms_by_program(quantity, setting.a, setting.run.model_copy(update=ONE_DEVICE)) or {}
    values = [term.total for term in terms.values()]
    return (max if quantity == INFERENCE else sum)(values) if values else "no formula"


def shown(value: int | str | None) -> str:
    if not isinstance(value, int):
        return value or "–"
    return f"{value:,}" if abs(value) < EXACT_BELOW else "over 2⁵³"


def in_page(run: RunConfig, is_published: bool) -> bool:
    """Whether the page has the formulas of training on these devices."""
    if run.pipeline_schedule != "none":
        return is_published and run.zero in CHOICES.zero_of_stages
    return is_published or run.zero in CHOICES.zero_of_others


def mesh_of(run: RunConfig) -> tuple[int, str, bool]:
    return run.zero, run.pipeline_schedule, run.tensor_parallel > 1


def test_every_digit_and_every_reason_is_pythons(only_tab, bases, with_peaks):
    dice = random.Random(540 if ALL else 8)
    legal, illegal = [], []
    n_legal, n_illegal = examples(300), examples(100)
    while len(legal) < n_legal or len(illegal) < n_illegal:
        setting = drawn(bases, dice)
        (legal if setting.a else illegal).append(setting)
    settings = legal[:n_legal] + illegal[:n_illegal]
    dice.shuffle(settings)
    for setting in settings:
        if setting.a:
            setting.of_page = in_page(setting.run, with_peaks(setting.a))
    # Caches of some models are of programs, whose components are not compared here.
    of_components = ["parameters", *CHOICES.quantities.keys() - {STATES, "cache_bytes"}]
    splits = [dice.choice(of_components) for _ in settings]
    links = [
        f"#what-if?{urlencode(setting.written() | {'by': by})}"
        for setting, by in zip(settings, splits, strict=True)
    ]
    answers = only_tab.evaluate(ANSWERS, links)
    past = activations = peaks = served = asked = 0
    meshes = Counter()
    for setting, by, answer in zip(settings, splits, answers, strict=True):
        about = by, setting.name, setting.settings, setting.changes
        assert bool(answer["reasons"]) == (setting.a is None), (about, answer["reasons"])
        if setting.a is None:
            assert answer["rows"] == {}, about
            assert any(one.startswith(setting.reason) for one in answer["reasons"])
            continue
        expected = dict.fromkeys(
            [*CHOICES.quantities.values(), *CHOICES.peaks.values()], "no formula"
        )
        expected |= setting.numbers(by)
        if not with_peaks(setting.a):
            expected |= dict.fromkeys(CHOICES.peaks.values(), "no formula")
        if expected[ACTIVE] == expected["all parameters"]:
            del expected[ACTIVE]
        for name, quantity in BY_PROGRAM.items():
            if expected[name] == "no formula" != answer["rows"][name]:
                expected[name] = by_program(setting, quantity)
        numbers = {name: n for name, n in expected.items() if isinstance(n, int)}
        assert answer["rows"] == {name: shown(n) for name, n in expected.items()}, about
        past += sum(n >= EXACT_BELOW for n in numbers.values())
        activations += CHOICES.quantities["activation_bytes"] in numbers
        peaks += CHOICES.peaks[OF_CLASSES] in numbers
        meshes[mesh_of(setting.run)] += CHOICES.peaks[OF_CLASSES] in numbers
        served += CHOICES.peaks[INFERENCE] in numbers
        asked += with_peaks(setting.a)
    assert past >= examples(10)  # some are too large for a browser, which is shown
    assert activations >= examples(100)
    assert peaks >= examples(80)
    assert served >= asked / 2  # of models that a reader has changed in several fields
    assert all(meshes[of] for of in ((0, "none", True), (0, "gpipe", False)))
    assert {zero for (zero, *_), n in meshes.items() if n} == {0, 1, 2, 3}
    assert only_tab.messages == []


def test_every_model_of_the_catalogue_is_there(only_tab, models):
    names = only_tab.eval_on_selector_all("select[data-model] option", "o => o.map(x => x.value)")
    assert sorted(names) == sorted(models)
    answers = only_tab.evaluate(ANSWERS, [f"#what-if?model={name}" for name in names])
    for name, answer in zip(names, answers, strict=True):
        counted = total(Decoder.parameters(models[name]))
        assert answer["rows"]["all parameters"] == f"{counted:,}", name


def test_each_move_is_answered(at):
    """With the numbers of that move; `benchmarks/page.py` measures the milliseconds."""
    tab = at("#what-if?model=deepseek-v3")
    totals = tab.evaluate(
        """async () => {
          const field = document.querySelector('[data-field="n_vocab"]');
          const calculator = document.getElementById("calculator");
          const totals = [];
          for (let i = 0; i < 5; i += 1) {
            const answered = new Promise((done) => {
              calculator.addEventListener("answered", done, { once: true });
            });
            field.value = 100000 + i;
            field.dispatchEvent(new Event("input", { bubbles: true }));
            await answered;
            totals.push(document.querySelector("#calculator-answer .total").innerText);
          }
          return totals;
        }"""
    )
    assert len(set(totals)) == 5


def total_of(tab) -> str:
    return tab.inner_text("#calculator-answer .total")


def test_the_keyboard_moves_numbers_and_the_address_follows(at, opened):
    tab = at("#what-if?model=gpt-2-124m")
    assert total_of(tab) == "124,439,808"
    tab.focus("[aria-label='n_vocab']")
    tab.keyboard.press("ArrowUp")
    assert total_of(tab) == "124,440,576"
    tab.uncheck("[aria-label='tied']")
    kept = total_of(tab)
    assert "n_vocab=50258" in tab.url
    assert tab.url.endswith(tab.get_attribute("#calculator-link", "href"))
    again = opened(tab.url[tab.url.index("#") :])
    assert total_of(again) == kept
    tab.select_option("[data-model]", "palm-540b")
    assert total_of(tab) == "540,356,474,880"
    assert tab.messages == again.messages == []


def test_what_is_no_model_has_a_reason_and_no_number(at):
    tab = at("#what-if?model=gpt-2-124m&n_kv_head=5")
    assert "n_kv_head = 5 does not divide n_head = 12" in tab.inner_text("#calculator-answer")
    assert tab.query_selector("#calculator-answer .total") is None
    tab = at("#what-if?model=gpt-2-124m")
    for wrong in ("", "0", "-3", "1.5", "9007199254740993"):
        tab.fill("[aria-label='n_vocab']", wrong)
        assert "n_vocab needs a whole number from 1" in tab.inner_text("#calculator-answer")
        assert tab.query_selector("#calculator-answer .total") is None
        assert "n_vocab" not in tab.url
    tab.fill("[aria-label='n_vocab']", "256")
    assert total_of(tab) == f"{124_439_808 - (50_257 - 256) * 768:,}"


def test_fields_follow_others_until_they_are_set(at, opened, bases):
    tab = at("#what-if?model=gpt-2-124m")

    def move(**changes: int) -> str:
        for name, value in changes.items():
            tab.fill(f"[aria-label='{name}']", str(value))
        return total_of(tab)

    def expected(**changes: int) -> str:
        a, _ = resolved(bases["gpt-2-124m"], {**changes})
        return f"{total(Decoder.parameters(a)):,}"

    assert move(d_model=960) == expected(d_model=960)
    assert tab.input_value("[aria-label='d_ff']") == "3840"
    assert move(d_ff=3072) == expected(d_model=960, d_ff=3072)  # its own value, now set
    assert move(d_model=1200) == expected(d_model=1200, d_ff=3072)
    assert move(n_head=10) == expected(d_model=1200, d_ff=3072, n_head=10)
    again = opened(tab.url[tab.url.index("#") :])
    assert total_of(again) == total_of(tab)
    tab.fill("[aria-label='n_head']", "7")
    assert "d_head = 171.429 is not a whole number" in tab.inner_text("#calculator-answer")
    assert "n_head=7" in tab.url
    assert "d_head" not in tab.url
    assert tab.messages == again.messages == []


LLAMA_4 = {"model_type": "llama4_text", "hidden_size": 512}
MISTAKES = [
    ({"hidden_size": -4}, "hidden_size = -4: must not be negative"),
    ({"num_attention_heads": 33}, "d_head = 124.121 is not a whole number; choose sizes that "
     "divide (d_head is head_dim)"),
]  # fmt: skip
"""A Llama of 4,096 with one wrong key, and what the command says of it."""


def test_a_mistake_has_one_line_in_the_words_of_the_command(opened, tmp_path):
    """Not a line on what follows from a wrong size; a file's sizes of its class are counted."""
    tab = opened("#what-if?model=gpt-2-124m")
    tab.fill("[aria-label='d_model']", "-4")
    assert [one.inner_text() for one in tab.query_selector_all("#calculator-answer li")] == [
        "d_model needs a whole number from 1 to 2⁵³ − 1"
    ]
    llama = {"model_type": "llama", "vocab_size": 100, "hidden_size": 4096, "num_hidden_layers": 2}
    path = tmp_path / "config.json"
    for wrong, line in MISTAKES:
        path.write_text(json.dumps(llama | wrong))
        with pytest.raises(InputError) as refused:
            mb.model(str(path))
        assert str(refused.value) == f"{path}: {line}"
    path.write_text(json.dumps(LLAMA_4))
    (note,) = [one.text for one in read(path).notes]
    assert note.startswith("11 sizes are not in the file, so that Llama4ForCausalLM's defaults")
    assert note.count(" = ") == 11
    found = tab.evaluate(PASTE, [llama | wrong for wrong, _ in MISTAKES] + [LLAMA_4])
    assert [one["said"] for one in found] == [line for _, line in MISTAKES] + [note]
    assert tab.messages == []


def test_an_address_is_only_read(opened):
    evil = "<img src=x onerror=alert(1)>"
    tab = opened("#what-if?" + urlencode({"model": evil}))
    assert "8,030,261,248" in tab.inner_text("#calculator-answer")
    wrong = {"model": "gpt-2-124m", "n_vocab": evil, "tied": 2}
    tab.evaluate(FOLLOW, f"#what-if?{urlencode(wrong)}")
    for reason in ("n_vocab needs a whole number from 1 to 2⁵³ − 1", "tied needs 0 or 1"):
        assert reason in tab.inner_text("#calculator-answer")
    assert tab.query_selector("#calculator img") is None
    assert tab.messages == []


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_it_fits_and_every_control_has_a_name(opened, width, scheme):
    tab = opened("#what-if?model=deepseek-v3", width=width, scheme=scheme)
    tab.click("#calculator details summary")
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    table = "t => t.scrollWidth <= t.clientWidth"
    assert tab.eval_on_selector("#calculator-table", table)
    names = tab.eval_on_selector_all(
        "#calculator :is(input, select)",
        "all => all.map((control) => control.ariaLabel ?? control.labels[0].textContent)",
    )
    assert all(names)
    assert len(set(names)) == len(names)


def test_without_scripts_it_says_so(opened):
    tab = opened(script=False)
    assert "needs JavaScript" in tab.inner_text("#what-if")
    assert not tab.is_visible("#calculator")


def test_a_print_has_the_answer_or_says_how_to_get_it(open_page, address, tmp_path):
    """Before a reader comes near it has none; printing begins it. It answers without Vega.

    Only this opens the page away from the calculator, and asks for what Vega would take.
    """
    page, path = Path(address.removeprefix("file://")).read_text("utf-8"), tmp_path / "page.html"
    path.write_text(page.replace("<main", "<p>above</p>" * 200 + "<main"), encoding="utf-8")
    tab = open_page(path.as_uri(), 1280)
    tab.emulate_media(media="print")
    assert tab.query_selector("#calculator[aria-busy]")
    assert tab.inner_text("#what-if").partition("\n\n")[2].startswith("Not in this print")
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    tab.wait_for_selector("#calculator:not([aria-busy])")
    assert "H100" in tab.inner_text("#fit-answer")
    assert not tab.is_visible(".unprinted")
    assert tab.evaluate("typeof vega") == "undefined"
    assert tab.messages == []


def test_controls_come_from_the_record(catalogue, static_parts):
    section = static_parts(catalogue)
    assert [field["name"] for field in section["fields"]] == [
        "batch", "length", "dtype", "attention_kernel", "recompute", "data_parallel", "zero",
        "tensor_parallel", "sequence_parallel", "pipeline_parallel", "n_microbatch",
        "pipeline_rank", *Decoder.numeric(),
    ]  # fmt: skip
    choices = {one["name"]: one["choices"] for one in section["fields"] if "choices" in one}
    assert choices | {"pipeline_schedule": ["gpipe"]} == OPTIONS


def test_functions_of_the_page_call_what_it_has(catalogue, static_parts):
    """A file of Cohere2MoeForCausalLM with types of MLPs asked for `count`, which it had not."""
    functions = static_parts(catalogue)["functions"]
    with_calls = re.sub(r'"[^"]*"', "", functions.removesuffix("(CALLED);\n"))
    called = set(re.findall(r"(\w+)\(", with_calls))
    assert called <= set(re.match(r"const FUNCTIONS=\(\({([\w,]+)}\)", functions)[1].split(","))
    assert "ceil" in called


CONFIGS = (
    "GPT2LMHeadModel", "LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM",
    "Qwen3ForCausalLM", "Phi3ForCausalLM", "MixtralForCausalLM", "GemmaForCausalLM",
    "Gemma2ForCausalLM", "GPTNeoXForCausalLM", "GPTJForCausalLM", "OPTForCausalLM",
    "BloomForCausalLM", "FalconForCausalLM", "PhiForCausalLM", "StableLmForCausalLM",
    "OlmoForCausalLM", "Olmo2ForCausalLM", "DeepseekV3ForCausalLM", "Qwen3NextForCausalLM",
    "GptOssForCausalLM",
)  # fmt: skip
COMPARED = implementations()["transformers"].classes.keys()
NO_DEFAULT = {
    "DeepseekForCausalLM": {
        "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6,
    },
    "DeepseekV2ForCausalLM": {"num_experts_per_tok": 6},
    "Qwen3MoeForCausalLM": {"mlp_only_layers": []},
    "Dots1ForCausalLM": {
        "n_routed_experts": 128, "n_shared_experts": 2, "num_experts_per_tok": 6,
    },
}  # fmt: skip
"""Sizes that the configs of these classes leave out, and an empty list of layers."""
WARNED = [
    {"model_type": "llama", "attention_dropout": 0.1, "gradient_checkpointing": True},
    {"model_type": "gpt2", "activation_function": "gelu_new", "resid_pdrop": 0.0},
    {"model_type": "phi3", "sliding_window": 2047},
    {"model_type": "gpt_neox", "hidden_size": 5120, "num_hidden_layers": 40,
     "num_attention_heads": 40},
    {"model_type": "mobilellm", "vocab_size": 32000, "hidden_size": 576, "num_hidden_layers": 30,
     "num_attention_heads": 9, "num_key_value_heads": 3},
    {"model_type": "kimi_k2", "num_nextn_predict_layers": 1},
    {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"],
     "text_config": {"model_type": "gemma3_text", "num_hidden_layers": 34, "sliding_window": 1024},
     "vision_config": {"model_type": "siglip_vision_model"}},
    {"model_type": "qwen2_vl", "vision_config": {"depth": 2}, "hidden_size": 64, "vocab_size": 90,
     "intermediate_size": 9, "num_hidden_layers": 2, "num_attention_heads": 2,
     "num_key_value_heads": 2, "max_position_embeddings": 64},
    {"model_type": "smolvlm", "text_config": {"model_type": "llama", "num_hidden_layers": 2},
     "vision_config": {}, "transformers.js_config": {"kv_cache_dtype": {}}},
    {"model_type": "deepseek_vl_v2", "vision_config": {}, "language_config": {
        "model_type": "deepseek_v2", "use_mla": False, "kv_lora_rank": None, "hidden_size": 64,
        "first_k_dense_replace": 1, "intermediate_size": 96, "max_position_embeddings": 64,
        "moe_intermediate_size": 32, "n_routed_experts": 4, "n_shared_experts": 2,
        "num_attention_heads": 4, "num_experts_per_tok": 2, "num_hidden_layers": 3,
        "v_head_dim": 0, "vocab_size": 90}},
    {"model_type": "dbrx", "attn_config": {"clip_qkv": 8, "kv_n_heads": 8}},
]  # fmt: skip
"""Files with keys that are not used, or that do not describe the trained model."""

REFUSED = [
    {"model_type": "cohere2_moe", "mlp_layer_types": ["dense", "sparse"], "num_hidden_layers": 2},
    {"model_type": "mistral", "sliding_window": 1},
]
"""Files that no formula covers: dense layers without a window, and windows of one token."""
ONE_PART = {
    "model_type": "nemotron_h", "hybrid_override_pattern": "ME*-ME*-", "hidden_size": 1024,
    "vocab_size": 131072,
}  # fmt: skip

PASTE = """async (configs) => {
  const calculator = document.getElementById("calculator");
  const found = [];
  for (const config of configs) {
    const answered = new Promise((done) => {
      calculator.addEventListener("answered", done, { once: true });
    });
    const place = document.getElementById("config-text");
    place.value = typeof config === "string" ? config : JSON.stringify(config);
    place.dispatchEvent(new Event("input", { bubbles: true }));
    await answered;
    const rows = [...document.querySelectorAll("#calculator-table tbody tr")];
    found.push({
      said: document.getElementById("config-answer").textContent,
      ends: document.querySelector("#fit-answer [title*=to]")?.title,
      rows: Object.fromEntries(rows.map(({ cells: [name, a] }) => [
        name.textContent, a.textContent,
      ])),
    });
  }
  return found;
}"""


def test_a_config_is_what_python_reads(opened, kinds, with_peaks, tmp_path):
    """Classes with sizes that are not their defaults: every component, digit by digit.

    All 24 with TESTS=all; else those of kinds that the page has.
    """
    tab = opened()
    configs = []
    for i, kind in enumerate([*CONFIGS, *NO_DEFAULT]):
        keys = {field: key for field, key in keys_by_field(kind).items() if "." not in key}
        # The page has what programs give from six periods of layers on.
        n_layer = 24 if kind in ("Qwen3NextForCausalLM", "Gemma2ForCausalLM") else 8
        sizes = {keys[name]: n for name, n in {"n_vocab": 5000 + i, "n_layer": n_layer}.items()}
        config = (
            {"model_type": translations()[kind].model_type, "architectures": [kind]}
            | sizes
            | NO_DEFAULT.get(kind, {})
        )
        if kind_of(decoder_of(Base(kind, kind, Decoder, fields_of(kind, config), {}))) in kinds:
            configs.append(config)
    assert len(configs) == len(CONFIGS) + len(NO_DEFAULT) if ALL else len(configs) > 10
    dtypes = {"torch_dtype": "float32", "dtype": "bfloat16"}  # of which the class reads the latter
    answers = tab.evaluate(PASTE, [one | dtypes for one in configs])
    for config, answer in zip(configs, answers, strict=True):
        (kind,) = config["architectures"]
        base = Base(kind, kind, Decoder, fields_of(kind, config), {})
        a = named_architecture(base)
        setting = Setting(base, {"dtype": "bfloat16"}, {})
        expected = setting.numbers()
        expected |= {name: by_program(setting, q) for name, q in BY_PROGRAM.items()}
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config))
        assert answer["said"] == "".join(note.text for note in read(path).notes), kind
        run = setting.run
        known = [
            formula(Decoder, "peak_training_bytes", *model)
            for model in ((a, run), as_class((a, run), kind, "training"))
            if model and answer["ends"] and Decoder.has_formula_for("peak_training_bytes", a, run)
        ]
        peaks = [max(term.total for term in terms.values()) for terms, holds in known if holds]
        if peaks:
            assert answer["ends"] == f"{peaks[0]:,} to {peaks[-1]:,} bytes", kind
        is_known = kind in COMPARED and with_peaks(a)
        assert len(peaks) == 2 or not is_known, kind
        for name, value in expected.items():
            text = answer["rows"].get(name, "" if name == ACTIVE else None)
            if name == ACTIVE and not text:
                assert value == expected["all parameters"]
            elif name in CHOICES.peaks.values() and not with_peaks(a):
                assert text == "no formula", (kind, name)
            else:
                assert text == shown(value), (kind, name)
    unknown = configs[1] | {"new_key": 3, "hidden_size": 33.5}
    bert = {"model_type": "bert", "architectures": ["BertForMaskedLM"]}
    infinite = json.dumps(configs[0] | {"rope_scaling": {"factor": float("inf")}})
    for config, refused in zip(REFUSED, tab.evaluate(PASTE, REFUSED), strict=True):
        assert "not supported" in refused["said"], config
    pasted = [unknown, bert, infinite, *WARNED, ONE_PART]
    *found, of_one_part = tab.evaluate(PASTE, pasted)
    said = [one["said"] for one in found]
    assert "does not use: new_key" in said[0]
    assert "hidden_size = 33.5: must be a whole number" in said[0]
    assert "BertForMaskedLM is of family encoder" in said[1]
    assert said[2] == answers[0]["said"]
    for config, lines in zip(WARNED, said[3:], strict=True):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config))
        notes = [note.text for note in read(path).notes]
        assert lines.replace('"', "'") == "".join(notes)
    fields = fields_of("NemotronHForCausalLM", ONE_PART)
    a = named_architecture(Base("", "", Decoder, fields, {}))
    assert of_one_part["said"] == ""
    assert of_one_part["rows"]["all parameters"] == shown(total(a.parameters(a)))
    assert "NaN" not in tab.url
    assert tab.messages == []


def test_a_file_of_quantised_weights_is_counted_in_its_dtype_and_says_so(opened):
    llama = {"model_type": "llama", "dtype": "bfloat16", "num_key_value_heads": 8}
    awq = {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}
    tab = opened()
    plain, stored = tab.evaluate(PASTE, [llama, llama | {"quantization_config": awq}])
    assert stored["said"].startswith("quantization_config: not used: the page counts weights in")
    assert stored["rows"] == plain["rows"]


LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 32000,
    "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 8,
    "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 2048,
    "tie_word_embeddings": False, "torch_dtype": "float32",
}  # fmt: skip


def test_a_refused_file_leaves_no_answer(opened):
    """What a person types or pastes sends `input`; `change` comes only when he leaves the field."""
    tab = opened()
    tab.click("summary:has-text('Paste or drop')")
    paste = "#config-text"

    def answers() -> str:
        return "".join(tab.inner_text(f"#calculator {part}").strip() for part in RESULTS)

    tab.fill(paste, json.dumps(LLAMA))
    tab.wait_for_selector('#calculator-answer:has-text("LlamaForCausalLM")')
    of_llama = total_of(tab)
    bert = '{"model_type": "bert", "architectures": ["BertForMaskedLM"]}'
    for refused in (bert, '{"model_type": "llama", ', "<html>", "{}", json.dumps([LLAMA])):
        tab.fill(paste, refused)
        tab.wait_for_selector("#config-answer .reason")
        assert answers() == "", refused
        tab.fill(paste, json.dumps(LLAMA))
        tab.wait_for_selector("#calculator-answer .total")
        assert total_of(tab) == of_llama
    tab.fill(paste, "")
    tab.wait_for_selector('#calculator-answer:has-text("Llama 3 8B")')
    assert tab.inner_text("#config-answer") == ""
    tab.fill(paste, bert)
    tab.wait_for_selector("#config-answer .reason")
    tab.select_option("[data-model]", "gpt-2-124m")
    assert total_of(tab) == "124,439,808"
    assert tab.inner_text("#config-answer") == ""
    assert tab.messages == []


RESULTS = ("#calculator-answer", "#fit-answer", "#calculator-table tbody")


def test_the_link_has_the_device_the_purpose_and_what_a_file_sets(opened):
    tab = opened()
    tab.click("summary:has-text('Paste or drop')")
    tab.fill("#config-text", json.dumps(LLAMA))
    tab.wait_for_selector('#calculator-answer:has-text("LlamaForCausalLM")')
    tab.select_option("#fit-device", label="RTX 4090, 25.4 GB")
    tab.select_option("#fit-purpose", "peak_inference_bytes")
    assert "25.4\xa0GB" in tab.inner_text("#fit-answer")  # the menu's bytes are those of the answer
    tab.fill("[aria-label='n_layer']", "9")
    link = tab.get_attribute("#calculator-link", "href")
    settings = (
        "device=RTX+4090", "for=peak_inference_bytes", "file=LlamaForCausalLM",
        "file.d_model=1024", "file.tied=0", "dtype=float32", "n_layer=9",
    )  # fmt: skip
    for setting in settings:
        assert f"{setting}&" in f"{link}&", setting
    assert tab.url.endswith(link)
    again = opened(link)
    for place in RESULTS:
        assert again.inner_text(place) == tab.inner_text(place)
    for page in (tab, again):  # what the file left to others still follows
        page.fill("[aria-label='d_model']", "2048")
    assert total_of(again) == total_of(tab)
    tab.click("#calculator-link")
    tab.wait_for_selector("#calculator-link:not(:text-is('Link to this answer'))")
    assert "ink" in tab.inner_text("#calculator-link")
    again.evaluate(FOLLOW, "#what-if?file=LlamaForCausalLM&file.n_layer=32&model=config.json")
    assert again.input_value("[aria-label='n_vocab']") == ""  # which only this file lacks
    assert tab.messages == again.messages == []


def test_what_makes_the_model_fit_comes_first(at, models):
    tab = at("#what-if?model=llama-3-8b&batch=1&length=8192&device=H100")
    lines = tab.eval_on_selector_all("#fit-answer ol li", "all => all.map((li) => li.textContent)")
    run = {
        "batch": 1,
        "length": 8192,
        "dtype": "bfloat16",
        "attention_kernel": "flash",
        "foreach": True,
    }
    without, with_it = (
        predicted("peak_training_bytes", models["llama-3-8b"], RunConfig(**run, recompute=how))
        for how in ("none", "full")
    )
    saved = max(t.total for t in without.values()) - max(t.total for t in with_it.values())
    assert any(f"full activation checkpointing: 20.7\u00a0GB less ({saved:,} bytes), and it fits"
               == line for line in lines)  # fmt: skip
    fits = ["and it fits" in line for line in lines]
    assert fits == sorted(fits, reverse=True)


def test_an_answer_is_compared_with_another_and_the_link_has_both(opened):
    """Only here: two models in one table, on a phone too."""
    tab = opened("#what-if?model=gpt-2-124m", width=390)
    assert "difference" not in tab.inner_text("#calculator-table")
    tab.check("#calculator-compare")
    tab.select_option("#calculator [data-model]", "palm-540b")
    cells = (
        "() => [...[...document.querySelectorAll('#calculator-table tbody tr')]"
        ".find((row) => row.cells[0].textContent === 'all parameters').cells]"
        ".slice(1).map((cell) => cell.textContent)"
    )
    palm, gpt = 540_356_474_880, 124_439_808
    numbers = [f"{n:,}" for n in (palm, gpt, palm - gpt)]
    assert tab.evaluate(cells) == numbers
    assert "GPT-2 124M" in tab.inner_text("#calculator-kept")
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    again = opened(tab.evaluate("location.hash"))
    assert again.evaluate(cells) == numbers
    assert again.is_checked("#calculator-compare")
    again.uncheck("#calculator-compare")
    assert again.evaluate(cells) == numbers[:1]
    assert tab.messages == again.messages == []


def test_the_smallest_layouts_fit_and_each_is_a_click(at, bases):
    """Data × tensor × pipeline × checkpointing; none of half as many devices fits."""
    room = mb.model("llama-3-8b").fit("h100").accelerator.bytes
    base = bases["palm-540b"]
    home = "#what-if?model=palm-540b&device=H100"
    tab = at(home)
    texts = [button.inner_text() for button in tab.query_selector_all("#fit-answer button")]
    sizes = [int(text.split(" device")[0].replace(",", "")) for text in texts]
    assert len(texts) == 3
    assert sizes == sorted(sizes)
    for text, n in zip(texts, sizes, strict=True):
        tab.click(f"#fit-answer button:text-is('{text}')")
        answer = tab.inner_text("#fit-answer")
        assert answer.startswith(("Fits: ", "Tight: "))
        assert f" on each of {n:,} devices: " in answer
        named = tab.text_content("#calculator-answer h3")  # what differs from PaLM alone
        assert not {" = 1", " = false"} & {part[part.find(" =") :] for part in named.split(", ")}
        given = dict(parse_qsl(tab.url.split("?", 1)[1]))
        moved = {key: value for key, value in given.items() if key in (*OPTIONS, *OF_RUN)}
        choices = {name: _choice(name, moved.pop(name)) for name in [*moved] if name in OPTIONS}
        model = Setting(base, choices, {name: int(value) for name, value in moved.items()})
        needed = model.peak("peak_training_bytes")
        assert needed is not None
        assert needed <= room
        tab = at(home)
    half = sizes[0] // 2
    for tensor, stages in itertools.product(SHARED, SHARED):
        if tensor * stages > half:
            continue
        data = half // tensor // stages
        zero = 0 if data == 1 or stages > 1 else 3
        for recompute in ("none", "full"):
            ways = {"data_parallel": data, "tensor_parallel": tensor, "pipeline_parallel": stages}
            run = {"dtype": "bfloat16", "attention_kernel": "flash", "recompute": recompute}
            layout = Setting(base, run | {"zero": zero}, ways)
            peak = None if layout.reason else layout.peak("peak_training_bytes")
            assert peak is None or peak > memory_margins().room(room), ways
    tab.fill("[aria-label='number of devices']", "0")
    assert "data_parallel needs a whole number from 1" in tab.inner_text("#calculator-answer")
    assert tab.messages == []


def test_a_class_is_named_where_it_was_compared(at):
    """Mistral's class has a mask for as many tokens as its window: only here would the formula of
    fewer tokens answer for it."""
    for length, is_named in ((4095, True), (4096, False), (8192, False)):
        tab = at(f"#what-if?model=mistral-7b-v0.1&length={length}&device=H100")
        assert ("MistralForCausalLM" in tab.inner_text("#fit-answer p")) == is_named, length
        assert "Tight" in tab.inner_text("#fit-answer p") or length > 4096
        assert tab.messages == []


@pytest.mark.parametrize(
    ("fields", "is_named"),
    [
        ("gated=0", False), ("parallel=1", False), ("query_bias=1", False), ("d_ff=9000", True),
        ("query_bias=1&key_bias=1&value_bias=1&output_bias=1", True),
    ],
)  # fmt: skip
def test_a_class_is_named_for_fields_that_it_can_have(at, fields, is_named):
    """Llama's MLP is gated; of biases of attention its config.json has all or none."""
    tab = at(f"#what-if?model=llama-3-8b&{fields}&length=1024&device=H100")
    answer = tab.inner_text("#fit-answer")
    assert ("as LlamaForCausalLM of transformers computes it" in answer) == is_named
    assert ("The run settings of LlamaForCausalLM" in answer) != is_named


@pytest.mark.parametrize(
    ("model", "nearest"),
    [
        ("bloom-3b&length=8192", ""),
        (
            "llama-3-8b&dtype=bfloat16&attention_kernel=efficient",
            "it has one with dtype: float32 or with attention_kernel: flash or with "
            "attention_kernel: math; ",
        ),
    ],
)
def test_without_a_formula_the_page_names_what_has_one_and_the_command(at, model, nearest):
    """ALiBi, whose class is traced, and efficient attention in 16 bits."""
    tab = at(f"#what-if?model={model}&device=H100")
    assert tab.inner_text("#fit-answer") == (
        f"The page has no formula for the peak with these settings together; {nearest}modelbudget "
        f"{model.partition('&')[0]} predicts or measures it."
    )
    assert tab.messages == []


@pytest.mark.parametrize("model", ["llama-3-8b", "deepseek-v3&attention_kernel=flash"])
def test_inference_is_of_one_device_with_all_of_its_parameters(at, model):
    """Of DeepSeek by flash attention the page has the least of it. Only here many devices train."""
    several = "&data_parallel=8&zero=3&tensor_parallel=2"
    (alone, title), (among, title_among) = (
        (tab.inner_text("#fit-answer"), tab.get_attribute("#fit-answer p", "title"))
        for devices in ("", several)
        for tab in [at(f"#what-if?model={model}{devices}&for=peak_inference_bytes&device=H100")]
    )
    assert title_among == title
    assert among.replace(" on one device", "") == alone
    at("#what-if?for=peak_training_bytes")  # as the other tests leave the one tab


SHARED = (1, 2, 4, 8, 16)
OF_SEVERAL = [name for name in CHOICES.of_several if name in CHOICES.controls]


def _choice(name: str, text: str):
    return next(one for one in OPTIONS[name] if str(one) == text)


def test_devices_share_a_model_in_three_ways_at_once(at, bases):
    settings = {"dtype": "float32", "attention_kernel": "math"}
    tab = at(f"#what-if?model=gpt-2-355m&{urlencode(settings)}")
    for name in OF_SEVERAL:
        assert not tab.is_visible(f"[aria-label='{name}']"), name
    tab.fill("[aria-label='data_parallel']", "2")
    tab.fill("[aria-label='pipeline_parallel']", "4")
    for name in OF_SEVERAL:
        assert tab.is_visible(f"[aria-label='{name}']") == (name != "sequence_parallel"), name
    assert "has no formula for the peak" in tab.inner_text("#fit-answer")
    tab.select_option("[aria-label='zero']", "0")
    assert " on each of 8 devices: " in tab.inner_text("#fit-answer")
    assert tab.inner_text("#fit-replica").strip() == "× 4"
    tab.fill("[aria-label='tensor_parallel']", "3")
    wrong = Setting(bases["gpt-2-355m"], settings, {"tensor_parallel": 3})
    assert wrong.reason in tab.inner_text("#calculator-answer")
    assert tab.messages == []
