"""Traces of `transformers` classes against loops by hand, counted on a real CPU."""

from typing import Any, cast

import pytest
import torch
from helpers.by_hand import built, inferred, trained
from helpers.live_bytes import LiveBytes
from helpers.small_classes import OTHERS, SMALL

from modelbudget.architecture.run_config import RunConfig
from modelbudget.measurement.reference.class_trace import trace_class

CLASSES = SMALL | OTHERS
BATCH, LENGTH = 2, 10
INDICES = {"FalconForCausalLM": 8 * 2}
"""Bytes of lists of heads, by which each layer selects: numbers on a device, and not on meta."""
WITHOUT_CACHE = {"T5ForConditionalGeneration", "BertForMaskedLM"}


def run_of(**settings) -> RunConfig:
    return RunConfig(batch=BATCH, length=LENGTH, backend="cpu", **settings)


@pytest.mark.parametrize("kind", CLASSES)
def test_training_needs_what_a_loop_by_hand_needs(kind):
    foreach = list(CLASSES).index(kind) % 2 == 0
    quantities = {"activation_bytes", "peak_training_bytes"}
    traced = trace_class(kind, CLASSES[kind], run_of(foreach=foreach), quantities)
    by_hand = trained(built(kind, CLASSES[kind]), BATCH, LENGTH, foreach)
    assert sum(traced.values["activation_bytes"].values()) == by_hand.pop("saved")
    for phase, n_bytes in traced.values["peak_training_bytes"].items():
        beyond = INDICES.get(kind, 0) if phase.endswith("backward") else 0
        assert n_bytes + beyond == by_hand[phase], phase


@pytest.mark.parametrize("kind", [kind for kind in CLASSES if kind not in WITHOUT_CACHE])
def test_prefill_decode_and_cache_are_those_of_a_loop_by_hand(kind):
    traced = trace_class(kind, CLASSES[kind], run_of(), {"cache_bytes", "peak_inference_bytes"})
    by_hand = inferred(built(kind, CLASSES[kind]), BATCH, LENGTH)
    assert traced.values["cache_bytes"] == {"cache": by_hand.pop("cache")}
    peaks = traced.values["peak_inference_bytes"]
    assert {phase: peaks[phase] for phase in by_hand} == by_hand


def test_dynamic_rope_is_traced_up_to_the_length_of_the_class():
    """It compares the largest position, which has no value on meta; no class above has it."""
    kind, rope = "LlamaForCausalLM", {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    keys = SMALL[kind] | {"rope_parameters": rope, "max_position_embeddings": LENGTH}
    quantities = {"cache_bytes", "peak_inference_bytes", "peak_training_bytes"}
    traced = trace_class(kind, keys, run_of(foreach=True), quantities)
    by_hand = inferred(built(kind, keys), BATCH, LENGTH)
    by_hand |= trained(built(kind, keys), BATCH, LENGTH, foreach=True)
    assert traced.values["cache_bytes"] == {"cache": by_hand["cache"]}
    peaks = traced.values["peak_inference_bytes"] | traced.values["peak_training_bytes"]
    assert {phase: by_hand.get(phase, n_bytes) for phase, n_bytes in peaks.items()} == peaks
    longer = trace_class(kind, keys | {"max_position_embeddings": 9}, run_of(), quantities)
    assert longer.missing.keys() == quantities
    assert all("max_position_embeddings = 9" in why for why in longer.missing.values())


def test_the_loop_of_transformers_holds_the_logits_of_the_token_before():
    model = built("LlamaForCausalLM", SMALL["LlamaForCausalLM"] | {"vocab_size": 5000}).eval()
    tokens = torch.zeros(BATCH, LENGTH, dtype=torch.long)
    live = LiveBytes([*model.parameters(), *model.buffers(), tokens])
    before, at_each = live.now, []
    model.register_forward_pre_hook(lambda *_: at_each.append(live.now - before))
    with live.phase("loop"):
        cast(Any, model).generate(tokens, max_new_tokens=2, do_sample=False)
    keys_and_values = 2 * 2 * BATCH * LENGTH * 16 * 4  # layers, both, tokens, channels, float32
    logits = BATCH * 5000 * 4
    assert logits <= at_each[1] - at_each[0] - keys_and_values < 1.05 * logits


@pytest.mark.parametrize(
    ("kind", "keys", "kernel"),
    [
        ("Gemma3ForCausalLM", {}, "efficient"),
        ("DeepseekV2ForCausalLM", {"qk_nope_head_dim": 8, "qk_rope_head_dim": 8}, "efficient"),
        # Heads of 12 channels, which are no multiple of 16 bytes.
        ("DeepseekV2ForCausalLM", {"qk_nope_head_dim": 8, "qk_rope_head_dim": 4}, "math"),
        # One head of keys for all queries without enable_gqa, which torch takes after 2.13
        # (pytorch/pytorch#191085).
        ("FalconForCausalLM", {}, "math"),
    ],
)
def test_what_flash_attention_does_not_take_runs_as_torch_dispatches_it(kind, keys, kernel):
    """Masks, and values narrower than queries; the memory-efficient kernel keeps no scores."""
    saved = {}
    for setting in ("flash", "math"):
        settings = {"dtype": "bfloat16", "attention_kernel": setting}
        run = RunConfig(batch=2, length=64, **settings)
        traced = trace_class(kind, OTHERS[kind] | keys, run, {"activation_bytes"})
        saved[setting] = sum(traced.values["activation_bytes"].values())
    scores = 2 * 2 * 4 * 64 * 64 * 2  # layers, batch, heads, tokens, tokens, bytes
    if kernel == "efficient":
        assert saved["flash"] < saved["math"] - scores
    else:
        assert saved["flash"] == saved["math"]
