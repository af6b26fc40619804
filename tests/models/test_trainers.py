"""Models that a trainer of preferences holds together: DPO and GRPO."""

import pytest
import torch
from helpers.divided import LLAMA, SMALL

import modelbudget as mb
from modelbudget.architecture.run_config import RunConfig
from modelbudget.common.errors import InputError
from modelbudget.families.decoder import Decoder
from modelbudget.measurement.build import build
from modelbudget.measurement.step.arrange import arrange
from modelbudget.measurement.step.loss_of_step import forward
from modelbudget.measurement.step.train import operations, switch
from modelbudget.measurement.trace.module_trace import Trace
from modelbudget.modules.initialise import uninitialised
from modelbudget.predict.of_program import pass_of

RUN = {"batch": 4, "length": 16, "dtype": "bfloat16", "attention_kernel": "math"}
ADAPTER = {"adapter": "lora", "adapter_dtype": "dtype"}
POLICIES = [
    {},
    {"recompute": "full"},
    {"loss_dtype": "float32", "outputs": "kept"},
    ADAPTER,
    ADAPTER | {"weights": "bnb-4bit-double"},
]


@pytest.mark.parametrize("settings", POLICIES, ids=str)
def test_a_reference_runs_while_the_policy_holds_its_activations(settings):
    """Two torch modules, one after the other: only here a pass begins over another's graph."""
    a = Decoder(**SMALL | LLAMA | {"n_layer": 6})
    run = RunConfig(**RUN | settings)
    frozen = run.model_copy(update={"adapter": "none", "recompute": "none"})
    with uninitialised():
        policy, reference = (build(a, "meta", run.dtype) for _ in range(2))
    for model, of_model in ((policy, run), (reference, frozen)):
        switch(model, of_model)
        arrange(model, of_model)
    both = torch.nn.ModuleList([policy, reference])
    trace = Trace(both)
    held = trace.live
    with operations(both, run), trace.watching("forward"):
        tokens, targets = (torch.zeros(4, 16, dtype=torch.long, device="meta") for _ in range(2))
        _left = forward(policy, run, tokens, targets)
        trace.peak = trace.live
        with torch.no_grad():
            forward(reference, frozen, tokens, targets)
    assert pass_of(a, run, leaves_graph=True)[1] + pass_of(a, frozen)[0] == trace.peak - held


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
    step = {"batch": 8, "length": 128, "dtype": "bfloat16"}
    assert of_dpo["policy: its step"] + 3 * 2 * n + 4 * 196 == max(
        part.value for part in model.predict("peak_training_bytes", step).components
    )
    moments = [one.n_bytes for one in found.parts if one.is_moment]
    assert found.needed == 4 * 2 * n + 4 * 196 + max(moments)
    without = model.trainer("dpo", step | {"batch": 4}, reference="none")
    assert "reference: weights" not in parts(without)


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
    assert of_grpo["policy: generation"] > 2 * 8 * 256 * 16 * 2 * 8 * 64  # keys and values
    assert found.grade == "fits"
    fits, too_much = (
        mb.model("llama-3.2-1b").trainer("grpo", run | {"batch": n}, reward="llama-3.2-1b").needed
        for n in (found.largest_batch, found.largest_batch + 1)
    )
    assert fits <= 24 * 10**9 < too_much


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (("ppo", {}), "--trainer ppo: unknown (allowed: dpo, grpo)"),
        (("dpo", {}, None, "gpt-2-124m"), "--reward gpt-2-124m: dpo has no reward model"),
        (("dpo", {"zero": 3, "data_parallel": 2}), "zero = 3: not known with --trainer dpo"),
        (("dpo", {}, "gpt-7"), "gpt-7"),
    ],
)
def test_what_a_trainer_does_not_know_is_one_line(call, line):
    with pytest.raises(InputError) as error:
        mb.model("gpt-2-124m").trainer(*call)
    assert line in str(error.value)
