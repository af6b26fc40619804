"""Models that a trainer of preferences holds together: DPO and GRPO."""

from functools import partial

import pytest
import torch
from helpers import preference_losses
from helpers.divided import LLAMA, SMALL

import modelbudget as mb
from modelbudget.architecture.run_config import RunConfig
from modelbudget.common.errors import InputError
from modelbudget.components.preference_loss import Preference
from modelbudget.families.decoder import Decoder
from modelbudget.measurement.build import build
from modelbudget.measurement.step.operations_of_step import operations
from modelbudget.measurement.step.train import microbatches, of_pass, switch, train
from modelbudget.measurement.trace.module_trace import Trace
from modelbudget.modules.initialise import uninitialised
from modelbudget.predict.by_program import pass_of
from modelbudget.quantities.training_step import training_step

RUN = {"batch": 4, "length": 16, "dtype": "bfloat16", "attention_kernel": "math"}
ADAPTER = {"adapter": "lora", "adapter_dtype": "dtype"}
POLICIES = [
    {},
    {"recompute": "full", "n_microbatch": 2},
    {"loss_dtype": "float32", "outputs": "kept"},
    ADAPTER,
    ADAPTER | {"weights": "bnb-4bit-double", "n_microbatch": 2},
    {"dtype": "float32", "autocast": "bfloat16"},
    {"gradient_casts": "accumulated", "master_weights": True, "n_microbatch": 2},
]


TRAINERS = [("dpo", True), ("dpo", False), ("grpo", True)]
N_ANSWER = 9


@pytest.mark.parametrize(("trainer", "has_reference"), TRAINERS, ids=str)
@pytest.mark.parametrize("settings", POLICIES, ids=str)
def test_the_steps_of_a_trainer_are_those_of_torch_modules(settings, trainer, has_reference):
    """Policy and reference are two modules: only here a pass begins over another's graph.

    Their loss follows TRL's functions line by line, and shares nothing with the program. From the
    second microbatch on, the reference's pass is over gradients too.
    """
    a = Decoder(**SMALL | LLAMA | {"n_layer": 6})
    run = RunConfig(**RUN | settings)
    frozen = run.model_copy(update={"adapter": "none", "recompute": "none", "weights": "dtype"})
    is_wide = run.autocast != "none" or run.loss_dtype == "float32"
    with uninitialised():
        policy, reference = (build(a, "meta", run.dtype) for _ in range(2))
    switch(policy, run)
    trace = Trace(policy)
    runs_reference = has_reference and trainer == "dpo"
    if runs_reference:  # its weights are live, too
        trace = Trace(torch.nn.ModuleList([policy, reference]))
    n_bytes = runs_reference * sum(p.nbytes for p in reference.parameters())
    make_pass = partial(pass_of_trainer, trainer, reference if runs_reference else None, is_wide)
    quantities = {"peak_training_bytes"}
    measured = train(policy, run, quantities, trace, make_pass)["peak_training_bytes"]
    preference = Preference(trainer, N_ANSWER, has_reference, is_wide)
    step = training_step(type(a).program(), a, run, True, preference=preference)
    predicted = {phase: n_bytes + peak for phase, peak in step.peaks.items()}
    if runs_reference:
        parameters, states = (sum(x.values()) for x in (step.parameter_bytes, step.optimizer_bytes))
        one, frozen = (alone(r) for r in (run, frozen))
        moment = pass_of(a, one, preference, True)[1] + pass_of(a, frozen, preference)[0]
        if run.n_microbatch > 1:
            moment += sum(step.gradient_bytes.values())
            moment += 2 * 8 * (run.batch - one.batch) * run.length  # others' tokens and masks
        for name, more in (("first", 0), ("second", states)):
            phase, of_reference = f"{name}.forward_backward", n_bytes + parameters + moment + more
            predicted[phase] = max(predicted[phase], of_reference)
    assert predicted == measured


def alone(run):
    """Return the run of a microbatch."""
    return run.model_copy(update={"batch": run.batch // run.n_microbatch, "n_microbatch": 1})


def pass_of_trainer(trainer, reference, is_wide, trace, policy, run):
    """Return a pass of `train`; accelerate casts logits outside of autocast, where losses are."""
    of_step = microbatches(policy, run)
    dtype = torch.float32 if is_wide else getattr(torch, run.dtype)
    sizes = (alone(run).batch, N_ANSWER)[: 2 if trainer == "grpo" else 1]

    def logits_of(tokens, model):
        with operations(model, run):
            if trainer == "dpo":
                logits = model(tokens)
            else:
                logits = model.head(model.states(tokens)[:, -N_ANSWER - 1 :, :])
        return logits.to(dtype)

    def compute(tokens, mask):
        loss = getattr(preference_losses, trainer)
        if reference is None:
            before = torch.zeros(sizes, dtype=dtype, device="meta")
            return loss(logits_of(tokens, policy), tokens, mask, N_ANSWER, before)
        others = partial(logits_of, tokens, reference)
        return loss(logits_of(tokens, policy), tokens, mask, N_ANSWER, others)

    def run_pass():
        peaks = []
        for texts in of_step:
            with trace.watching("forward"):
                loss = compute(*texts)
                if run.n_microbatch > 1:
                    loss = loss / run.n_microbatch
            peaks.append(trace.peak)
            with operations(policy, run, caches=False), trace.watching("backward"):
                loss.backward()
            del loss
            peaks.append(trace.peak)
        return of_pass(trace, policy, {}), max(peaks)

    return run_pass


def parts(found) -> dict[str, int]:
    return {one.name: one.n_bytes for one in found.parts}


def test_dpo_of_all_weights_by_hand():
    """GPT-2: twice its weights, two moments, a counter of each of 196 tensors (q, k, v apart)."""
    n = 124_439_808
    model = mb.model("gpt-2-124m")
    found = model.trainer("dpo", {"batch": 4, "length": 128, "dtype": "bfloat16"})
    of_dpo = parts(found)
    assert of_dpo["policy: weights"] == of_dpo["reference: weights"] == 2 * n
    assert of_dpo["policy: optimizer states"] == 2 * 2 * n + 4 * 196
    # As the head gives them, the reference's, a log-softmax of each, and a copy for entropies.
    logits = 2 * 8 * 50_257 * (128 + 128 + 127 + 127)
    assert logits < of_dpo["policy: its step"] < 2 * logits
    moments = [one.n_bytes for one in found.parts if one.is_moment]
    assert found.needed == 4 * 2 * n + 4 * 196 + max(moments)
    step = {"batch": 4, "length": 128, "dtype": "bfloat16"}
    without = model.trainer("dpo", step, reference="none")
    assert "reference: weights" not in parts(without)


@pytest.mark.parametrize(("name", "n_microbatch"), [("dpo", 1), ("dpo", 2), ("grpo", 1)])
def test_a_buffer_of_gradients_is_there_at_every_moment(name, n_microbatch):
    """The pass of a larger reference, and generation, were counted without it."""
    run = {"batch": 4, "length": 16, "dtype": "bfloat16", "n_microbatch": n_microbatch}
    kept, freed = (
        mb.model("gpt-2-124m").trainer(name, run | casts, reference="gpt-2-1558m")
        for casts in (
            {"master_weights": True, "gradient_casts": "accumulated"},
            {"master_weights": True, "gradient_casts": "together"},
        )
    )
    n, of_kept, of_freed = 124_439_808, parts(kept), parts(freed)
    assert of_kept["policy: gradients"] == 4 * n
    others = {"reference: its pass", "policy: generation"} & {*of_kept}
    freed_later = 2 * n if n_microbatch > 1 else 0  # of the first microbatch, in bfloat16
    assert {of_freed[x] - of_kept[x] for x in others} == {freed_later}


def test_grpo_has_a_reward_model_whose_head_is_one_row():
    """transformers' class of sequences with one label, counted without storage."""
    from transformers import LlamaConfig, LlamaForSequenceClassification

    keys = {"vocab_size": 128_256, "hidden_size": 2048, "num_hidden_layers": 16, "num_labels": 1,
            "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 8192,
            "pad_token_id": 0}  # fmt: skip
    with torch.device("meta"):
        reward = LlamaForSequenceClassification(LlamaConfig(**keys))
    n = sum(p.numel() for p in reward.parameters())
    run = {"batch": 8, "length": 256, "dtype": "bfloat16", "adapter": "lora"}
    found = mb.model("llama-3.2-1b").trainer("grpo", run, reward="llama-3.2-1b", accelerator="24GB")
    of_grpo = parts(found)
    assert of_grpo["reward: weights"] == 2 * n
    assert "reference: weights" not in of_grpo
    text = 2 * 256 * 16 * 2 * 8 * 64  # keys and values of one
    assert of_grpo["policy: generation"] > 8 * text
    assert found.grade == "fits"
    fits, too_much = (
        mb.model("llama-3.2-1b").trainer("grpo", run | {"batch": n}, reward="llama-3.2-1b").needed
        for n in (found.largest_batch, found.largest_batch + 1)
    )
    assert fits <= 24 * 10**9 < too_much
    # Half of the card for vLLM, which has a copy of the weights (1,235,814,400 parameters).
    train = partial(mb.model("llama-3.2-1b").trainer, "grpo", run, accelerator="24GB")
    awake, asleep = (train(engine_share=0.5, engine_sleeps=sleeps) for sleeps in (False, True))
    engine = [one for one in awake.parts if one.name.startswith("engine")]
    weights = 2 * 1_235_814_400
    assert [one.n_bytes for one in engine] == [weights, 12 * 10**9 - weights]
    assert f"at most {(12 * 10**9 - weights) // text:,} texts" in engine[1].note
    step = parts(awake)["policy: its step"]
    assert awake.needed - asleep.needed == step  # the engine's share is the larger moment
    assert "policy: generation" not in parts(asleep)
    quantised = mb.model("llama-3.2-1b").trainer(
        "grpo", {"weights": "bnb-4bit", "adapter": "lora"}, accelerator="24GB", engine_share=0.5
    )
    (copy,) = (part for part in quantised.parts if part.name == "engine: weights")
    assert (copy.n_bytes < weights / 2, copy.note) == (True, "a copy in bnb-4bit")
    shorter = parts(train(answer=64))["policy: its step"]
    assert step - shorter > 3 * 2 * 8 * (255 - 64) * 128_256  # logits, three times


def test_grpo_generates_all_answers_before_its_microbatches():
    """By hand; the steps alone are traced above. Only here texts of other microbatches wait."""
    run, model = {"length": 64, "dtype": "bfloat16"}, mb.model("gpt-2-124m")
    whole, two, of_two = (
        parts(model.trainer("grpo", run | settings, reference="copy"))
        for settings in ({"batch": 8}, {"batch": 8, "n_microbatch": 4}, {"batch": 2})
    )
    assert two["policy: generation"] == whole["policy: generation"]
    answers = 2 * 6 * 63  # their log-probabilities
    others = 2 * 8 * 6 * 64 + answers  # tokens and masks
    assert two["reference: its pass"] == of_two["reference: its pass"] + others
    # Gradients and AdamW's temporary tensors: the same of any batch but for what waits.
    assert two["policy: its step"] - of_two["policy: its step"] == others


def test_replicas_of_a_trainer_have_buckets():
    """DistributedDataParallel: a copy of all gradients, or the gradients themselves (views)."""
    n, model = 124_439_808, mb.model("gpt-2-124m")
    run = {"batch": 2, "length": 64, "dtype": "bfloat16", "data_parallel": 4}
    alone, copied, views = (
        model.trainer("grpo", run | settings)
        for settings in ({}, {"gradient_buckets": "copied"}, {"gradient_buckets": "views"})
    )
    assert alone.needed == model.trainer("grpo", run | {"data_parallel": 1}).needed
    assert copied.needed == alone.needed + 2 * n
    assert views.needed == alone.needed  # whose gradients are all there at the peak


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (("ppo", {}), "`trainer(ppo)`: unknown (allowed: dpo, grpo)"),
        (("dpo", {}, None, "gpt-2-124m"), "`reward=gpt-2-124m`: dpo has no reward model"),
        (("dpo", {"zero": 3, "data_parallel": 2}), "zero = 3: not known with `trainer(dpo)`"),
        (("dpo", {}, "gpt-7"), "gpt-7"),
        (("dpo", {"loss_chunks": 4}), "loss_chunks = 4: not known with `trainer(dpo)`"),
        (("dpo", {}, None, None, "24GB", None, None, 1024), "`answer=1024`: no tokens of a text"),
        (("grpo", {}, None, None, None, None, None, None, 0.3), "`engine_share=0.3`: allowed with"),
        (("grpo", {}, None, None, "1GB", None, None, None, 0.2), "`engine_share=0.2`: too little"),
        (("grpo", {}, None, None, None, None, None, None, None, True), "`engine_sleeps`: of no"),
        (("grpo", {}, None, None, "1GB", None, None, None, 3.0), "a number between 0 and 1"),
    ],
)
def test_what_a_trainer_does_not_know_is_one_line(call, line):
    with pytest.raises(InputError) as error:
        mb.model("gpt-2-124m").trainer(*call)
    assert line in str(error.value)


@pytest.mark.parametrize(
    ("name", "call", "line"),
    [
        ("whisper-tiny", ("dpo",), "`trainer(dpo)`: openai/whisper-tiny: WhisperForCond"),
        ("gpt-2-124m", ("dpo", {}, "whisper-tiny"), "`reference`: openai/whisper-tiny: Whisper"),
        ("gpt-2-124m", ("grpo", {}, None, "whisper-tiny"), "model, whose head one number replaces"),
        ("bert-base", ("dpo",), "`trainer(dpo)`: bert-base: encoder generates no text"),
        ("gpt-2-124m", ("grpo", {}, None, "bert-base"), "`reward`: bert-base: encoder generates"),
        ("mamba-130m", ("grpo",), "logits of the answers alone are known of decoders"),
    ],
)
def test_a_model_that_no_trainer_has_is_named_with_the_reason(name, call, line):
    """A class that is only traced had "no formula covers it", of the policy whoever it was."""
    with pytest.raises(InputError) as error:
        mb.model(name).trainer(*call)
    assert line in str(error.value)


def test_a_trainer_names_whose_passes_it_counts():
    """With the settings of a class it said both: the class, and our own modules."""
    ours, of_class = (
        mb.model("gpt-2-124m").trainer("dpo", {"length": 64, "implementation": name}).note
        for name in ("modelbudget", "transformers")
    )
    assert ours.endswith("all passes are those of our own modules")
    assert of_class.endswith("settings of transformers, which were not compared in a trainer")
