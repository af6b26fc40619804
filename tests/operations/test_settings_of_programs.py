"""Settings that random decoders do not have, each against the trace of its torch module."""

import pytest
from helpers.allocations import first_difference, programmed, traced
from helpers.catalogue import CATALOGUE
from helpers.strategies import decoders_that_run
from helpers.tiers import examples
from hypothesis import given, settings

from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.terms import total
from modelbudget.components.decoder.decoder_program import program
from modelbudget.families.decoder import Decoder
from modelbudget.measurement.build import build
from modelbudget.measurement.step.train import train
from modelbudget.predict.prediction_or_reason import predicted
from modelbudget.quantities.training_step import training_step
from modelbudget.sweeps.derive import named_architecture

FUSED = {
    "dtype": "bfloat16",
    "master_weights": True,
    "gradient_casts": "accumulated",
    "gradient_accumulation_fusion": True,
}
MATH = {"attention_kernel": "math"}
CPU = {"backend": "cpu"}


def words(text: str, **others: str) -> str:
    """Replace some words of a field."""
    return " ".join(others.get(word, word) for word in text.split())


def with_complex_rope(a, run):
    mixers = words(a.mixers, mla="attention")
    tables = {"rope_tables": "complex", "rope_layout": "token"}
    return {"position": "rotary", "d_rotary": 0, "mixers": mixers}, tables


def with_xielu(a, run):
    return {"activation": "xielu"}, {"activation_kernel": "fused"}


def with_further_tokens(a, run):
    position = a.position if a.position in ("learned", "sinusoidal", "rotary") else "none"
    fields = {
        "n_mtp_layer": min(a.n_layer, 2),
        "position": position,
        "mixers": words(a.mixers, none="attention", channel_rnn="attention"),
        "mlps": words(a.mlps, none="mlp"),
    }
    plain = {"projections": "separate", "gate_and_up": "separate", "rope_tables": "layer"}
    others = {"expert_kernel": "scattered", "activation_kernel": "fused", "outputs": "freed"}
    return fields, plain | others | {"loss_chunks": 1}


def with_fused_gradients(a, run):
    mixers = words(a.mixers, mla="attention", channel_rnn="attention")
    fields = {"d_emb": 0, "mixers": mixers, "mlps": words(a.mlps, moe="mlp")}
    return fields, FUSED | {"backend": "gpu", "expert_kernel": "scattered"}


def with_a_mask_of_fused_kernels(a, run):
    """Windows, sinks, ALiBi, and T5's buckets and relative positions, whose bias has a gradient.

    FlashAttention takes no mask: with it, memory-efficient attention computes what has one.
    """
    dtype = "float32" if run.dtype == "float64" else run.dtype
    kernel = "flash" if dtype != "float32" and run.batch == 1 else "efficient"
    sinks, position = a.tied, ("buckets", "alibi", "relative", "none")[run.length % 4]
    if kernel == "flash":
        sinks, position = False, "none"
    full = "attention" if a.n_layer % 2 else "sliding_attention"
    mixers = words(
        a.mixers,
        mla=full,
        channel_rnn=full,
        attention=full,
        nope_attention=full,
        sliding_attention="sliding_attention",
    )
    fields = {"position": position, "sinks": sinks, "window": 2, "d_head": 8, "mixers": mixers}
    setting = {"attention_kernel": kernel, "backend": "gpu", "rope_tables": "layer"}
    return fields, setting | {"dtype": dtype, "length": 5 + run.length, "loss_chunks": 1}


def with_gated_queries(a, run):
    mixers = words(a.mixers, mla="attention", channel_rnn="attention")
    fields = {"attention_gate": True, "gate_per_head": a.tied, "mixers": mixers}
    return fields, {"projections": "gated_query"}


def with_packed_shared_experts(a, run):
    sizes = {"n_expert": 4, "n_expert_per_token": 2, "d_expert": 6, "d_shared": 5}
    fields = {"mlps": "moe mlp", "gated": True, "shared_gate": a.tied, "inner_norm": False}
    kernels = {"gate_and_up": "packed", "activation_kernel": "fused"}
    return fields | sizes, kernels


CHANGES = [
    with_complex_rope,
    with_gated_queries,
    with_packed_shared_experts,
    with_xielu,
    with_further_tokens,
    with_fused_gradients,
    with_a_mask_of_fused_kernels,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@settings(max_examples=examples(10), deadline=None)
@given(drawn=decoders_that_run())
def test_every_allocation_of_a_program_is_the_traces(change, drawn):
    fields, of_run = change(*drawn)
    a, run = (x.model_copy(update=y) for x, y in zip(drawn, (fields, of_run), strict=True))
    assert not first_difference(programmed(a, run), traced(a, run)), (a, run)


@pytest.mark.parametrize(
    ("fields", "of_run"),
    [
        ({"gated": True, "tied": True}, FUSED),
        ({"position": "alibi"}, MATH),
        ({"position": "buckets"}, MATH),
        ({"position": "relative"}, MATH),
        ({"position": "rotary"}, {"rope_tables": "complex", "dtype": "bfloat16"}),
        ({"activation": "xielu"}, {}),
        ({"n_mtp_layer": 2, "position": "rotary"}, {}),
        ({"attention_gate": True, "qk_norm": "shared"}, {"projections": "gated_query"}),
        ({"norm": "rmsnorm"}, CPU | {"attention_kernel": "flash"}),
        ({"norm": "rmsnorm"}, CPU | MATH | {"dropout": True}),
    ],
    ids=str,
)
def test_two_steps_of_a_program_are_the_traces(fields, of_run):
    sizes = {"n_vocab": 30, "d_model": 16, "n_layer": 3, "n_head": 2, "n_kv_head": 1, "d_head": 8}
    a = Decoder.model_validate(sizes | {"d_ff": 24, "n_ctx": 32} | fields)
    run = RunConfig.model_validate({"batch": 2, "length": 8} | of_run)
    step = training_step(program, a, run)
    predicted = {
        "flops_forward": step.flops_forward,
        "flops_backward": step.flops_backward,
        "activation_bytes": step.saved,
        "peak_training_bytes": step.peaks,
    }
    measured = train(build(a, "meta", run.dtype), run, {*predicted})
    for quantity, values in predicted.items():
        assert without_zeros(values) == without_zeros(measured[quantity]), quantity


def without_zeros(values: dict) -> dict:
    return {name: n for name, n in values.items() if n}


def test_replicas_that_add_up_gradients_in_place_need_what_one_device_needs():
    """Against the closed formula of the same run, which was written with devices in mind."""
    a = named_architecture(CATALOGUE["gpt-2-124m"])
    run = RunConfig(batch=2, length=64, data_parallel=8, attention_kernel="math")
    step = training_step(program, a, run)
    terms = predicted("peak_training_bytes", a, run)
    assert step.peaks == {phase: term.total for phase, term in terms.items()}


@pytest.mark.parametrize("quantity", ["gradient_bytes", "flops_forward", "flops_backward"])
def test_what_no_pass_decides_is_known_where_gathered_experts_are_not_computed(quantity):
    """A router whose bias selects experts has no gathered pass: only here are tensors and products
    of a model known of which a step is not."""
    a = named_architecture(CATALOGUE["glm-4.5-air"])
    runs = (RunConfig(batch=2, length=64, expert_kernel=of) for of in ("scattered", "gathered"))
    scattered, gathered = (total(predicted(quantity, a, run)) for run in runs)
    assert scattered == gathered
