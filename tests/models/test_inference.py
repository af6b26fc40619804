"""Caches and peaks of inference: formulas against filled caches whose decoding is right."""

import json
import subprocess
import sys

import pytest
import torch
from helpers.inference import cache_is_known, measured_inference, predicted_inference
from helpers.other_families import TINY_MODELS
from helpers.project import ROOT
from helpers.strategies import decoders, decoders_that_run, fitting, runs
from helpers.tiers import examples
from helpers.transformers_models import bart, t5
from hypothesis import HealthCheck, assume, given, settings
from transformers import (
    BartConfig,
    DynamicCache,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    StaticCache,
    T5Config,
)

import modelbudget as mb
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_constraints import run_mistake
from modelbudget.families.decoder import Decoder
from modelbudget.measurement.build import build
from modelbudget.measurement.reference.class_trace import trace_class
from modelbudget.measurement.step.train import train
from modelbudget.measurement.trace.inference import infer
from modelbudget.modules.cache import caching
from modelbudget.modules.initialise import initialise, uninitialised
from modelbudget.predict.by_program import terms_by_program
from modelbudget.sweeps.derive import named_architecture
from modelbudget.sweeps.quantity_names import OF_INFERENCE

SIZES = {"n_vocab": 97, "d_model": 32, "n_layer": 2, "n_head": 4, "n_kv_head": 4, "d_head": 8}
SIZES |= {"d_ff": 48, "n_ctx": 24}
LATENT = {
    "mixers": "mla", "position": "rotary", "kv_lora_rank": 6, "d_nope": 4, "d_rope": 2,
    "d_value": 5,
}  # fmt: skip
KINDS = {
    "multi-head": {},
    "grouped": {"n_kv_head": 2, "position": "rotary", "norm": "rmsnorm"},
    "multi-query": {"n_kv_head": 1, "position": "sinusoidal", "parallel": True},
    "norms of keys": {"n_kv_head": 2, "position": "rotary", "qk_norm": "shared"},
    "gated result": {"n_kv_head": 2, "position": "rotary", "attention_gate": True},
    "sinks": {"sinks": True, "position": "none"},
    "penalties of distance": {"position": "alibi", "n_kv_head": 2},
    "penalties and sinks": {"position": "alibi", "sinks": True},
    "bias of buckets": {"position": "buckets", "n_bucket": 4},
    "window": {"mixers": "sliding_attention", "window": 4, "position": "rotary"},
    "window of one": {"mixers": "sliding_attention", "window": 1},
    "windows between": {"mixers": "sliding_attention attention", "window": 2, "sinks": True},
    "wide window": {"mixers": "sliding_attention", "window": 1000, "n_kv_head": 2},
    "recurrent and attention": {"mixers": "channel_rnn attention", "d_hidden": 3},
    "latent": LATENT,
    "latent without RoPE": LATENT | {"position": "none"},
    "RoPE in some layers": {
        "mixers": "nope_attention sliding_attention",
        "window": 4,
        "position": "rotary",
    },
    "latent and attention": LATENT | {"mixers": "mla attention"},
    "experts": {"mlps": "moe", "n_expert": 3, "n_expert_per_token": 2, "d_expert": 8},
}


@pytest.mark.parametrize("fields", KINDS.values(), ids=KINDS)
def test_a_token_at_a_time_says_what_all_at_once_say(fields):
    a = Decoder(**SIZES | fields)
    torch.manual_seed(0)
    model = build(a, "cpu", "float64").eval()
    initialise(model)
    tokens = torch.randint(a.n_vocab, (2, 7))
    with torch.no_grad():
        at_once = model(tokens)
    with caching(model, 2, 7):
        steps = [model(tokens[:, :3]), *(model(tokens[:, i : i + 1]) for i in range(3, 7))]
    torch.testing.assert_close(torch.cat(steps, dim=1), at_once)
    with torch.no_grad():
        torch.testing.assert_close(model(tokens), at_once)  # nothing is remembered any more


def test_several_tokens_after_others_are_refused():
    model = build(Decoder(**SIZES), "cpu", "float32")
    initialise(model)
    tokens = torch.zeros(1, 2, dtype=torch.long)
    with caching(model, 1, 4):
        model(tokens)
        with pytest.raises(ValueError, match="2 tokens after 2: one at a time"):
            model(tokens)


@pytest.mark.parametrize("fields", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_predicted_caches_are_the_real_ones(fields, dtype):
    a, run = Decoder(**SIZES | fields), RunConfig(batch=3, length=9, dtype=dtype)
    assert predicted_inference(a, run, "cache_bytes") == measured_inference(a, run)["cache_bytes"]


@given(decoders(), runs())
@settings(max_examples=examples(50), suppress_health_check=[*HealthCheck])
def test_predicted_peaks_are_measured(a, run):
    a, run = fitting(a, run)
    if run.attention_kernel != "math":  # other widths are padded to a multiple of 8
        of_latents = {"d_nope": 6, "d_rope": 2, "d_value": 8} if a.kv_lora_rank else {}
        a = a.model_copy(update={"d_head": 8} | of_latents)
    assume(not run_mistake(a, run))
    assume(cache_is_known(a) and terms_by_program("peak_inference_bytes", a, run))
    assert (
        predicted_inference(a, run, "peak_inference_bytes")
        == measured_inference(a, run)["peak_inference_bytes"]
    )


@given(decoders_that_run(peaks=True))
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
def test_predicted_is_measured_component_by_component(model):
    a, run = model
    found = measured_inference(a, run)
    for quantity in OF_INFERENCE:
        assert predicted_inference(a, run, quantity) == {
            n: v for n, v in found[quantity].items() if v
        }, quantity


def test_transformers_keeps_as_much():
    sizes = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48}
    config = LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)
    kept = LlamaForCausalLM(config)(torch.zeros(3, 9, dtype=torch.long)).past_key_values
    n_bytes = sum(t.nbytes for layer in kept.layers for t in (layer.keys, layer.values))
    a = Decoder(**SIZES | KINDS["grouped"])
    assert n_bytes == sum(
        predicted_inference(a, RunConfig(batch=3, length=9), "cache_bytes").values()
    )


def test_transformers_keeps_a_window_as_large():
    """Theirs that grows keeps one token less, for the next comes on top; the fixed one as much."""
    sizes = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48}
    config = MistralConfig(
        **sizes, num_attention_heads=4, num_key_value_heads=2, sliding_window=5, head_dim=8
    )
    a = Decoder(**SIZES | KINDS["grouped"] | {"mixers": "sliding_attention", "window": 5})
    for length in (3, 5, 9):
        fixed = StaticCache(config, max_cache_len=length)
        growing = DynamicCache(config=config)
        for cache in (fixed, growing):
            tokens = torch.zeros(3, length, dtype=torch.long)
            MistralForCausalLM(config)(tokens, past_key_values=cache)
        found, less = (
            sum(t.nbytes for layer in cache.layers for t in (layer.keys, layer.values))
            for cache in (fixed, growing)
        )
        expected = sum(
            predicted_inference(a, RunConfig(batch=3, length=length), "cache_bytes").values()
        )
        assert found == expected
        assert less == expected * min(length, 4) // min(length, 5)


def test_a_cache_alone_needs_no_token():
    a, run = Decoder(**SIZES | KINDS["windows between"]), RunConfig(batch=2, length=2**40)
    model = build(a, "meta", run.dtype)
    found = infer(model, run, {"cache_bytes"})
    assert found["cache_bytes"] == predicted_inference(a, run, "cache_bytes")
    held = sum(t.total for t in a.parameter_bytes(a, run).values())
    held += sum(found["cache_bytes"].values()) + 8 * run.batch * run.length
    assert found["peak_inference_bytes"] == {"setup": held}


def test_published_caches(catalogue):
    """70.3 kB a token and 516 kB in bfloat16 (DeepSeek-V3 and Llama 3.1 405B: Zhao et al. 2025,
    Insights into DeepSeek-V3, Table 1).
    """
    run = RunConfig(length=1, dtype="bfloat16")
    for name, kilobytes in {"deepseek-v3": 70.272, "llama-3.1-405b": 516.096}.items():
        a = named_architecture(catalogue[name])
        assert sum(predicted_inference(a, run, "cache_bytes").values()) == kilobytes * 1000


def test_only_the_last_token_of_a_prompt_is_scored():
    a = Decoder(**SIZES | {"n_vocab": 10_007})
    short, long = (
        measured_inference(a, RunConfig(length=length))["peak_inference_bytes"]
        for length in (2, 24)
    )
    assert long["prefill"] - short["prefill"] < 4 * 24 * a.n_vocab


@pytest.mark.parametrize("fields", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("words", [{}, {"dtype": "bfloat16"}, {"backend": "cpu"}], ids=str)
def test_predicted_peaks_are_the_real_ones(fields, words):
    """Longer and wider than the random ones: other nodes are the largest."""
    a = Decoder(**SIZES | fields)
    for length in (1, 17, 512):
        run = RunConfig(batch=2, length=length, **words)
        a = a.model_copy(update={"n_ctx": length})
        assert (
            predicted_inference(a, run, "peak_inference_bytes")
            == measured_inference(a, run)["peak_inference_bytes"]
        )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_scales_of_an_int8_cache_are_four_bytes(dtype):
    """Only this sees scales that are views of a float32 cache, whose storage stays."""
    a, run = Decoder(**SIZES), RunConfig(batch=2, length=9, dtype=dtype, cache_dtype="int8")
    n_bytes = sum(measured_inference(a, run)["cache_bytes"].values())
    assert n_bytes == 2 * a.n_layer * a.n_kv_head * 2 * 9 * (a.d_head + 4)


WINDOW_OF_ONE = Decoder(**SIZES | KINDS["window of one"])
OTHER_CACHES = {
    "values wider than keys": (TINY_MODELS["T5"].model_copy(update={"d_value": 6}), {}),
    "a window of one token": (WINDOW_OF_ONE, {}),
    "as a class grows": (WINDOW_OF_ONE, {"cache_growth": "concatenated"}),
}


@pytest.mark.parametrize(("a", "settings"), OTHER_CACHES.values(), ids=OTHER_CACHES)
def test_caches_in_other_formats_are_measured(a, settings):
    run = RunConfig(batch=2, length=9, cache_dtype="int8", **settings)
    measured = measured_inference(a, run, {"cache_bytes"})["cache_bytes"]
    assert predicted_inference(a, run, "cache_bytes") == measured


@pytest.mark.parametrize("name", ["grouped", "window", "experts"])
def test_scores_written_out_are_the_real_ones(name):
    """Only here: programs had peaks of runs that the module refused."""
    a = Decoder(**SIZES | KINDS[name])
    run = RunConfig(batch=2, length=9, dtype="bfloat16", attention_kernel="written_out")
    found = measured_inference(a, run)
    for quantity in ("cache_bytes", "flops_decode", "peak_inference_bytes"):
        assert predicted_inference(a, run, quantity) == found[quantity], quantity


WIDE = {
    "an MLP": {"d_ff": 400},
    "experts": {"mlps": "moe", "n_expert": 3, "n_expert_per_token": 2, "d_expert": 200},
    "shared experts": KINDS["experts"] | {"d_shared": 200},
}


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("fields", WIDE.values(), ids=WIDE)
def test_predicted_peaks_of_gelu_written_out_are_the_real_ones(fields, gated):
    """Its factors and its argument are live at once, which is the most where a part is wide."""
    a = Decoder(**SIZES | fields, gated=gated)
    run = RunConfig(batch=2, length=16, dtype="bfloat16", activation_kernel="written_out")
    assert (
        predicted_inference(a, run, "peak_inference_bytes")
        == measured_inference(a, run)["peak_inference_bytes"]
    )


def test_peaks_on_a_real_cpu_are_those_without_storage():
    a, run = Decoder(**SIZES | KINDS["grouped"]), RunConfig(batch=2, length=16, backend="cpu")
    with uninitialised():
        model = build(a, "cpu", run.dtype)
    initialise(model)
    found = infer(model, run, OF_INFERENCE)["peak_inference_bytes"]
    assert (
        found
        == measured_inference(a, run)["peak_inference_bytes"]
        == predicted_inference(a, run, "peak_inference_bytes")
    )


PUBLISHED = {
    "gpt-2-124m": "math", "llama-3-8b": "flash", "mixtral-8x7b": "flash", "palm-540b": "flash",
    "deepseek-v2-lite": "math",
}  # fmt: skip


@pytest.mark.parametrize(("name", "attention"), PUBLISHED.items())
def test_published_peaks(catalogue, name, attention):
    a = named_architecture(catalogue[name])
    run = RunConfig(batch=4, length=1024, dtype="bfloat16", attention_kernel=attention)
    assert (
        predicted_inference(a, run, "peak_inference_bytes")
        == measured_inference(a, run)["peak_inference_bytes"]
    )


ENCODERS = {"bert-large": 512, "albert-xlarge": 512, "roberta-base": 512, "modernbert-base": 2048}


@pytest.mark.parametrize("lm_head", [True, False])
@pytest.mark.parametrize(("name", "length"), ENCODERS.items())
def test_published_encoders_read_all_tokens_in_one_pass(catalogue, name, length, lm_head):
    """Without a head they embed texts, and have no training."""
    a = named_architecture(catalogue[name])
    a = a if lm_head else a.model_copy(update={"lm_head": False, "transform": False})
    kernel = "efficient" if a.window else "flash"
    run = RunConfig(batch=4, length=length, dtype="bfloat16", attention_kernel=kernel)
    measured = measured_inference(a, run, {"peak_inference_bytes", "flops_forward"})
    for quantity, values in measured.items():
        assert predicted_inference(a, run, quantity) == values, quantity
    assert ("head" in measured["flops_forward"]) == lm_head
    assert list(measured["peak_inference_bytes"]) == ["forward"]


CAUSAL = {
    name: TINY_MODELS[name].model_copy(update={"causal": True})
    for name in ("RoBERTa", "ModernBERT")
}
"""With learned positions; with RoPE and windows."""


@pytest.mark.parametrize("name", CAUSAL)
def test_causal_layers_of_an_encoder_token_by_token(name):
    model = build(CAUSAL[name], "cpu", "float64").eval()
    torch.manual_seed(0)
    initialise(model)
    tokens = torch.randint(11, (2, 9))
    with torch.no_grad():
        at_once = model(tokens)
    with caching(model, 2, 9):
        steps = [model(tokens[:, :3]), *map(model, tokens[:, 3:].split(1, 1))]
    torch.testing.assert_close(torch.cat(steps, 1), at_once)


@pytest.mark.parametrize("length", [2, 9])
@pytest.mark.parametrize("name", CAUSAL)
def test_causal_layers_of_an_encoder_keep_a_cache(name, length):
    a, run = CAUSAL[name], RunConfig(batch=2, length=length)
    measured = measured_inference(a, run)
    for quantity in measured.keys() - {"request_bytes"}:
        assert predicted_inference(a, run, quantity) == measured[quantity], quantity
    n_token = sum(min(a.window if i % a.global_every else length, length) for i in range(4))
    assert sum(measured["cache_bytes"].values()) == 4 * 2 * 2 * 8 * n_token


def test_the_decoder_of_modernbert_has_a_cache(tmp_path):
    """By hand as its class: all tokens of 2 layers, and 2 of 4 of each of the others."""
    keys = {"vocab_size": 11, "hidden_size": 8, "num_hidden_layers": 4, "num_attention_heads": 2,
            "intermediate_size": 12, "local_attention": 4, "pad_token_id": 0}  # fmt: skip
    named = {"model_type": "modernbert-decoder", "architectures": ["ModernBertDecoderForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(keys | named))
    run = {"length": 4, "dtype": "float32"}
    ours, of_class = (
        mb.model(tmp_path).predict("cache_bytes", run | {"implementation": name}).total
        for name in ("modelbudget", "transformers")
    )
    assert ours == 4 * 2 * 8 * (2 * 4 + 2 * 2)
    assert of_class > ours  # before it has a next token, layers with a window have the whole prompt


def test_published_encoder_decoders_keep_keys_of_source_and_target(catalogue):
    """24 pairs of keys and values of 512 tokens: 12 layers of a target, and its source."""
    a = named_architecture(catalogue["t5-base"])
    run = RunConfig(batch=4, length=512, dtype="bfloat16", attention_kernel="efficient")
    measured = measured_inference(a, run)
    for quantity, values in measured.items():
        if quantity != "request_bytes":
            assert predicted_inference(a, run, quantity) == values, quantity
    assert sum(measured["cache_bytes"].values()) == 4 * 512 * 2 * 24 * 768 * 2


@pytest.mark.parametrize(("name", "make"), [("T5", t5), ("BART", bart)])
@pytest.mark.parametrize("target_length", [1, 2, 4, 9])
def test_a_target_has_a_length_of_its_own(name, make, target_length):
    """Of the class too: caches, and products of a step and of the last token; caches by hand."""
    a, run = TINY_MODELS[name], RunConfig(batch=2, length=5, target_length=target_length)
    with torch.device("meta"):
        model = make(a)
    found = infer(model, run, {"cache_bytes", "flops_decode"})
    products = ("flops_forward", "flops_backward")
    found |= {q: values for q, values in train(model, run, {*products}).items() if q in products}
    measured = measured_inference(a, run)
    for quantity in measured.keys() - {"request_bytes"}:
        assert predicted_inference(a, run, quantity) == measured[quantity]
    for quantity in ("cache_bytes", "flops_decode", *products):
        total = sum(predicted_inference(a, run, quantity).values())
        assert total == sum(found[quantity].values()), quantity
    n_vector = 2 * 2 * 4 * a.n_decoder_layer  # keys and values of two texts in float32
    assert sum(measured["cache_bytes"].values()) == n_vector * 8 * (5 + target_length)


def test_a_target_needs_an_encoder(catalogue):
    """Whose positions, where they are learned, are as many as those of a source."""
    run = RunConfig(length=5, target_length=11)
    assert run_mistake(TINY_MODELS["T5"], run) is None
    assert run_mistake(TINY_MODELS["BART"], run) == (
        "target_length = 11: position: learned has n_ctx = 10 places; allowed: at most 10"
    )
    for a in (TINY_MODELS["BERT"], named_architecture(catalogue["gpt-2-124m"])):
        assert run_mistake(a, run).startswith("target_length = 11: the family")
    with torch.device("meta"):
        model = GPT2LMHeadModel(GPT2Config(n_layer=1))
    for measure in (train, infer):
        with pytest.raises(ValueError, match="GPT2LMHeadModel is no encoder with a decoder"):
            measure(model, run, {"flops_forward", "flops_decode"})


@pytest.mark.parametrize("name", ["T5", "BART", "the first Transformer"])
def test_a_target_token_by_token_is_that_decoded_at_once(name):
    model = build(TINY_MODELS[name], "cpu", "float64").eval()
    torch.manual_seed(0)
    initialise(model)
    source, target = torch.randint(11, (2, 7)), torch.randint(11, (2, 7))
    with torch.no_grad():
        at_once, memory = model(source, target), model.encode(source)
        with caching(model, 2, 7):
            steps = [model.decode(target[:, [i]], memory, i) for i in range(7)]
    torch.testing.assert_close(torch.cat(steps, 1), at_once)


@pytest.mark.parametrize("config", [T5Config, BartConfig])
def test_a_class_with_an_encoder_keeps_as_much_as_its_modules(config):
    """By hand: of 3 layers of a decoder, keys and values of 9 tokens of source and target."""
    names = ({"d_model": 32, "d_kv": 8, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4}
             if config is T5Config else
             {"d_model": 32, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4,
              "decoder_attention_heads": 4})  # fmt: skip
    kind = config.__name__.removesuffix("Config") + "ForConditionalGeneration"
    run = RunConfig(batch=2, length=9)
    found = trace_class(kind, {"vocab_size": 97, **names}, run, OF_INFERENCE - {"request_bytes"})
    assert not found.missing
    assert found.values["cache_bytes"] == {"cache": 2 * 9 * 2 * 2 * 3 * 32 * 4}
    assert {"prefill", "decode"} <= found.values["peak_inference_bytes"].keys()


def test_the_first_trace_of_a_process_holds_nothing_else():
    """Without Python's search for cycles: what torch imports in an operation would hold tensors."""
    code = (
        "import gc, torch.distributed.tensor; gc.disable()\n"
        "import modelbudget as mb\n"
        "found = mb.model('gpt-2-124m', n_layer=2).measure({}, ['peak_inference_bytes'])\n"
        "assert found.agrees, found.differences\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
