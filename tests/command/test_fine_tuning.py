"""Whether a fine-tuning step fits one card, and what would let it fit."""

from collections import Counter

import pytest

import modelbudget as mb
from modelbudget.api.changes import StepOfModel, candidates, changes
from modelbudget.api.chosen_device import ChosenDevice
from modelbudget.api.command.budget_table import of_totals
from modelbudget.api.command.tables_of_fit import of_changes, of_fits
from modelbudget.api.command.text_table import lines
from modelbudget.predict import by_program

QLORA = {
    "weights": "bnb-4bit-double", "adapter": "lora", "adapter_rank": 16, "batch": 4, "length": 2048,
}  # fmt: skip


@pytest.fixture(scope="module")
def fit():
    return mb.model("qwen-3-32b").fit("rtx-4090", QLORA)


def test_each_change_is_a_prediction_of_its_own(fit):
    """Only here: that the bytes of a change are those of the run that its fields make."""
    model = mb.model("qwen-3-32b")
    assert fit.grade == "does not fit"
    for change in (*fit.changes, fit.together):
        run = {**QLORA, **change.fields}
        peaks = {
            phase.name: phase.value
            for phase in model.predict("peak_training_bytes", run).components
        }
        assert change.needed == max(peaks.values())
        assert change.saves == fit.needed - change.needed > 0
    assert [one.needed for one in fit.changes] == sorted(one.needed for one in fit.changes)


def test_the_changes_together_fit_and_the_next_sequence_does_not(fit):
    model, fields = mb.model("qwen-3-32b"), {"recompute": "full", **fit.together.fields}
    assert fit.together.needed <= fit.accelerator.bytes < fit.needed
    for field, largest in fit.together.largest.items():
        for value, fits in ((largest, True), (largest + 16, False)):
            of_one = {"batch": fields["n_microbatch"]} if field == "length" else {}
            run = QLORA | fields | of_one | {field: value}
            assert (model.fit("rtx-4090", run).needed <= fit.accelerator.bytes) == fits
    room = fit.margins.room(fit.accelerator.bytes)
    assert fit.together.largest_with_margins == dict.fromkeys(("batch", "length"), 0)
    assert fit.together.needed > room


def test_the_answer_has_one_screen(fit):
    predicted = mb.model("qwen-3-32b").predictions(["parameters"], QLORA)
    shown = [
        line.text
        for table in (of_fits([fit], predicted), of_changes(fit))
        for line in lines(table, 80)
    ]
    assert len(shown) <= 30
    assert max(map(len, shown)) <= 80
    for table, width in ((of_fits([fit], predicted), 60), (of_changes(fit), 72)):  # whole names
        narrow = [line.text for line in lines(table, width)]
        assert max(map(len, narrow)) <= width
        assert all(any(line.startswith(row[0]) for line in narrow) for row in table.rows)
    assert any(line.endswith("less") for line in shown)
    assert not any(line.endswith("less") for line in narrow)
    text = " ".join(" ".join(shown).split())
    for change in fit.changes:  # whole, to be copied
        (first, *_) = change.fields
        assert f"{first}={str(change.fields[first]).lower()}" in text.replace("= ", "=")
    assert "foreach=false" in text
    assert "targets=given" not in text  # which the run has anyhow


def test_full_training_has_changes_too():
    fit = mb.model("llama-3-8b").fit("h100-80gb", {"batch": 2, "length": 4096})
    assert {"activation checkpointing", "8-bit optimizer states", "LoRA"} <= {
        c.text for c in fit.changes
    }
    assert not fit.together.alters


def test_lora_beside_experts_is_offered_where_there_are_experts():
    """All-linear reaches experts, whose changed weights PEFT computes in each step: 138 GB.

    By hand: 48 layers, rank 8, query 2,048 to 4,096 and value 2,048 to 512, in float32.
    """
    model, text = mb.model("qwen-3-30b-a3b"), "LoRA at query and value"
    offered = {change.text: change for change in model.fit("h100-80gb", training=True).changes}
    assert offered[text].needed < 85 * 10**9 < offered["LoRA"].needed
    gradients = model.predict("gradient_bytes", offered[text].fields).total
    assert gradients == 4 * 48 * 8 * ((2048 + 4096) + (2048 + 512))
    for name in ("llama-3-8b", "bert-large"):
        assert text not in {
            change.text for change in mb.model(name).fit("2GB", training=True).changes
        }


def test_what_helps_only_after_another_change_is_among_those_that_help_together():
    """Checkpointing saves nothing where states are the peak; with LoRA, 8B parameters fit 24 GB.

    Only here: that weights are in 4 bits where they do not fit otherwise, and nowhere else.
    """
    asked = ("llama-3-8b", "rtx-4090"), ("llama-3-8b", "a100"), ("qwen-3-14b", "rtx-4090")
    small, large, in_4_bits = (mb.model(name).fit(card, training=True) for name, card in asked)
    assert "activation checkpointing" not in {change.text for change in small.changes}
    assert small.together.text.split(", ")[-2:] == ["LoRA", "activation checkpointing"]
    assert large.together.text.split(", ")[-1] == "LoRA"
    assert "LoRA" not in (texts := in_4_bits.together.text.split(", "))
    assert {"QLoRA", "activation checkpointing"} <= {*texts}
    assert max(fit.together.needed for fit in (small, in_4_bits)) < 24 * 10**9


@pytest.mark.parametrize(
    ("name", "card", "run"),
    [
        ("llama-3-8b", "rtx-3090", {"batch": 8, "length": 1024}),  # 8-bit states, and then LoRA
        ("llama-3-8b", "24GB", {"batch": 4, "length": 2048}),
        ("llama-3-70b", "h200", {"adapter": "lora", "length": 2048}),  # tight with all of them
    ],
)
def test_no_change_together_is_one_that_the_others_do_without(name, card, run):
    """Eight bits of an optimizer saved 125 MB of an adapter's states, which fitted without."""
    model = mb.model(name)
    fit = model.fit(card, run, training=True)
    room = max(fit.together.needed, fit.margins.room(fit.accelerator.bytes))
    by_text = {change.text: change.fields for change in fit.changes} | {
        candidate.text: candidate.set for candidate in candidates().changes
        if not {"n_microbatch"} & candidate.set.keys()
    }  # fmt: skip
    texts = fit.together.text.split(", ")
    assert len(texts) > 1
    for left_out in texts:
        fields = {k: v for text in texts if text != left_out for k, v in by_text[text].items()}
        assert model.fit(card, {**run, **fields}, training=True).needed > room, left_out


def test_a_trainer_has_the_lines_of_a_run_of_its_policy():
    """The answer of --train had them, that of the same run in a trainer did not."""
    answer = mb.model("phi-4").trainer("dpo", {"adapter": "lora", "length": 20000})
    notes = "\n".join(answer.notes)
    assert "projections=packed, gate_and_up=packed" in notes
    assert "adapter lora: 32,768,000 parameters in float32 are trained" in notes
    assert "length 20,000: more than n_ctx = 16,384, which its positions (RoPE) are for" in notes
    (epsilon,) = mb.model("phi-4").trainer("grpo", {"length": 64}, accelerator="v100").notes[:1]
    assert epsilon.startswith("optimizer adamw: divides by zero where parameters are float16")


@pytest.mark.parametrize("name", ["copy", "qwen-2.5-0.5b", "qwen-2.5-0.5b-instruct", None])
def test_a_reference_that_is_the_policy_without_its_adapter_is_offered_as_a_copy(name):
    """TRL (f2cd577, DPOTrainer) takes a second model where one is given: 988 MB in bfloat16."""
    model, run = mb.model("qwen-2.5-0.5b"), {"length": 64, "dtype": "bfloat16", "adapter": "lora"}
    answer = model.trainer("dpo", run, name)
    offered = [note for note in answer.notes if "`reference=copy` needs 988 MB less" in note]
    assert len(offered) == (name == "qwen-2.5-0.5b")
    assert not [
        n for n in model.trainer("dpo", run | {"adapter": "none"}, name).notes if "copy" in n
    ]


@pytest.mark.parametrize(
    ("name", "adapter", "card", "text"),
    [
        ("dpo", "none", "h100", "activation checkpointing"),
        ("grpo", "lora", "24GB", "one sequence at a time"),
    ],
)
def test_what_lets_the_models_of_a_trainer_fit_is_named(name, adapter, card, text):
    """Each change is typed again; no line said what a trainer's models could do without."""
    run, model = {"batch": 4, "length": 1024, "adapter": adapter}, mb.model("llama-3-8b")
    trained = model.trainer(name, run, accelerator=card)
    assert trained.grade == "does not fit"
    assert text in {change.text for change in trained.changes}
    for change in (*trained.changes, trained.together):
        typed = model.trainer(name, {**run, **change.fields}, accelerator=card)
        assert change.needed == typed.needed == trained.needed - change.saves < trained.needed
    assert trained.together.needed <= trained.accelerator.bytes
    assert trained.together.largest["batch"] >= 4
    assert max(len(line.text) for line in lines(of_changes(trained), 80)) <= 80
    assert trained.as_dict()["together"]["text"] == trained.together.text


@pytest.mark.parametrize(
    ("name", "card", "texts"),
    [
        ("gpt-oss-20b", "rtx-4090", {"weights as released", "weights in 8 bits"}),
        ("falcon-mamba-7b", "rtx-3060", {"weights in 4 bits, bitsandbytes", "weights in 8 bits"}),
        ("zamba-7b", "rtx-3060", set()),  # which of its matrices are quantised is not known
    ],
)
def test_weights_that_would_fit_are_named_for_inference(name, card, texts):
    """Each is typed again: gpt-oss had no way on, and Zamba has one that is refused elsewhere."""
    fit = mb.model(name).fit(card, training=False)
    assert fit.grade == "does not fit"
    assert texts <= {change.text for change in fit.changes}
    assert bool(texts) == bool(fit.changes)
    for change in fit.changes:
        typed = mb.model(name).fit(card, change.fields, training=False)
        assert typed.needed == change.needed < fit.needed
    assert fit.together is None


def test_a_change_that_is_pasted_needs_what_was_offered():
    """With the kernel and the precision of the device: on a T4 they were those of an H100."""
    model, settings = mb.model("qwen-3-8b"), {**QLORA, "adapter_rank": 8}
    offered = {change.text: change for change in model.fit("t4", settings).changes}
    change = offered["no cast to float32"]
    pasted = model.fit("t4", settings | change.fields)
    assert (pasted.needed, pasted.run.attention_kernel) == (change.needed, "math")
    assert offered["autocast"].fields == {"autocast": "float16"}
    assert "adapters in the dtype" not in offered  # float16, in which AdamW divides by zero


def test_a_frozen_base_under_autocast_is_offered_in_bfloat16():
    """As transformers 5 loads it, and trainers' `bf16: true` trains adapters in float32 over it."""
    model, settings = mb.model("qwen-3-14b"), {"adapter": "lora", "autocast": "bfloat16"}
    fit = model.fit("a100-80gb", settings)
    change = next(c for c in fit.changes if c.text == "frozen weights in bfloat16")
    assert model.fit("a100-80gb", settings | change.fields).needed == change.needed < fit.needed


def test_what_fits_needs_no_change():
    fit = mb.model("gpt-2-124m").fit("h100-80gb", {"batch": 1})
    assert fit.grade == "fits"
    assert not fit.changes
    assert fit.as_dict()["together"] is None


def step_of(name, purpose="training"):
    model = mb.model(name)
    return model, StepOfModel(model.with_run, purpose)


def test_every_change_helps_some_run():
    """A change whose fields no run allows, or that never applies, would be dead data."""
    unlike = [
        ("llama-3-8b", {"batch": 2, "dtype": "float32", "adapter": "none"}),
        ("llama-3-8b", {"batch": 2, "adapter": "lora", "adapter_dropout": True}),
        ("llama-3-8b", {"adapter": "lora", "dtype": "float32", "autocast": "bfloat16"}),
        ("qwen-3-32b", {**QLORA, "loss_chunks": 16, "length": 4096, "batch": 1}),
        ("mixtral-8x7b", {"dtype": "bfloat16"}),
    ]
    device = ChosenDevice("1TB").accelerator()
    found = {
        change.text
        for name, run in unlike
        for change in changes(*step_of(name), run, device, room_with_margins=10**12)[0]
    }
    large = *step_of("llama-3-70b", "inference"), {"dtype": "bfloat16"}
    of_inference, together = changes(*large, device, 10**12)
    assert together is None
    assert found | {change.text for change in of_inference} == {
        one.text for one in candidates().changes
    }


@pytest.mark.parametrize(
    ("name", "n_large", "n_small"),
    # Matrices; norms of 4,096 numbers; norms and biases of less.
    [("llama-3-8b", 2 + 32 * 9 + 1, 0), ("gpt-2-124m", 2 + 12 * 6, 12 * 10 + 2)],
)
def test_states_on_the_host(name, n_large, n_small):
    """By hand from torchao's source: two copies, two moments and a step; small tensors stay."""
    model = mb.model(name)
    run = {"optimizer": "adamw-offload", "dtype": "bfloat16", "batch": 1, "length": 512}
    n_bytes, on_device = model.host_bytes(run), model.predict("optimizer_bytes", run).total
    n = model.predict("parameters").total
    assert n_bytes + 2 * on_device == 8 * n + 4 * n_large + 2 * 4 * n_small
    whole = model.predict("optimizer_bytes", run | {"optimizer": "adamw"}).total
    assert on_device < whole / 100
    notes = model.predictions(["optimizer_bytes"], run).notes
    assert any(f"memory of the host: {n_bytes:,} bytes" in line for line in notes)
    assert model.host_bytes(run | {"optimizer": "adamw"}) is None


@pytest.mark.parametrize(
    ("run", "dtype"),
    [
        ({"weights": "bnb-4bit"}, "bfloat16"),
        ({"weights": "bnb-4bit", "adapter": "lora"}, "float32"),
        ({"weights": "bnb-4bit", "expert_weights": "bnb-4bit"}, None),
        ({"weights": "awq"}, None),
    ],
)
def test_experts_that_a_format_leaves_out_are_named(run, dtype):
    """Mixtral in 4 bits has 90 of its 93 GB in the dtype, which transformers 5 does not convert."""
    predictions = mb.model("mixtral-8x7b").predictions(["parameter_bytes"], run)
    lines = [line for line in predictions.notes if "experts are in" in line]
    assert [f"experts are in {dtype}:" in line for line in lines] == [True] * (dtype is not None)


SHOWN = ("parameters", "gradient_bytes", "peak_training_bytes")


def test_totals_count_what_is_trained_with_an_adapter_and_next_to_it():
    """The line of the adapter counted norms in the dtype as half, and none next to a copy."""
    adapter = 32 * 2 * 8 * 2 * 4096
    norms, head = 65 * 4096, 32_000 * 4096
    of_query_and_value = {"adapter": "lora", "adapter_targets": "query value"}
    for others, trained in [
        ({}, adapter),
        ({"trained": "norms"}, adapter + norms),
        ({"modules_to_save": "head"}, adapter + head),
        ({"zero": 3, "data_parallel": 2, "adapter_dtype": "dtype"}, adapter),
    ]:
        found = mb.model("llama-7b").predictions(SHOWN, of_query_and_value | others)
        rows = dict(of_totals([found]).rows)
        assert rows["Trained parameters"].endswith(f"({trained:,})")
        assert any(f"adapter lora: {trained:,} parameters" in note for note in found.notes)
    found = mb.model("llama-7b").predictions(SHOWN, {"trained": "norms"})
    assert dict(of_totals([found]).rows)["Trained parameters"] == f"266K ({norms:,})"


def test_what_trains_everything_is_counted_next_to_an_adapter():
    """Its cell was empty in `compare`, as if it trained nothing."""
    model = mb.model("gpt-2-124m")
    several = [model.predictions(SHOWN, run) for run in ({}, {"adapter": "lora"})]
    rows = {name: cells for name, *cells in of_totals(several).rows}
    assert rows["Trained parameters"] == ["124M (124,439,808)", "1.33M (1,327,104)"]
    assert "Trained parameters" not in dict(of_totals(several[:1]).rows)


def test_what_a_token_uses_of_experts_is_counted_next_to_all_parameters():
    """By hand, of Mixtral: 2 of 8 experts of each layer, router, attention, norms, and tables."""
    of_layer = 2 * 3 * 4096 * 14_336 + 8 * 4096 + 2 * 4096 * (4096 + 1024) + 2 * 4096
    active = 32 * of_layer + 2 * 32_000 * 4096 + 4096
    several = [mb.model(name).predictions(SHOWN) for name in ("mixtral-8x7b", "gpt-2-124m")]
    rows = {name: cells for name, *cells in of_totals(several).rows}
    assert rows["Active parameters, of a token"] == [f"12.9B ({active:,})", ""]
    assert "Active parameters, of a token" not in dict(of_totals(several[1:]).rows)


def test_totals_have_the_peak_of_each_phase():
    """Half a peak was in no other line: casts of all gradients, and foreach's temporary numbers.

    With a master copy 16 bytes a parameter are there when the backward pass ends, and 24 in the
    step.
    """
    model, run = mb.model("llama-7b"), {"master_weights": True, "length": 1}
    rows = dict(of_totals([model.predictions(SHOWN, run)]).rows)
    n_parameters = model.parameters().total
    peaks = [
        int(rows[title].split("(")[1].strip(")").replace(",", "")) / n_parameters
        for title in ("  in the forward and backward pass", "  in the optimizer's step")
    ]
    assert peaks == pytest.approx([16, 24], rel=0.001)
    eight_bit = model.predictions(SHOWN, {"optimizer": "adamw-8bit"})  # of an unknown step
    assert not any(title.startswith(" ") for title, _ in of_totals([eight_bit]).rows)
    compared = of_totals([model.predictions(SHOWN, run), eight_bit])
    (row,) = [row for row in compared.rows if row[0] == "  in the optimizer's step"]
    assert row[1:] == (rows[row[0]], "")


def test_a_program_that_ends_with_a_reason_is_run_once_for_all_quantities(monkeypatch):
    """It ran for its values and again for its reason, and once each quantity did."""
    runs, program = [], by_program.run_program

    def counted(use, *arguments):
        runs.append(use)
        return program(use, *arguments)

    monkeypatch.setattr(by_program, "run_program", counted)
    run = {"adapter": "lora", "adapter_targets": "router", "length": 77}
    answer = mb.model("gpt-2-124m").memory(run)
    assert not answer.breakdowns
    assert Counter(runs) == dict.fromkeys(("training", "inference", "caches"), 1)


def test_matrices_that_a_class_alone_packs_are_named():
    """Our modules have 2,107,392 parameters of rank 8; PEFT prints 1,701,888 of the class."""
    model, run = mb.model("modernbert-base"), {"adapter": "lora", "length": 16}
    notes = model.predictions(["gradient_bytes"], run).notes
    assert any("each of which PEFT adapts: `implementation=transformers`" in note for note in notes)
    of_class = run | {"implementation": "transformers"}
    assert model.predict("gradient_bytes", of_class).total == 4 * 1_701_888
