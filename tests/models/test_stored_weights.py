"""Quantised weights that are dequantised for each product: frozen, in inference and under LoRA."""

from functools import partial
from types import SimpleNamespace

import pytest
from helpers.allocations import first_difference, programmed, traced
from helpers.strategies import decoders_that_run
from helpers.tiers import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from peft.tuners.lora.dora import DoraLinearLayer
from torch import nn
from torch.nn import functional as F

import modelbudget as mb
from modelbudget.architecture.run_adapter import BITSANDBYTES
from modelbudget.architecture.run_config import HALF, RunConfig
from modelbudget.architecture.run_constraints import run_mistake
from modelbudget.architecture.stored_formats import FORMATS
from modelbudget.architecture.terms import total
from modelbudget.components.decoder.decoder_program import program
from modelbudget.families.decoder import Decoder
from modelbudget.measurement.build import build
from modelbudget.measurement.step.module_settings import arrange
from modelbudget.measurement.trace.inference import infer
from modelbudget.modules.adapters import Adapted
from modelbudget.modules.initialise import uninitialised
from modelbudget.operations.part import NoProgramError
from modelbudget.predict.prediction_or_reason import predicted
from modelbudget.quantities.inference_step import inference

ANY_SHAPE = [
    word
    for word, known in FORMATS.items()
    if not known.format.needs and "linear" in known.library.converts
]


@settings(max_examples=examples(30), deadline=None)
@given(decoders_that_run(), st.sampled_from(ANY_SHAPE), st.booleans(), st.booleans())
def test_every_allocation_with_stored_weights_is_the_traces(
    decoder_and_run, weights, in_dtype, prepares
):
    """Catches a copy of a matrix that lives too long, or is saved from pass to pass."""
    a, run = decoder_and_run
    if "moe" in a.mlps:
        return
    gpu = {"backend": "gpu", "attention_kernel": "math"} if run.backend == "cpu" else {}
    others = {"master_weights": False, "gradient_casts": "together", "loss_chunks": 1}
    adapter = {"adapter": "lora", "adapter_dtype": "dtype" if in_dtype else "float32"}
    run = run.model_copy(update={"weights": weights} | others | adapter | gpu)
    if prepares and run.dtype in HALF and weights in BITSANDBYTES.split():
        kernel = "efficient" if run.attention_kernel == "flash" else run.attention_kernel
        kbit = {"prepare_for_kbit_training": True, "attention_kernel": kernel}
        prepared = run.model_copy(update=kbit)
        run = run if run_mistake(a, prepared) else prepared
    try:
        of_program = programmed(a, run)
    except NoProgramError:
        return
    assert not first_difference(of_program, traced(a, run)), (a, run)
    try:
        peaks = inference(program, a, run).peaks
        with uninitialised():
            model = build(a, "meta", run.dtype)
        values = infer(model, run, {"peak_inference_bytes"})
    except ValueError:  # no cache where a bias is added to the scores
        return
    assert peaks == {phase: values["peak_inference_bytes"][phase] for phase in peaks}


def test_a_quantised_head_gets_no_adapter():
    """PEFT's all-linear leaves out the head: its module was adapted, and its program was not."""
    a = Decoder(
        n_vocab=96, d_model=64, n_layer=2, n_head=2, n_kv_head=2, d_head=32, d_ff=64, tied=False
    )
    run = RunConfig(dtype="bfloat16", length=8, adapter="lora", weights="bnb-4bit",
                    weights_of="all", attention_kernel="math",
                    prepare_for_kbit_training=False)  # fmt: skip
    assert not first_difference(programmed(a, run), traced(a, run))


@pytest.mark.parametrize("adapter_dropout", [False, True])
@pytest.mark.parametrize("weights", BITSANDBYTES.split())
def test_dora_reads_a_copy_of_a_quantised_matrix(weights, adapter_dropout):
    """The product is PEFT's: the copy, and with dropout its float32 cast, which autograd saves.

    Measuring ended in an AttributeError, and there was no prediction.
    """
    sizes = {"n_vocab": 96, "d_model": 64, "n_layer": 2, "n_head": 2, "d_head": 32, "d_ff": 128}
    a = Decoder(**sizes, n_kv_head=2, up_bias=True, down_bias=True)
    run = RunConfig(dtype="bfloat16", length=8, adapter="dora", weights=weights,
                    attention_kernel="math", adapter_dropout=adapter_dropout)  # fmt: skip
    with uninitialised():
        model = build(a, "meta", run.dtype)
    arrange(model, run)
    adapted = [part for part in model.modules() if isinstance(part, Adapted)]
    for part in adapted:
        vars(part)["_decomposed"] = partial(_product_of_peft, part)
    of_peft = traced(a, run, model)
    assert adapted
    assert not first_difference(programmed(a, run), of_peft)
    assert not first_difference(traced(a, run), of_peft)


def _product_of_peft(part, x, base_result):
    # PEFT dequantises what has a W_q by its own function, as it does bitsandbytes' weights.
    base = SimpleNamespace(
        W_q=None, dequantize=part.stored_matrix, bias=getattr(part, "bias", None)
    )
    layer = DoraLinearLayer(fan_in_fan_out=False)
    layer.weight = part.lora_magnitude_vector
    down, up = _Linear(part.lora_A), _Linear(part.lora_B)
    return layer(x, lora_A=down, lora_B=up, scaling=2.0, base_layer=base, base_result=base_result)


class _Linear(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = weight

    def forward(self, x):
        return F.linear(x, self.weight)


@pytest.mark.parametrize(("method", "weights"), [("hira", "bnb-4bit"), ("dora", "awq")])
def test_what_is_not_computed_over_quantised_weights_is_refused_twice(method, weights):
    """The module of the one read a matrix that it does not have; PEFT's of the other refuses."""
    model = mb.model("gpt-2-124m", n_layer=1)
    run = {"adapter": method, "weights": weights, "length": 8}
    why = f"adapter: {method}: over weights: {weights}"
    (failed,) = model.measure(run, ["peak_inference_bytes"]).failed
    assert failed.endswith(why)
    assert why in model.why_not("peak_inference_bytes", run)


EXPERTS = {
    "n_vocab": 96, "d_model": 128, "n_layer": 2, "n_head": 2, "n_kv_head": 1, "d_head": 64,
    "d_ff": 192, "n_ctx": 32, "mlps": "moe", "n_expert": 4, "n_expert_per_token": 2,
    "d_expert": 64, "d_shared": 64, "shared_gate": True, "gated": True, "n_dense_layer": 1,
    "up_bias": True, "down_bias": True, "tied": False, "position": "rotary", "norm": "rmsnorm",
}  # fmt: skip


@pytest.mark.parametrize("of", ["library", "layers", "dense", "experts", "all"])
@pytest.mark.parametrize("weights", ["bnb-4bit-double", "fp8-block", "mxfp4", "autogptq-4bit"])
@pytest.mark.parametrize("kernel", ["scattered", "gathered"])
def test_peaks_of_inference_with_stored_experts_and_head(weights, of, kernel):
    """Catches the copy of a stack, of a float32 bias, or of a head that only one side makes."""
    a = Decoder(**EXPERTS)
    run = RunConfig(
        weights=weights,
        weights_of=of,
        weight_group=64,
        length=8,
        dtype="bfloat16",
        expert_kernel=kernel,
    )
    with uninitialised():
        model = build(a, "meta", run.dtype)
    measured = infer(model, run, {"peak_inference_bytes"})["peak_inference_bytes"]
    assert inference(program, a, run).peaks == measured


STATES: dict[str, dict] = {
    "gated_deltanet": {
        "mixers": "gated_deltanet attention", "n_linear_head": 4, "n_linear_key_head": 2,
        "d_linear_key": 32, "d_linear_value": 32, "d_linear_convolution": 4,
    },
    "selective_scan": {
        "mixers": "selective_scan attention", "d_scan": 128, "d_scan_state": 32, "d_scan_step": 32,
        "d_scan_convolution": 4,
    },
    "mamba2": {
        "mixers": "mamba2 attention", "n_mamba_head": 8, "d_mamba_head": 16, "n_mamba_group": 1,
        "d_mamba_state": 32, "d_mamba_convolution": 4,
    },
}  # fmt: skip


@pytest.mark.parametrize("weights", ["bnb-4bit-double", "bnb-8bit", "fp8-block", "torchao-int8"])
@pytest.mark.parametrize("states", STATES.values(), ids=STATES)
def test_peaks_of_inference_with_stored_projections_of_recurrences(weights, states):
    """Catches β and decay in the format on one side alone."""
    a = Decoder(**EXPERTS | states)
    run = RunConfig(weights=weights, length=8, dtype="bfloat16")
    with uninitialised():
        model = build(a, "meta", run.dtype)
    measured = infer(model, run, {"peak_inference_bytes"})["peak_inference_bytes"]
    assert inference(program, a, run).peaks == measured
    stored = sum(p.nbytes for p in model.parameters())
    assert total(predicted("parameter_bytes", a, run)) == stored


@pytest.mark.parametrize(
    ("weights", "others", "sizes"),
    [
        ("fp8-channel", "mxfp4", {}),
        ("fp8-channel", "int4-group", {"weight_group": 64}),
        ("int4-group", "int4-group", {"weight_group": 64, "expert_weight_group": 32}),
        ("bnb-4bit", "bnb-4bit-double", {"weight_block": 64, "expert_weight_block": 128}),
    ],
    ids=str,
)
def test_experts_in_a_second_format(weights, others, sizes):
    """Catches experts in the format of all else, or in its groups and blocks."""
    a = Decoder(**EXPERTS | {"up_bias": False, "down_bias": False})
    run = RunConfig(weights=weights, expert_weights=others, length=8, dtype="bfloat16", **sizes)
    with uninitialised():
        model = build(a, "meta", run.dtype)
    measured = infer(model, run, {"peak_inference_bytes"})["peak_inference_bytes"]
    assert inference(program, a, run).peaks == measured
    held = sum(p.nbytes for p in model.parameters())
    assert total(predicted("parameter_bytes", a, run)) == held
    same = {"expert_weights": "weights", "expert_weight_group": 0, "expert_weight_block": 0}
    both = run.model_copy(update=same)
    assert total(predicted("parameter_bytes", a, both)) != held


def test_qlora_of_a_model_of_32_billion_parameters():
    """Qwen 3 32B in 4 bits with doubly quantised scales, and rank 16 at every linear layer."""
    run = {"weights": "bnb-4bit-double", "adapter": "lora", "adapter_rank": 16}
    model = mb.model("qwen-3-32b")
    step = {"batch": 1, "length": 1024, "prepare_for_kbit_training": False}
    found = model.memory(run | step | {"recompute": "full"})
    # 19,211,509,504 bytes are the base, by a sum over shapes that shares no code with this one.
    adapters = 4 * 134_217_728
    assert found["parameter_bytes"].total == 19_211_509_504 + adapters
    assert found["gradient_bytes"].total == adapters
    assert any("134,217,728 parameters in float32 are trained" in note for note in found.notes)
    # PEFT's function casts embedding, head and norms: as many bytes as they have in bfloat16.
    prepared = model.predict("parameter_bytes", run)
    assert prepared.total - found["parameter_bytes"].total == 3_113_003_008


def test_lines_say_what_bytes_are_from():
    """GPT-2 in FP8 was counted without a word that transformers converts none of its Conv1D."""
    given = {"weights": "fp8-block", "length": 64}
    notes = mb.model("gpt-2-124m").predictions(["parameter_bytes"], given).notes
    assert any("leaves GPT2LMHeadModel in" in note for note in notes)
    llama = mb.model("llama-3-8b")
    assert not any("Conv1D" in note for note in llama.memory(given).notes)
    of_source = llama.memory({"weights": "aqlm-1x16"}).notes
    assert any("from source, not witnessed" in note for note in of_source)
    of_file = mb.model("gpt-oss-20b").predictions(["parameter_bytes"], {"weights": "mxfp4"}).notes
    assert any("13,761,264,768 bytes (file_bytes)" in note for note in of_file)


def test_weights_without_an_adapter_are_not_trained():
    run = {"weights": "bnb-4bit"}
    why = mb.model("llama-3-8b").why_not("peak_training_bytes", run)
    assert why.endswith("weights = bnb-4bit are frozen; allowed with adapter: lora")


@pytest.mark.parametrize("weights", ["awq", "gptq-4bit", "int4-group"])
def test_a_device_holds_quantised_weights_and_one_copy_of_a_matrix(weights):
    """--fit of a quantised model was refused for want of a peak."""
    run = {"weights": weights, "batch": 1, "length": 128}
    found = mb.model("llama-3-8b").memory(run)
    largest = 2 * 4096 * 14336
    held = found["parameter_bytes"].total + found["cache_bytes"].total
    assert largest < found["peak_inference_bytes"].total - held < 2 * largest
    assert mb.model("llama-3-8b").fit("rtx-4090", run, training=False).grade == "fits"
