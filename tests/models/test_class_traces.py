"""Traces of transformers classes, against other trackers and against a training loop by hand."""

import json
from itertools import accumulate, chain

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed._tools.mem_tracker import MemTracker
from torch.profiler import ProfilerActivity, profile

import modelbudget as mb
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_constraints import run_mistake
from modelbudget.catalogue.named_models import Catalogue
from modelbudget.common.paths import MODELS
from modelbudget.huggingface.construct import config_object
from modelbudget.huggingface.offline import transformers
from modelbudget.huggingface.write_config import config_of
from modelbudget.measurement.build import build_class
from modelbudget.measurement.reference.class_trace import trace_class
from modelbudget.measurement.trace.backend import backend
from modelbudget.sweeps.derive import named_architecture

SMALL = {
    "GPT2LMHeadModel": {
        "n_embd": 64, "n_head": 4, "n_layer": 3, "vocab_size": 512,
        "embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0,
    },
    "LlamaForCausalLM": {"num_key_value_heads": 2},
    "MixtralForCausalLM": {"num_key_value_heads": 2, "num_local_experts": 4},
    "Gemma2ForCausalLM": {"num_key_value_heads": 2, "head_dim": 16},
    "Phi3ForCausalLM": {"num_key_value_heads": 2},
    "Qwen3ForCausalLM": {"num_key_value_heads": 2, "head_dim": 16},
}  # fmt: skip
COMMON = {
    "vocab_size": 512, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
    "num_hidden_layers": 3, "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip
TRAINING = {"activation_bytes", "peak_training_bytes", "gradient_bytes"}
INFERENCE = {"cache_bytes", "peak_inference_bytes"}


WITH_ENCODERS = {
    "BertForMaskedLM": COMMON | {
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    },
    "T5ForConditionalGeneration": {
        "vocab_size": 97, "d_model": 64, "d_kv": 16, "num_layers": 3, "num_decoder_layers": 2,
        "num_heads": 4, "d_ff": 96, "decoder_start_token_id": 0, "dropout_rate": 0.0,
    },
    "BartForConditionalGeneration": {
        "vocab_size": 97, "d_model": 64, "encoder_layers": 3, "decoder_layers": 2,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 96,
        "decoder_ffn_dim": 96, "max_position_embeddings": 64, "dropout": 0.0,
    },
}  # fmt: skip

MASKED = ("MegatronBertForMaskedLM",)
"""An encoder that makes a mask which hides nothing, and checks its values, as RoFormer and BigBird.
"""
WITH_ENCODERS |= dict.fromkeys(MASKED, WITH_ENCODERS["BertForMaskedLM"])


def small(kind: str) -> dict:
    if kind in WITH_ENCODERS:
        return WITH_ENCODERS[kind] | {"attention_dropout": 0.0}
    return SMALL[kind] if kind == "GPT2LMHeadModel" else COMMON | SMALL[kind]


def of_cpu(**settings) -> RunConfig:
    return RunConfig(batch=2, length=48, backend="cpu", **settings)


@pytest.mark.parametrize(("kind", "batch"), [("LlamaForCausalLM", 2), ("Phi3ForCausalLM", 1)])
def test_the_peak_is_what_generate_asks_the_allocator_for(tmp_path, kind, batch):
    """By torch's profiler, with whatever kernel torch chooses: a CPU has one without scores.

    But for a few counters, and for positions of each sequence with their cosines and sines,
    where a class alone makes them once. Only here neither a trace nor a chosen kernel is involved.
    """
    config = config_object(kind, small(kind) | {"intermediate_size": 512, "eos_token_id": None})
    model = getattr(transformers, kind)(config).eval()
    tokens = torch.ones((batch, 256), dtype=torch.int64)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        model.generate(tokens, max_new_tokens=2, do_sample=False)
    events = sorted(profiler.profiler.kineto_results.events(), key=lambda event: event.start_ns())
    peak = max(accumulate(event.nbytes() for event in events if event.name() == "[memory]"))
    peak += sum(x.nbytes for x in chain(model.parameters(), model.buffers()))
    (tmp_path / "config.json").write_text(
        json.dumps(config.to_dict() | {"architectures": [kind], "dtype": "float32"})
    )
    run = {"batch": batch, "length": 256, "backend": "cpu", "implementation": "transformers"}
    answer = mb.model(tmp_path).predictions(["peak_inference_bytes"], run)
    assert answer.run.attention_kernel == "flash"
    of_positions = (batch - 1) * 256 * (8 + 2 * 16 * 4)  # heads of 16 channels
    assert 0 <= peak - answer["peak_inference_bytes"].total - of_positions <= 32 * batch


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("kind", SMALL)
def test_meta_and_a_real_cpu_need_the_same_bytes(kind, recompute):
    run = of_cpu(recompute=recompute)
    meta, cpu = (
        trace_class(kind, small(kind), run, TRAINING | INFERENCE, device)
        for device in ("meta", "cpu")
    )
    assert not meta.missing
    assert meta.values == cpu.values


@pytest.mark.filterwarnings("ignore:Module is None")  # of MemTracker, in encoders
@pytest.mark.parametrize("kind", [*SMALL, *MASKED])
def test_the_bytes_are_those_of_a_training_loop_by_hand(kind):
    """Saved tensors by torch's hooks, and the peak of a step by torch's MemTracker, on a CPU.

    The loop is written out as a user writes it; nothing of the package is replaced.
    """
    assert_those_of_a_loop(kind)


@pytest.mark.filterwarnings("ignore:Module is None")  # of MemTracker, in encoders
@pytest.mark.parametrize("kind", [*SMALL, *WITH_ENCODERS])
def test_a_mask_of_padding_has_the_bytes_of_a_training_loop_by_hand(kind):
    """Of a mask that hides tokens of one text, of which nothing but its size is in a trace."""
    assert_those_of_a_loop(kind, padding=True)


@pytest.mark.parametrize(
    ("kind", "n_masked"), [("BertForMaskedLM", 3), ("BartForConditionalGeneration", 3 + 2)]
)
@pytest.mark.parametrize("length", [32, 33])
def test_each_layer_saves_its_mask_by_hand(kind, n_masked, length):
    """In the dtype, (batch, 1, length, length), with rows of a multiple of 8 numbers.

    Of an encoder with a decoder, in layers of the encoder and in cross-attention.
    """
    run = RunConfig(batch=2, length=length, dtype="bfloat16", attention_kernel="efficient")
    plain, padded = (
        trace_class(kind, small(kind), run.model_copy(update={"padding": has_mask}), TRAINING)
        for has_mask in (False, True)
    )
    more = [sum(x.values["activation_bytes"].values()) for x in (padded, plain)]
    assert more[0] - more[1] == n_masked * 2 * length * (length + -length % 8) * 2


def test_a_mask_of_padding_copies_grouped_heads_by_hand():
    """Of Llama, of whose heads 4 share 2 of keys and values; the kernel with a mask has none."""
    run = RunConfig(batch=2, length=32, dtype="bfloat16", attention_kernel="flash", padding=True)
    plain, padded = (
        trace_class("LlamaForCausalLM", small("LlamaForCausalLM"), x, TRAINING).values
        for x in (run.model_copy(update={"padding": False}), run)
    )
    of_mask, of_heads = 2 * 32 * 32 * 2, 2 * (2 * (4 - 2) * 32 * 16 * 2)
    of_seeds = 8  # of flash: its second seed
    more = sum(padded["activation_bytes"].values()) - sum(plain["activation_bytes"].values())
    assert more == 3 * (of_mask + of_heads - of_seeds)


def test_padding_is_of_classes_alone(catalogue):
    run = RunConfig(length=8, padding=True)
    assert run_mistake(named_architecture(catalogue["gpt-2-124m"]), run).endswith(
        "allowed: false, or true with implementation: transformers, without an adapter"
    )
    settings = {"implementation": "transformers", "length": 64, "dtype": "bfloat16"}
    plain, padded = (
        mb.model("gpt-2-124m", n_layer=2).predictions(["activation_bytes"], settings | more)
        for more in ({}, {"padding": True})
    )
    assert "traced" not in plain.how
    assert padded.how == "traced"


def test_a_check_of_finite_numbers_is_traced():
    """BART clamps states in float16 if some are not: on meta there are none; else it is as wide."""
    half, brain = (
        trace_class(
            "BartForConditionalGeneration",
            small("BartForConditionalGeneration"),
            RunConfig(batch=2, length=32, dtype=dtype, attention_kernel="flash"),
            TRAINING | INFERENCE,
        )
        for dtype in ("float16", "bfloat16")
    )
    assert not half.missing
    for quantity in ("activation_bytes", "cache_bytes", "gradient_bytes"):
        assert half.values[quantity] == brain.values[quantity]


def assert_those_of_a_loop(kind: str, padding: bool = False) -> None:
    model = getattr(transformers, kind)(config_object(kind, small(kind))).train()
    run = of_cpu(attention_kernel="math", optimizer="sgd", padding=padding)
    tokens = torch.zeros(2, 48, dtype=torch.long)
    targets, n = torch.zeros_like(tokens), tokens.numel()
    no_cache = {} if kind.startswith("Bert") else {"use_cache": False}
    mask = {"attention_mask": torch.ones_like(tokens)} if padding else {}
    for hidden in mask.values():
        hidden[1, 40:] = 0
    own = {p.untyped_storage()._cdata for p in model.parameters()}
    saved = {}

    def pack(tensor):
        if (storage := tensor.untyped_storage())._cdata not in own:
            saved[storage._cdata] = storage  # keeps it alive
        return tensor

    def forward():
        n_items = {"num_items_in_batch": n} if kind in SMALL else {}
        return model(tokens, labels=targets, **no_cache, **n_items, **mask).loss

    with backend("cpu", "math"):
        with saved_tensors_hooks(pack, lambda tensor: tensor):
            forward()
        n_saved = sum(storage.nbytes() for storage in saved.values())
        saved.clear()
        tracker = MemTracker()
        tracker.track_external(model, tokens, targets, *mask.values())
        with tracker:
            forward().backward()
    peak = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    traced = trace_class(kind, small(kind), run, TRAINING).values
    assert sum(traced["activation_bytes"].values()) == n_saved
    assert traced["peak_training_bytes"]["first.forward_backward"] == peak


@pytest.mark.parametrize(
    ("name", "sizes", "saved", "peak"),
    [
        ("gpt-2-124m", {}, 1.81, 1.67),
        ("llama-3-8b", {"batch": 8, "length": 2048}, 1.18, None),
    ],
)
def test_a_class_needs_more_than_our_modules(name, sizes, saved, peak):
    """GPT-2's activation function and loss, and Llama's norms and loss, are not fused."""
    from modelbudget.measurement.build import build
    from modelbudget.measurement.step.train import train

    base = Catalogue(MODELS).bases[name]
    a = named_architecture(base)
    run = RunConfig(dtype="bfloat16", attention_kernel="flash", **({"batch": 4} | sizes))
    ours = train(build(a, "meta", run.dtype), run, TRAINING)
    kind = base.transformers
    theirs = trace_class(kind, config_of(kind, a), run, TRAINING).values
    ratio = sum(theirs["activation_bytes"].values()) / sum(ours["activation_bytes"].values())
    assert ratio == pytest.approx(saved, abs=0.005)
    if peak:
        peaks = [max(v["peak_training_bytes"].values()) for v in (theirs, ours)]
        assert peaks[0] / peaks[1] == pytest.approx(peak, abs=0.005)


def test_the_attention_that_a_class_has_is_named():
    run = of_cpu()
    attention = {kind: trace_class(kind, small(kind), run, {"cache_bytes"}).attention
                 for kind in ("GPT2LMHeadModel", "Gemma2ForCausalLM")}  # fmt: skip
    assert attention == {"GPT2LMHeadModel": "sdpa", "Gemma2ForCausalLM": "eager"}


def test_what_was_replaced_is_named():
    run = RunConfig(length=16, dtype="bfloat16", attention_kernel="flash")
    kind = "LlamaForCausalLM"
    found = trace_class(kind, small(kind), run, {"cache_bytes"}).replaced
    for name in ("scaled_dot_product_attention (flash, gpu)", "dropout (gpu)", "packed sequences"):
        assert name in found


def test_an_option_that_a_class_lacks_is_a_reason():
    kind = "LlamaForCausalLM"
    found = trace_class(kind, small(kind), of_cpu(recompute="selective"), TRAINING | INFERENCE)
    assert found.missing.keys() == TRAINING
    assert "no such option; allowed: none, full" in found.missing["activation_bytes"]
    assert found.values.keys() == INFERENCE
    no_dropout = {"vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 1}
    with pytest.raises(ValueError, match="MambaForCausalLM has no dropout; allowed: false"):
        trace_class("MambaForCausalLM", no_dropout, of_cpu(dropout=True), TRAINING)


def test_dropout_of_the_config_is_that_of_the_run():
    """Llama drops probabilities of attention; a GPU keeps a byte of each, and the dropped ones."""
    kind, config = "LlamaForCausalLM", small("LlamaForCausalLM") | {"attention_dropout": 0.5}
    saved = {}
    for dropout in (False, True):
        run = RunConfig(batch=2, length=48, dropout=dropout)
        values = trace_class(kind, config, run, TRAINING).values
        saved[dropout] = sum(values["activation_bytes"].values())
    scores = 3 * 2 * 4 * 48 * 48
    assert saved[True] - saved[False] == scores * (1 + 4)


TINY_BERT = {
    "vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 8, "max_position_embeddings": 9, "pad_token_id": 0,
}  # fmt: skip
WITH_NINE_POSITIONS = {
    "DistilBertForMaskedLM": {
        "vocab_size": 20, "dim": 8, "n_layers": 1, "n_heads": 2, "hidden_dim": 8,
        "max_position_embeddings": 9,
    },
    "RemBertForMaskedLM": TINY_BERT,
    "RobertaForMaskedLM": TINY_BERT | {"pad_token_id": 1, "max_position_embeddings": 11},
    "OPTForCausalLM": TINY_BERT | {"ffn_dim": 8, "word_embed_proj_dim": 8},
    "BartForConditionalGeneration": WITH_ENCODERS["BartForConditionalGeneration"] | {
        "d_model": 8, "max_position_embeddings": 9,
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", WITH_NINE_POSITIONS)
def test_a_text_has_at_most_as_many_tokens_as_its_class_has_positions(kind):
    """The class itself fails at one token more, on a device with values: meta looks up any row."""
    config = WITH_NINE_POSITIONS[kind]
    for length in (9, 10):
        run = RunConfig(length=length, dtype="float32")
        found = trace_class(kind, config, run, TRAINING)
        assert ("allowed: at most 9" in found.missing.get("gradient_bytes", "")) == (length > 9)
    model = build_class(kind, config_object(kind, config), run, "cpu")
    tokens = torch.full((1, 10), 5)
    model(tokens[:, :9])
    with pytest.raises((IndexError, RuntimeError)):
        model(tokens)


def test_an_adapter_that_no_loss_reaches_is_a_reason():
    """Mamba's class multiplies by the matrix of dt_proj itself, next to which PEFT adds."""
    config = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1}
    run = RunConfig(length=4, dtype="bfloat16", adapter="lora", adapter_targets="dt_proj")
    found = trace_class("MambaForCausalLM", config, run, {"gradient_bytes"})
    assert "the loss reaches nothing that is trained" in found.missing["gradient_bytes"]


GEMMA_3N = TINY_BERT | {
    "head_dim": 4, "num_key_value_heads": 1, "vocab_size_per_layer_input": 20,
    "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 0,
}  # fmt: skip
RWKV = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 7}


@pytest.mark.parametrize(
    ("kind", "config", "fields"),
    [
        ("Gemma3nForCausalLM", GEMMA_3N, {"adapter": "lora"}),
        ("Gemma3nForCausalLM", GEMMA_3N, {"adapter": "lora", "input_gradient": True}),
        ("RwkvForCausalLM", RWKV, {}),
    ],
)
def test_a_class_that_writes_into_quantised_matrices_is_refused(kind, config, fields):
    """Gemma 3n clamps AltUp's in training, RWKV divides the last layers' in inference.

    Where the embedding's output requires a gradient Gemma 3n scales a product in place before.
    """
    run = RunConfig(length=4, dtype="bfloat16", weights="bnb-8bit", **fields)
    quantity = "gradient_bytes" if fields else "cache_bytes"
    found = trace_class(kind, config, run, {quantity})
    assert "writes into quantised matrices" in found.missing[quantity]
