"""Training: formulas of gradients, states, saved activations and operations, against a
step that runs; and the trace against torch's own counters.
"""

from collections import Counter

import pytest
import torch
from helpers.allocations import first_difference, programmed, traced
from helpers.few_layers import of_few_layers
from helpers.strategies import decoders_that_run, decoders_with_known_peaks, smallest_that_run
from helpers.tiers import ALL, examples
from helpers.training import OF_STEP, PREDICTED, measured, predicted, without_zeros
from hypothesis import HealthCheck, given, settings
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.terms import total
from modelbudget.common.errors import InputError
from modelbudget.families.decoder import Decoder
from modelbudget.measurement.build import build
from modelbudget.measurement.step.torch_optimizer import GradientBuffer, gradients
from modelbudget.measurement.step.train import switch
from modelbudget.measurement.trace.backend import backend
from modelbudget.sweeps.derive import named_architecture


@given(decoders_that_run())
@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow])
def test_predicted_is_measured_component_by_component(model):
    a, run = model
    found, expected = measured(a, run, quantities=PREDICTED), predicted(a, run)
    for quantity in PREDICTED:
        assert without_zeros(expected[quantity]) == without_zeros(found[quantity]), quantity


@given(decoders_with_known_peaks())
@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow])
def test_predicted_peaks_are_measured_phase_by_phase(model):
    a, run = model
    assert a.has_formula_for("peak_training_bytes", a, run)
    peaks = measured(a, run)["peak_training_bytes"]
    assert {n: t.total for n, t in a.peak_training_bytes(a, run).items()} == peaks


@given(decoders_with_known_peaks())
@settings(max_examples=examples(50), suppress_health_check=[HealthCheck.too_slow])
def test_peaks_with_autocast_are_measured_phase_by_phase(model):
    a, run = model
    fields = {"mixers": "attention", "mlps": "mlp", "norm_placement": "pre", "d_emb": 0}
    a = a.model_copy(update=fields)
    words = {"autocast": "bfloat16", "dtype": "float32", "backend": "gpu", "length": 3}
    words |= {"master_weights": False, "gradient_casts": "together"}
    run = run.model_copy(update=words)
    peaks = predicted(a, run, ["peak_training_bytes"])["peak_training_bytes"]
    assert peaks == measured(a, run)["peak_training_bytes"]


@pytest.mark.parametrize(
    ("fields", "settings"),
    [
        ({"tied": True}, {"batch": 12, "length": 257}),
        ({"tied": False}, {"batch": 1, "length": 3073}),
        ({"position": "learned"}, {"batch": 1, "length": 3100}),
        ({"d_emb": 8, "tied": True}, {"batch": 8, "length": 400}),
        ({"n_vocab": 5000}, {"dtype": "float32", "attention_kernel": "efficient", "length": 3080}),
    ],
    ids=lambda words: " ".join(map(str, words.values())),
)
def test_what_many_tokens_take_in_an_embeddings_backward_pass(fields, settings):
    """Beyond 3,072 tokens a GPU sorts them; random models have fewer. A GPU read the sizes.

    Closed formula, program and trace, with matrices so large that their gradients are the peak.
    """
    sizes = {"n_vocab": 2000, "d_model": 16, "n_layer": 2, "n_head": 1, "n_kv_head": 1}
    a = Decoder(**sizes, d_head=16, d_ff=8, n_ctx=4000, position="none").model_copy(update=fields)
    run = RunConfig(
        **{"dtype": "bfloat16", "attention_kernel": "flash", "recompute": "full"} | settings
    )
    expected = measured(a, run)["peak_training_bytes"]
    assert {n: t.total for n, t in a.peak_training_bytes(a, run).items()} == expected
    assert not first_difference(programmed(a, run), traced(a, run))


@given(smallest_that_run())
@settings(max_examples=examples(60))
def test_the_smallest_language_models_at_difference_0(model):
    """Half of them with autocast: a squared ReLU is a power, which that computes in float32."""
    a, run = model
    if run.length % 2:
        words = {"autocast": "bfloat16", "dtype": "float32", "backend": "gpu"}
        words |= {"master_weights": False, "gradient_casts": "together"}
        run = run.model_copy(update=words)
    found = measured(a, run)
    for quantity, expected in predicted(a, run, OF_STEP).items():
        assert without_zeros(expected) == without_zeros(found[quantity]), quantity


WIDE = {"n_vocab": 1, "d_model": 40, "n_layer": 2, "n_head": 1, "n_kv_head": 1, "d_head": 4}
WIDE |= {"d_ff": 1, "n_ctx": 16, "parallel": True, "final_norm": False}
ONE_EXPERT = {"mlps": "moe", "n_expert": 3, "n_expert_per_token": 1, "d_expert": 1}
OF_OUTPUT = {"parallel": False, "norm_placement": "output"}
HELD = {"attention_kernel": "written_out", "length": 64}
AT_THE_END = {
    "norm of an output": (OF_OUTPUT, HELD),
    "norm of an output, dropout": (OF_OUTPUT, HELD | {"dropout": True}),
    "norms at both ends": (OF_OUTPUT | {"norm_placement": "both"}, HELD),
    "dropout of a CPU": ({}, {"backend": "cpu", "dropout": True}),
    "experts computed again": (ONE_EXPERT | {"shared_norm": False}, {"recompute": "full"}),
}


@pytest.mark.parametrize(("fields", "settings"), AT_THE_END.values(), ids=AT_THE_END)
def test_a_wide_layer_with_little_inside_takes_most_at_its_end(fields, settings):
    """There forward takes more than backward does."""
    a, run = Decoder(**WIDE | fields), RunConfig(**{"batch": 3, "length": 16} | settings)
    peaks = predicted(a, run, ["peak_training_bytes"])["peak_training_bytes"]
    assert peaks == measured(a, run)["peak_training_bytes"]


BUFFER = {"dtype": "bfloat16", "master_weights": True, "gradient_casts": "accumulated"}
NAMED = {
    "gpt-2-124m": RunConfig(batch=2, dtype="bfloat16", attention_kernel="flash"),
    "llama-3-8b": RunConfig(
        length=2048, dtype="bfloat16", attention_kernel="flash", master_weights=True
    ),
    "mixtral-8x7b": RunConfig(length=512, dtype="bfloat16", attention_kernel="flash"),
    "palm-8b": RunConfig(optimizer="momentum"),
    "llama-3-70b": RunConfig(length=1000, optimizer="sgd", attention_kernel="efficient"),
    "palm-62b": RunConfig(batch=8, length=2048, dtype="bfloat16", attention_kernel="flash"),
    "palm-540b": RunConfig(length=2048, optimizer="sgd"),
    "gpt-2-1558m": RunConfig(batch=2, length=512, optimizer="sgd"),
    "deepseek-v2-lite": RunConfig(dtype="bfloat16", attention_kernel="efficient"),
    "gemma-3-1b": RunConfig(length=1024, dtype="bfloat16", recompute="full"),
    "llama-3.2-1b": RunConfig(length=64, attention_kernel="flash", dropout=True, **BUFFER),
    "qwen-3-0.6b": RunConfig(length=64, recompute="full", foreach=True, **BUFFER),
}
AS_DEEP_AS_THEY_ARE = "gpt-2-124m", "gpt-2-1558m", "llama-3-8b"
"""With TESTS=all the others are, too."""


@pytest.mark.parametrize(("name", "run"), NAMED.items())
def test_published_models_at_difference_0(catalogue, name, run):
    a = named_architecture(catalogue[name])
    if not ALL and name not in AS_DEEP_AS_THEY_ARE:
        a = of_few_layers(a, run)
    found = measured(a, run)
    for quantity, expected in predicted(a, run, OF_STEP).items():
        assert without_zeros(expected) == without_zeros(found[quantity]), quantity


def test_a_fused_optimizer_has_no_temporary_tensors(catalogue):
    """Its step holds parameters, gradients, two moments, and a count of each tensor's steps."""
    a, run = named_architecture(catalogue["gpt-2-124m"]), RunConfig(batch=2, length=64, fused=True)
    peaks = {phase: term.total for phase, term in a.peak_training_bytes(a, run).items()}
    assert peaks == measured(a, run)["peak_training_bytes"]
    texts = 2 * 8 * run.batch * run.length
    resident = 4 * 4 * total(a.parameters(a)) + 4 * total(a.trained_tensors(a)) + texts
    assert peaks["second.optimizer"] == resident


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"foreach": True}, "at most one of the two"),
        ({"optimizer": "sgd"}, "allowed: optimizer: adamw, or fused: false"),
        ({"tensor_parallel": 2}, "allowed: sequence_parallel: true, or gradient_casts"),
    ],
)
def test_a_fused_optimizer_is_torchs_adamw(settings, words):
    with pytest.raises(InputError, match=words):
        RunConfig(fused=True, **settings)


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("name", ["gpt-2-124m", "llama-3-8b"])
def test_gradients_that_are_cast_one_by_one_leave_nothing_in_half_precision(
    catalogue, name, foreach
):
    a = named_architecture(catalogue[name])
    together, one_by_one = (
        RunConfig(
            length=64, dtype="bfloat16", attention_kernel="flash", master_weights=True,
            foreach=foreach, gradient_casts=casts,
        )
        for casts in ("together", "one_by_one")
    )  # fmt: skip
    peaks = {phase: term.total for phase, term in a.peak_training_bytes(a, one_by_one).items()}
    assert peaks == measured(a, one_by_one)["peak_training_bytes"]
    n_parameter = total(a.parameters(a))
    for phase, term in a.peak_training_bytes(a, together).items():
        less = 2 * n_parameter * phase.endswith("optimizer")
        assert peaks[phase] == term.total - less


@pytest.mark.parametrize("name", ["gpt-2-124m", "llama-3-8b"])
def test_megatrons_18_bytes_of_each_parameter(catalogue, name):
    """Weights 2, main_grad 4, main weights 4, two moments 8 (Megatron-LM,
    training/theoretical_memory_usage.py, `num_bytes_per_parameter`). Torch's AdamW has 4 more of
    each tensor, the number of its steps.
    """
    a, run = named_architecture(catalogue[name]), RunConfig(**BUFFER)
    quantities = (a.parameter_bytes, a.gradient_bytes, a.optimizer_bytes)
    counts = 4 * total(a.trained_tensors(a))
    assert sum(total(one(a, run)) for one in quantities) - counts == 18 * total(a.parameters(a))


def test_a_buffer_adds_up_gradients_in_single_precision():
    torch.manual_seed(0)
    layer = nn.Linear(7, 5, dtype=torch.bfloat16)
    expected = {p: torch.zeros_like(p, dtype=torch.float32) for p in layer.parameters()}
    xs = torch.randn(3, 2, 7, dtype=torch.bfloat16)
    for x in xs:
        for p, gradient in zip(
            expected, torch.autograd.grad(layer(x).sum(), [*expected]), strict=True
        ):
            expected[p] += gradient.float()
    buffer = GradientBuffer([*layer.parameters()])
    for x in xs:
        layer(x).sum().backward()
    for p, gradient in expected.items():
        assert p.grad is None
        assert torch.equal(gradients(p)[0], gradient)
    assert torch.equal(buffer.numbers, torch.cat([g.flatten() for g in expected.values()]))
    buffer.clear()
    assert not any(gradients(p)[0].any() for p in expected)


@pytest.mark.parametrize("settings", [{"master_weights": False}, {"optimizer": "sgd"}])
def test_gradients_are_cast_one_by_one_for_master_weights_and_adamw_alone(settings):
    given = {"dtype": "bfloat16", "master_weights": True, "gradient_casts": "one_by_one"}
    with pytest.raises(ValueError, match="needs master_weights: true, optimizer: adamw"):
        RunConfig.model_validate(given | settings)


def test_gradients_are_added_up_for_master_weights_alone():
    with pytest.raises(ValueError, match="needs master_weights: true"):
        RunConfig.model_validate(BUFFER | {"master_weights": False})


SMALL = {"n_vocab": 97, "d_model": 32, "n_layer": 3, "n_head": 4, "n_kv_head": 2, "d_head": 16}
SMALL |= {"d_ff": 48, "n_ctx": 24}
LLAMA = {"norm": "rmsnorm", "position": "rotary", "gated": True, "activation": "silu"}
LATENT = {"mixers": "mla", "position": "rotary", "kv_lora_rank": 8, "q_lora_rank": 6}
LATENT |= {"d_nope": 8, "d_rope": 4, "d_value": 12}
WINDOW = {"mixers": "sliding_attention attention", "window": 4}
EXPERTS = {"mlps": "moe", "n_expert": 4, "n_expert_per_token": 2, "d_expert": 24}
ON_BOTH = {
    "GPT-2, math": ({}, {}),
    "GPT-2, flash": ({}, {"attention_kernel": "flash"}),
    "Llama, math": (LLAMA, {"optimizer": "sgd"}),
    "Llama, flash": (LLAMA, {"attention_kernel": "flash"}),
    "parallel": ({"parallel": True}, {"optimizer": "momentum"}),
    "post-norm, biases": ({"norm_placement": "post", "norm_bias": True, "up_bias": True}, {}),
    "norms of queries": (LLAMA | {"qk_norm": "shared"}, {"attention_kernel": "flash"}),
    "norms of each head": (LLAMA | {"qk_norm": "separate"}, {}),
    "foreach": (LLAMA, {"foreach": True}),
    "fused": (LLAMA, {"fused": True}),
    "double precision": ({}, {"dtype": "float64"}),
    "dropout": (LLAMA, {"dropout": True}),
    "core computed again": (LLAMA, {"recompute": "selective"}),
    "layers computed again": ({}, {"recompute": "full", "dropout": True}),
    "experts": (EXPERTS, {}),
    "latents": (LATENT, {"dropout": True, "recompute": "selective"}),
    "gated result": (LLAMA | {"attention_gate": True}, {"recompute": "selective"}),
    "a window": (LLAMA | WINDOW, {"recompute": "selective"}),
}


@pytest.mark.parametrize(("fields", "settings"), ON_BOTH.values(), ids=ON_BOTH)
def test_a_real_step_and_one_without_storage_hold_the_same(fields, settings):
    """All of it, live bytes and peaks too. Real tokens choose their experts, so there one more
    operation counts the tokens of each, and nothing else differs.
    """
    a = Decoder(**SMALL | fields)
    run = RunConfig(batch=3, length=10, backend="cpu", **settings)
    on_meta, on_cpu = measured(a, run), measured(a, run, "cpu")
    if "moe" in a.mlps:
        for found in (on_meta, on_cpu):
            del found["unsupported_ops"]
    assert on_meta == on_cpu


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("kernel", ["flash", "efficient"])
def test_closed_formulas_have_the_masks_of_fused_kernels(kernel, recompute):
    """The page reads these formulas, the command the program: only here are they of masks."""
    run = RunConfig(
        batch=2, length=16, dtype="bfloat16", attention_kernel=kernel, recompute=recompute
    )
    for window in (4, 15, 16):
        a = Decoder(**SMALL | LLAMA | WINDOW | {"window": window})
        found = measured(a, run)
        assert total(a.activation_bytes(a, run)) == sum(found["activation_bytes"].values())
        peaks = a.peak_training_bytes(a, run)
        assert {phase: peak.total for phase, peak in peaks.items()} == found["peak_training_bytes"]
    assert not a.has_formula_for("activation_bytes", a, run.model_copy(update={"length": 17}))


@pytest.mark.parametrize("attention", ["math", "flash", "efficient"])
@pytest.mark.parametrize("fields", [{}, LLAMA, LLAMA | EXPERTS], ids=["GPT-2", "Llama", "Mixtral"])
def test_operations_are_what_torch_counts(fields, attention):
    a = Decoder(**SMALL | fields)
    run = RunConfig(batch=2, length=8, dtype="bfloat16", attention_kernel=attention)
    model = build(a, "meta", run.dtype)
    tokens = torch.zeros(run.batch, run.length, dtype=torch.long, device="meta")
    counters = {phase: FlopCounterMode(display=False) for phase in ("forward", "backward")}
    with backend("gpu", attention), counters["forward"]:
        loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    with counters["backward"]:
        loss.backward()
    expected = predicted(a, run)
    for phase, counter in counters.items():
        assert sum(expected[f"flops_{phase}"].values()) == counter.get_total_flops()


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("fields", [{}, LLAMA], ids=["GPT-2", "Llama"])
def test_the_peak_is_what_torchs_tracker_finds(fields, recompute):
    a, run = Decoder(**SMALL | fields), RunConfig(batch=2, length=16, recompute=recompute)
    model = build(a, "meta", run.dtype)
    switch(model, run)
    tokens, targets = torch.zeros(2, run.batch, run.length, dtype=torch.long, device="meta")
    tracker = MemTracker()
    tracker.track_external(model, tokens)
    with backend(run.backend, run.attention_kernel), tracker:
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
    theirs = tracker.get_tracker_snapshot("peak")[torch.device("meta")]["Total"]
    assert measured(a, run)["peak_training_bytes"]["first.forward_backward"] == theirs


@pytest.mark.parametrize(("batch", "length"), [(1, 1), (2, 1), (2, 2)])
def test_packed_values_of_single_tokens_are_copied(batch, length):
    """By products, where the layout of one sequence or of several tokens is a view: only here is
    a batch of single tokens packed."""
    a = Decoder(n_vocab=8, d_model=8, n_layer=1, n_head=2, n_kv_head=2, d_head=4, d_ff=8, n_ctx=8)
    run = RunConfig(batch=batch, length=length, projections="packed")
    found = measured(a, run)
    quantities = ("activation_bytes", "peak_training_bytes")
    for quantity, values in predicted(a, run, quantities).items():
        assert without_zeros(values) == without_zeros(found[quantity])


def test_operations_by_hand():
    """6·N·D for the matrices, and the core of attention, which it leaves out."""
    a = Decoder(**SMALL | {"tied": False})
    run = RunConfig(batch=2, length=8)
    of_vectors = a.n_ctx * a.d_model + a.d_model * (2 * a.n_layer + 1)
    in_matrices = sum(t.total for t in a.parameters(a).values()) - of_vectors
    in_matrices -= a.n_vocab * a.d_model  # looking a word up is no product
    core = 4 * run.batch * run.length**2 * a.n_head * a.d_head * a.n_layer
    expected = predicted(a, run)
    tokens = run.batch * run.length
    assert sum(expected["flops_forward"].values()) == 2 * in_matrices * tokens + core
    assert sum(expected["flops_backward"].values()) == 4 * in_matrices * tokens + 2 * core


def test_parameters_without_a_gradient_are_told_apart():
    a = Decoder(**SMALL | EXPERTS | {"router_bias": "selection"})
    run = RunConfig(batch=1, length=4)
    found = measured(a, run, quantities=("gradient_bytes",))
    routers = a.n_layer * a.n_expert * a.d_model * 4
    assert found["gradient_bytes"]["layer.moe.router"] == routers
    assert predicted(a, run)["gradient_bytes"]["layer.moe.router"] == routers


def test_what_no_counter_knows_is_listed():
    a = Decoder(**SMALL)
    run = RunConfig(batch=1, length=4)
    calls = measured(a, run, quantities=("flops_backward",))["unsupported_ops"]
    assert calls["aten.gelu"] == a.n_layer
    assert calls["aten.native_layer_norm"] == 2 * a.n_layer + 1
    assert not {"aten.mm", "aten.bmm"} & calls.keys()
    assert isinstance(calls, dict)
    assert not isinstance(calls, Counter)


def test_korthikanti_and_others_34_bytes():
    """Korthikanti et al. 2022, §4.1: a layer keeps 34·s·b·h + 5·a·s²·b bytes in half precision.

    Flash attention keeps nothing of length², and the same 34: input 2, queries, keys and values
    6, result 2, mask 1 and norm 2 of attention; 19 of the MLP; 2 of its norm. In addition, what the
    paper neglects: 16 bytes of each token's statistics, 4 of each head's and token's softmax, and
    a random state. Scores that torch writes out are in single precision, and so are the queries,
    keys and values that it computes them from: 6 more bytes a state, and 9 for 5 a score.
    """
    b, s, h, heads = 2, 24, 32, 4
    a = Decoder(
        n_vocab=11, n_ctx=s, d_model=h, n_layer=1, n_head=heads, n_kv_head=heads, d_head=h // heads,
        d_ff=4 * h, norm_bias=True, up_bias=True, down_bias=True, query_bias=True,
    )  # fmt: skip
    kept = {}
    for attention in ("flash", "efficient", "math"):
        run = RunConfig(
            batch=b, length=s, dtype="bfloat16", attention_kernel=attention, dropout=True
        )
        values = measured(a, run, quantities=("activation_bytes",))["activation_bytes"]
        kept[attention] = sum(n for name, n in values.items() if name.startswith("layer."))
    assert kept["flash"] == 34 * s * b * h + 16 * s * b + 4 * heads * s * b + 24
    padded = 32
    assert kept["efficient"] == 34 * s * b * h + 16 * s * b + 4 * heads * padded * b + 16
    assert kept["math"] == 40 * s * b * h + 9 * heads * s * s * b + 16 * s * b


def test_recomputation_trades_bytes_for_operations():
    """Selective: inputs of the core are kept, and one of its products comes again (§5). Full: the
    input of each layer, and all of it comes again but its last product.
    """
    a = Decoder(**SMALL)
    runs = {
        what: RunConfig(batch=2, length=16, recompute=what)
        for what in ("none", "selective", "full")
    }
    found = {what: measured(a, run, quantities=("flops_backward",)) for what, run in runs.items()}
    product = 2 * 2 * 16 * 16 * a.n_head * a.d_head * a.n_layer
    backward = {what: sum(values["flops_backward"].values()) for what, values in found.items()}
    assert backward["selective"] - backward["none"] == product
    forward = {
        name: n for name, n in found["none"]["flops_forward"].items() if name.startswith("layer.")
    }
    again = sum(forward.values()) - forward["layer.mlp.down"]
    assert backward["full"] - backward["none"] == again
    kept = {what: values["activation_bytes"] for what, values in found.items()}
    assert kept["full"]["layer"] == 4 * 2 * 16 * a.d_model * a.n_layer
    assert not any(name.startswith("layer.") for name in kept["full"])
    assert "layer" not in kept["selective"]
    heads = a.n_head + 2 * a.n_kv_head
    assert kept["selective"]["layer.attention.core"] == 4 * 2 * 16 * heads * a.d_head * a.n_layer


def test_every_second_product_is_kept_by_hand():
    """Of query, key, value, output, gate, up and down, the first, third, fifth and seventh."""
    a, n = Decoder(**SMALL | LLAMA), 2 * 16
    run = RunConfig(batch=2, length=16, attention_kernel="efficient")
    once, again = (
        measured(a, run.model_copy(update={"recompute": what}), quantities=("flops_backward",))
        for what in ("none", "selective_op")
    )
    of_heads, of_shared = a.n_head * a.d_head, a.n_kv_head * a.d_head
    computed = a.d_model * (of_shared + of_heads + a.d_ff)
    more = sum(again["flops_backward"].values()) - sum(once["flops_backward"].values())
    assert more == a.n_layer * 2 * n * computed
    kept = {
        name: n_bytes / a.n_layer
        for name, n_bytes in again["activation_bytes"].items()
        if name.startswith("layer")
    }
    assert kept == {
        "layer": 4 * n * a.d_model,
        "layer.attention.query": 4 * n * of_heads,
        "layer.attention.value": 4 * n * of_shared,
        "layer.attention.core": 4 * n * of_heads + 4 * 2 * a.n_head * 32 + 2 * 8,
        "layer.mlp.gate": 4 * n * a.d_ff,
        "layer.mlp.down": 4 * n * a.d_model,
    }
