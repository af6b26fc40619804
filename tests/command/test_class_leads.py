"""Whose memory an answer is about: of a class of `transformers` by formula only where compared."""

import json
from importlib import util
from pathlib import Path

import pytest
from helpers.small_classes import COMMON, OTHERS, SMALL

import modelbudget as mb
from modelbudget.api import class_answers
from modelbudget.api.command.budget_table import as_dict, of_components, of_totals
from modelbudget.api.command.tables_of_fit import class_in_room, of_changes, of_fits
from modelbudget.api.predictions import QUANTITIES
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.terms import Term, is_peak, of_model
from modelbudget.common.errors import InputError
from modelbudget.huggingface.offline import transformers
from modelbudget.measurement.reference.class_trace import trace_class
from modelbudget.predict import prediction_or_reason

MEMORY = ("cache_bytes", "peak_inference_bytes", "activation_bytes", "peak_training_bytes")
RUN = {"batch": 2, "length": 12, "dtype": "bfloat16", "foreach": False}
MATH = RUN | {"attention_kernel": "math"}


def file_of(folder: Path, kind: str, config: dict) -> str:
    path = folder / "config.json"
    model_type = getattr(transformers, kind).config_class.model_type
    path.write_text(json.dumps({"architectures": [kind], "model_type": model_type} | config))
    return str(path)


def whole(quantity: str, values: dict[str, int]) -> int:
    return of_model(quantity, {name: Term(value) for name, value in values.items()})


REFUSED = {"BertForMaskedLM": {"cache_bytes"}}
"""Inference without a cache."""


@pytest.mark.parametrize("kind", OTHERS)
def test_the_class_of_a_file_leads_and_the_difference_of_our_modules_is_said(kind, tmp_path):
    model = mb.model(file_of(tmp_path, kind, OTHERS[kind]))
    found = model.memory(MATH)
    quantities = set(MEMORY) - REFUSED.get(kind, set())
    traced = trace_class(kind, OTHERS[kind], RunConfig(**MATH), quantities)
    for quantity in quantities:
        assert found[quantity].source == f"traced: {kind}"
        assert found[quantity].total == whole(quantity, traced.values[quantity])
    assert found.missing.keys() == REFUSED.get(kind, set())
    assert found.whose == f"transformers ({kind})"
    assert f"{kind} of transformers" in found.notes[0]
    assert "modelbudget's own modules have " in found.notes[1]
    assert found["parameter_bytes"].source == "formula"


BART = {
    "vocab_size": 61, "d_model": 32, "encoder_layers": 2, "decoder_layers": 3,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40, "max_position_embeddings": 20, "pad_token_id": 0,
    "decoder_start_token_id": 1,
}  # fmt: skip
STACKS = {
    "BartForConditionalGeneration": BART,
    "BartForCausalLM": BART,
    "T5ForConditionalGeneration": OTHERS["T5ForConditionalGeneration"]
    | {"feed_forward_proj": "gated-gelu", "num_decoder_layers": 3},
    "OPTForCausalLM": {
        "vocab_size": 61, "hidden_size": 32, "ffn_dim": 40, "num_hidden_layers": 2,
        "num_attention_heads": 4, "max_position_embeddings": 20, "word_embed_proj_dim": 32,
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", STACKS)
def test_products_of_a_class_are_those_of_our_components(kind, tmp_path):
    """Of stacks, too: BART's decoder has the paths of OPT's, and is not the only stack."""
    model = mb.model(file_of(tmp_path, kind, STACKS[kind]))
    of_class, ours = (
        {part.name: part.value for part in model.flops(settings)["flops_forward"].components}
        for settings in (
            MATH | {"implementation": name} for name in ("transformers", "modelbudget")
        )
    )
    products = {name: value for name, value in ours.items() if not name.endswith(".core")}
    assert products == {name: of_class.get(name) for name in products}
    assert sum(of_class.values()) == sum(ours.values())


def test_what_was_compared_is_predicted_and_all_else_traced(tmp_path):
    """An answer says which is which, as text and as JSON."""
    kind = "MixtralForCausalLM"
    model = mb.model(file_of(tmp_path, kind, SMALL[kind]))
    found = model.predictions(QUANTITIES, MATH)
    sources = {quantity: one.source for quantity, one in found.breakdowns.items()}
    assert {q for q, source in sources.items() if source != "formula"} == {"peak_inference_bytes"}
    traced = trace_class(kind, SMALL[kind], RunConfig(**MATH), set(MEMORY))
    for quantity in MEMORY:
        assert found[quantity].total == whole(quantity, traced.values[quantity])
    title, totals = of_components(found).title, of_totals([found])
    assert title.endswith("implementation transformers; predicted by formula, or traced where that "
                          "is said")  # fmt: skip
    assert totals.title == f"Totals, for the implementation transformers ({kind})"
    marked = [row[0] for row in totals.rows if row[1].endswith(", traced")]
    assert marked == ["Bytes of peak inference memory"]
    shown = as_dict(found)
    assert shown["implementation"] == f"transformers ({kind})"
    assert shown["quantities"]["peak_inference_bytes"]["source"] == f"traced: {kind}"
    ours = model.predictions(QUANTITIES, MATH | {"implementation": "modelbudget"})
    assert {one.source for one in ours.breakdowns.values()} == {"formula"}
    assert ours["activation_bytes"].total < found["activation_bytes"].total


def test_inference_of_a_class_is_predicted_without_a_trace(tmp_path, monkeypatch):
    """A trace takes four seconds, most of them to import torch and the class."""
    monkeypatch.setattr(class_answers, "_traced", None)
    model = mb.model(file_of(tmp_path, "LlamaForCausalLM", COMMON))
    answer = model.predictions(QUANTITIES, MATH)
    assert {breakdown.source for breakdown in answer.breakdowns.values()} == {"formula"}
    assert answer.run.implementation == "transformers"


WITHOUT_FORMULA = [
    ("Gemma2ForCausalLM", {}, {"length": 4}, "peak_inference_bytes"),
    ("MistralForCausalLM", {"sliding_window": 6}, {}, "peak_inference_bytes"),
    ("MistralForCausalLM", {"sliding_window": 6}, {"recompute": "full"}, "peak_training_bytes"),
    # As many tokens as the window: the class makes a mask.
    (
        "MistralForCausalLM",
        {"sliding_window": 12},
        {"attention_kernel": "flash"},
        "activation_bytes",
    ),
    ("LlamaForCausalLM", {"sliding_window": 6}, {}, "flops_decode"),
    ("Phi3ForCausalLM", {"sliding_window": 6}, {}, "peak_inference_bytes"),
    (
        "Phi3ForCausalLM",
        {
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "long_factor": [1.0] * 4,
                "short_factor": [1.0] * 4,
                "original_max_position_embeddings": 64,
            }
        },
        {},
        "peak_inference_bytes",
    ),
    ("MixtralForCausalLM", {"router_jitter_noise": 0.1}, {}, "activation_bytes"),
    ("LlamaForCausalLM", {}, {"dtype": "float64"}, "activation_bytes"),
    ("LlamaForCausalLM", {}, {"cache_dtype": "fp8"}, "cache_bytes"),
    *(
        (kind, {}, {"dtype": "float32", "autocast": "bfloat16"}, "cache_bytes")
        for kind in ("GPT2LMHeadModel", "Olmo2ForCausalLM")
    ),
    *(
        (kind, {}, {"attention_kernel": "flash"}, "peak_inference_bytes")
        for kind in ("GPT2LMHeadModel", "MixtralForCausalLM")
    ),
    *(
        ("Olmo2ForCausalLM", {}, settings, "peak_inference_bytes")
        for settings in (
            {"attention_kernel": "written_out", "length": 7},
            {"dtype": "float32", "autocast": "bfloat16"},
        )
    ),
]
"""Cases in which no formula is that of the class. Programs of operations must make them exact: each
is then a case of tests/models/test_implementations.py, without a difference.
"""


@pytest.mark.parametrize(("kind", "keys", "settings", "quantity"), WITHOUT_FORMULA)
def test_a_formula_that_is_not_that_of_the_class_does_not_answer_for_it(
    kind, keys, settings, quantity, tmp_path
):
    keys = SMALL[kind] | keys
    run = RUN | settings | {"implementation": "transformers"}
    if kind != "Gemma2ForCausalLM":
        run.setdefault("attention_kernel", "math")
    one = class_answers.as_class(mb.model(file_of(tmp_path, kind, keys)), run)
    traced = trace_class(kind, keys, class_answers.class_run(kind, one.run), {quantity})
    assert class_answers._not_by_formula(one, quantity)
    if not prediction_or_reason.why_not(quantity, one.architecture, one.run):
        terms = prediction_or_reason.predicted(quantity, one.architecture, one.run)
        by_formula = {name: term.total for name, term in terms.items()}
        values = traced.values[quantity]
        if is_peak(quantity):
            assert any(values[phase] != value for phase, value in by_formula.items())
        else:
            assert sum(values.values()) != sum(by_formula.values())


@pytest.mark.parametrize("name", ["palm-540b", "chinchilla-70b", "jurassic-1-jumbo"])
def test_a_model_without_a_class_is_refused_as_one(name):
    with pytest.raises(InputError) as refusal:
        mb.model(name).memory({"implementation": "transformers"})
    (line,) = refusal.value.mistakes
    assert line.startswith(f"{name}: implementation: transformers has no class that is this model")


def test_without_torch_an_answer_is_of_our_modules_and_says_so(tmp_path, monkeypatch):
    path = file_of(tmp_path, "GraniteForCausalLM", COMMON)
    monkeypatch.setattr(
        class_answers, "find_spec", lambda name: name != "torch" and util.find_spec(name)
    )
    found = mb.model(path).memory(RUN)
    ours = mb.model(path).memory(RUN | {"implementation": "modelbudget"})
    assert (found.whose, found.totals()) == ("modelbudget", ours.totals())
    (line,) = found.notes
    assert line.startswith("about modelbudget's own modules, not GraniteForCausalLM: ")
    assert line.endswith("pip install 'modelbudget[measure]'")
    named = mb.model(path).memory(RUN | {"implementation": "transformers"})
    assert "pip install 'modelbudget[measure]'" in named.missing["activation_bytes"]


def test_what_the_class_cannot_be_traced_in_is_answered_for_our_modules(tmp_path):
    path = file_of(tmp_path, "GraniteForCausalLM", COMMON)
    shared = {"zero": 3, "data_parallel": 2}
    found = mb.model(path).predictions(["peak_training_bytes"], RUN | shared)
    assert found.whose == "modelbudget"
    assert "GraniteForCausalLM is traced on one device" in found.notes[0]
    named = {"implementation": "transformers"}
    refused = mb.model(path).predictions(["peak_training_bytes"], RUN | shared | named)
    assert "traced on one device" in refused.missing["peak_training_bytes"]


def test_an_optimizer_that_nothing_steps_here_is_answered_for_our_modules(tmp_path, monkeypatch):
    """All of training was without a value: a trace takes a step. Without one the class answers."""
    monkeypatch.setattr(class_answers, "find_spec", lambda name: name != "bitsandbytes")
    model = mb.model(file_of(tmp_path, "GraniteForCausalLM", COMMON))
    run = RUN | {"optimizer": "adamw-8bit"}
    found = model.predictions(["peak_training_bytes"], run)
    assert found["peak_training_bytes"].total
    assert "GraniteForCausalLM: optimizer = adamw-8bit: bitsandbytes" in found.notes[0]
    assert model.predictions(["peak_inference_bytes"], run).whose != "modelbudget"


def test_notes_about_our_modules_are_not_given_for_the_class(tmp_path):
    caps = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    model = mb.model(file_of(tmp_path, "Gemma2ForCausalLM", SMALL["Gemma2ForCausalLM"] | caps))
    of_file = model.predictions(["activation_bytes"], RUN)
    ours = model.predictions(["activation_bytes"], RUN | {"implementation": "modelbudget"})
    assert of_file["activation_bytes"].source == "formula"
    assert not [line for line in of_file.notes_of_file if "not capped" in line]
    assert [line for line in ours.notes_of_file if "not capped" in line]


def test_a_name_says_that_its_class_may_need_more():
    found = mb.model("gpt-neox-20b").predictions(["parameters"])
    assert found.notes == (
        "about modelbudget's own modules; GPTNeoXForCausalLM may need more: "
        "`implementation=transformers`",
    )


@pytest.mark.parametrize("name", ["smollm-3-3b", "llama-3-8b"])
def test_a_trace_that_is_refused_is_not_offered(name):
    """Only here: over weights of a file the class was offered, which is not traced with them."""
    run = {"adapter": "lora", "weights": "gptq-4bit"}
    (note, *_) = mb.model(name).predictions(["parameters"], run).notes
    assert "ForCausalLM: weights = 'gptq-4bit': " in note
    assert "implementation=" not in note


def test_a_class_with_an_adapter_is_offered_and_leads_where_our_modules_have_none(tmp_path):
    """Whisper has none of ours; PEFT prints its number of trained parameters."""
    (note, *_) = mb.model("llama-3-8b").predictions(["parameters"], {"adapter": "lora"}).notes
    assert note.endswith("`implementation=transformers`")
    (tmp_path / "config.json").write_text(json.dumps(WHISPER_LARGE_V2))
    run = {"adapter": "lora", "adapter_rank": 32, "adapter_targets": "q_proj v_proj"}
    answer = mb.model(tmp_path).predictions(["gradient_bytes"], run)
    assert answer.run.implementation == "transformers"
    assert answer["gradient_bytes"].total == 4 * 15_728_640


WHISPER_LARGE_V2 = {
    "architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper",
    "d_model": 1280, "encoder_layers": 32, "encoder_attention_heads": 20, "encoder_ffn_dim": 5120,
    "decoder_layers": 32, "decoder_attention_heads": 20, "decoder_ffn_dim": 5120,
    "vocab_size": 51865, "decoder_start_token_id": 50258,
}  # fmt: skip
"""PEFT trains 15,728,640 of its parameters: peft/examples/int8_training,
peft_bnb_whisper_large_v2_training.ipynb.
"""


def test_a_compared_class_is_offered():
    (note, *_) = mb.model("llama-3-8b").predictions(["parameters"], {"recompute": "full"}).notes
    assert note.endswith("`implementation=transformers`")


@pytest.mark.parametrize(("name", "length"), [("zamba-7b", 18), ("mamba-130m", 150)])
def test_a_loop_over_more_tokens_than_a_trace_has_is_not_offered(name, length):
    """Only here: Zamba 7B's answer offered a trace of more than 100,000 operations."""
    for n_token, is_offered in ((length, True), (4096, False)):
        (note, *_) = mb.model(name).predictions(["parameters"], {"length": n_token}).notes
        assert ("`implementation=transformers`" in note) == is_offered
        assert ("loops over 4,096 tokens" in note) != is_offered


def test_a_class_that_only_a_trace_answers_fits_or_not_and_its_largest_batch_is_traced(tmp_path):
    """No formula covers the activation; of the class's peak the device is one byte short.

    The largest batch is held against traces of that batch and of the next one.
    """
    gpt2 = SMALL["GPT2LMHeadModel"]
    model = mb.model(file_of(tmp_path, "GPT2LMHeadModel", gpt2 | {"activation_function": "tanh"}))
    run = RUN | {"length": 8, "batch": 1}
    peaks = {n: model.predict("peak_training_bytes", run | {"batch": n}).total for n in (1, 37, 38)}
    enough, short = (model.fit(f"{n}B", run, reserve=0) for n in (peaks[1], peaks[1] - 1))
    assert (enough.needed, enough.grade, short.grade) == (peaks[1], "tight", "does not fit")
    assert (enough.largest["batch"].value, short.largest["batch"].value) == (1, 0)
    assert enough.largest_of_class == {}
    more = model.fit(f"{peaks[38] - 1}B", run, reserve=0)
    assert (more.largest["batch"].value, more.largest["batch"].beyond) == (37, 38)
    with_margins = more.largest_with_margins["batch"].value
    room = more.margins.room(peaks[38] - 1)
    needed = [
        model.predict("peak_training_bytes", run | {"batch": with_margins + n}).total
        for n in (0, 1)
    ]
    assert needed[0] <= room < needed[1]
    assert "no formula covers it" in enough.as_dict()["not_solved"]
    (row,) = enough.rows()
    assert (row["field"], row["largest"], row["grade"]) == ("batch", 1, "tight")
    rows = of_fits([more], model.predictions(["peak_training_bytes"], run)).rows
    assert [row[:2] for row in rows if row[0].startswith("training")] == [
        ("training, transformers", "fits"),
        ("training: largest batch", "37"),
    ]
    opt = mb.model("opt-125m", n_layer=1, d_model=32, n_head=2)
    for name in ("1GB", "apple-16gb"):  # other settings decide there, which the class does not have
        fit = opt.fit(name, run | {"implementation": "transformers"}, reserve=0)
        peak = opt.predict("peak_training_bytes", fit.run)
        assert (fit.needed, peak.source) == (peak.total, "traced: OPTForCausalLM")
        assert fit.largest.keys() == {"batch"}
    with pytest.raises(InputError, match=r"^opt-125m: implementation: transformers has not been"):
        opt.run({"implementation": "transformers"})
    named = mb.model("gpt-2-124m", n_layer=1, d_model=32, n_head=2)
    fit = named.fit("1GB", run | {"implementation": "transformers"}, training=False)
    assert fit.run.implementation == "transformers"
    assert "what fits is solved by formula" in fit.as_dict()["not_solved"]
    bert = mb.model(file_of(tmp_path, "BertForMaskedLM", OTHERS["BertForMaskedLM"]))
    fit = bert.fit("1GB", run, training=False)
    assert fit.needed == bert.predict("peak_inference_bytes", fit.run).total
    assert fit.largest.keys() == {"batch", "length"}


def test_devices_that_share_a_class_are_answered_for_our_modules(tmp_path):
    """Its settings do not divide: the inference of such a file was refused as a mistake."""
    model = mb.model(file_of(tmp_path, "LlamaForCausalLM", COMMON | {"vocab_size": 60}))
    found = model.predictions(["peak_inference_bytes"], RUN | {"tensor_parallel": 2})
    assert found.run.implementation == "modelbudget"
    assert "not LlamaForCausalLM: tensor_parallel = 2" in found.notes[0]
    fits = [model.fit("1GB", RUN, 2, training) for training in (True, False)]
    of_training = model.predictions(["peak_training_bytes"], RUN | fits[0].sharing)
    rows = [row[0] for row in of_fits(fits, of_training).rows]
    assert "training, transformers" in rows
    assert "inference, modelbudget" in rows
    shared = RUN | {"tensor_parallel": 2, "implementation": "transformers"}
    of_class = model.predictions(["peak_inference_bytes", "parameter_bytes"], shared)
    assert not of_class.totals()  # plans of classes divide no embedding
    assert "LlamaForCausalLM is traced on one device" in of_class.missing["peak_inference_bytes"]


def test_an_encoder_and_a_decoder_are_traced_without_the_keys_of_generation(tmp_path):
    """transformers 5 writes the decoder's first token into another file than config.json."""
    sizes = {
        "vocab_size": 99,
        "d_model": 16,
        "d_kv": 4,
        "d_ff": 32,
        "num_layers": 1,
        "num_heads": 4,
    }
    kind = "T5ForConditionalGeneration"
    text = transformers.T5Config(**sizes, architectures=[kind]).to_json_string()
    assert "decoder_start_token_id" not in text
    (tmp_path / "config.json").write_text(text)
    found = mb.model(tmp_path).predictions(["peak_training_bytes"], RUN)
    assert found["peak_training_bytes"].source == "traced: T5ForConditionalGeneration"


def test_a_device_is_compared_with_the_class_that_leads_the_answer(tmp_path):
    """A memory between the peak of our modules, whose formula is solved, and that of the class."""
    model = mb.model(file_of(tmp_path, "GraniteForCausalLM", OTHERS["GraniteForCausalLM"]))
    predicted, fit = model.memory(RUN), model.fit("1GB", RUN, reserve=0)
    of_class = predicted["peak_training_bytes"].total
    assert of_class > fit.needed
    between = model.fit(f"{(of_class + fit.needed) // 2}B", RUN, reserve=0)
    table = of_fits([between], predicted)
    rows = {row[0]: row[1:] for row in table.rows}
    assert table.title.endswith("modelbudget: its own modules, transformers: the class")
    assert between.grade in ("fits", "tight")
    assert rows["training, transformers"][0] == "does not fit"
    assert rows["training, modelbudget"][0] == between.grade
    solved = {row: values[0] for row, values in rows.items() if "largest" in row}
    assert solved == {
        f"training: largest {name}": f"{solution.value:,}"
        for name, solution in between.largest.items()
    }
    assert between.largest_of_class_with_margins == {}  # no formula is that of the class
    assert "now, modelbudget's modules; " in of_changes(between, of_class).title
    assert class_in_room(between, predicted) == {
        "implementation": "transformers (GraniteForCausalLM)", "needed": of_class, "fits": False,
        "grade": "does not fit",
    }  # fmt: skip


def test_the_largest_batch_with_margins_is_that_of_the_class_that_leads(tmp_path):
    """Next to it stood what our modules have room for, which need less."""
    model = mb.model(file_of(tmp_path, "LlamaForCausalLM", SMALL["LlamaForCausalLM"]))
    fit = model.fit("40MB", RUN, reserve=0)
    batch = fit.largest_of_class_with_margins["batch"].value
    needed = [model.memory(RUN | {"batch": n})["peak_training_bytes"].total
              for n in (batch, batch + 1)]  # fmt: skip
    assert needed[0] <= fit.margins.room(40 * 10**6) < needed[1]
    rows = of_fits([fit], model.memory(RUN)).rows
    row = next(row for row in rows if row[0] == "  as the class")  # the batch's comes first
    assert row[2] == f"{batch:,} with margins"


@pytest.mark.parametrize("chosen", [{}, {"implementation": "transformers"}])
def test_offered_changes_are_those_of_the_class_that_leads(tmp_path, chosen):
    """8-bit states were offered at 83 GB of 84.9; pasted back, the class needed 91.6."""
    config = {
        "architectures": ["MistralForCausalLM"], "model_type": "mistral", "hidden_size": 5120,
        "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128, "num_hidden_layers": 40, "vocab_size": 131072, "sliding_window": None,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    model, run = mb.model(tmp_path / "config.json"), {"dtype": "bfloat16", "length": 4096}
    peak = "peak_training_bytes"
    now = model.predictions([peak], run | chosen)[peak].total
    fit = model.fit("h100", run | chosen)
    assert len(fit.changes) >= 2
    for change in (*fit.changes, fit.together):
        again = model.predictions([peak], run | chosen | change.fields)
        assert (again[peak].total, now - again[peak].total) == (change.needed, change.saves)
    assert any("weights" in change.fields for change in fit.changes)
    assert any(change.alters for change in fit.changes)


LORA = {"adapter": "lora", "adapter_rank": 2}


def test_the_class_of_a_file_leads_with_an_adapter_too(tmp_path):
    """Our modules did, which need less; with what no trace has they do, and a line says why."""
    model = mb.model(file_of(tmp_path, "LlamaForCausalLM", COMMON))
    for run, source in [(MATH | LORA, "formula"), (MATH | LORA | {"dtype": "float64"}, "traced")]:
        answer = model.predictions(["gradient_bytes", "peak_training_bytes"], run)
        assert answer.whose == "transformers (LlamaForCausalLM)"
        assert answer["peak_training_bytes"].source.startswith(source)
        assert any("adapter_rank 2, adapter_targets all-linear" in line for line in answer.notes)
    for others in ({"trained": "norms"}, {"modules_to_save": "head"}, {"weights": "eetq-int8"}):
        answer = model.predictions(["peak_training_bytes"], MATH | LORA | others)
        assert answer.whose == "modelbudget"
        assert f"not LlamaForCausalLM: {next(iter(others))} = " in answer.notes[0]


def test_a_part_that_is_trained_alone_is_not_answered_under_the_name_of_a_class(tmp_path):
    """Frozen layers of a class that is checkpointed hold more: a formula of ours had its name."""
    model = mb.model(file_of(tmp_path, "LlamaForCausalLM", COMMON))
    answer = model.predictions(["peak_training_bytes"], MATH | {"trained": "head"})
    assert answer.whose == "modelbudget"
    named = MATH | {"trained": "head", "implementation": "transformers"}
    missing = model.predictions(["peak_training_bytes"], named).missing["peak_training_bytes"]
    assert "only where trained == 'default'" in missing


def test_a_loss_in_chunks_is_not_offered_of_a_class_with_an_adapter(tmp_path):
    """It was ours, in a table of the class; pasted back, the class had no such loss."""
    model = mb.model(file_of(tmp_path, "LlamaForCausalLM", COMMON))
    run = RUN | LORA | {"batch": 16, "length": 64}
    fit = model.fit("1MB", run, reserve=0)
    assert fit.changes
    for change in fit.changes:
        again = model.predictions(["peak_training_bytes"], run | change.fields)
        assert again["peak_training_bytes"].total == change.needed
