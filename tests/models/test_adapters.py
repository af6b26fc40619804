"""Adapters: programs against traces of our modules, and those against what PEFT makes of them."""

import warnings
from typing import Any

import polars as pl
import pytest
from helpers.allocations import first_difference, programmed, traced
from helpers.peft_classes import config_of, with_dtype
from helpers.strategies import decoders_that_run
from helpers.tiers import ALL, examples
from hypothesis import given, settings
from hypothesis import strategies as st

import modelbudget as mb
from modelbudget.architecture.adapter_methods import OF_LAYERS, method_of
from modelbudget.architecture.run_adapter import PARTS, TARGETS
from modelbudget.architecture.run_config import RunConfig
from modelbudget.components.decoder.decoder_program import program
from modelbudget.families.decoder import Decoder
from modelbudget.measurement.build import build
from modelbudget.measurement.step.module_settings import arrange
from modelbudget.measurement.step.train import train
from modelbudget.modules.initialise import uninitialised
from modelbudget.operations.part import NoProgramError
from modelbudget.predict import by_regime
from modelbudget.quantities.training_step import training_step

ALONE = {"master_weights": False, "gradient_casts": "together"}
METHODS = [name for name in OF_LAYERS if method_of(name).forward]


@st.composite
def adapters(draw, a, run, methods=METHODS) -> dict[str, Any]:
    """Settings of a run that adapts some layers of a model."""
    names = draw(st.sets(st.sampled_from(TARGETS[1:]), min_size=1, max_size=4))
    targets = "all-linear" if draw(st.booleans()) else " ".join(names)
    gpu = {"backend": "gpu", "attention_kernel": "math"} if run.backend == "cpu" else {}
    has_experts = "moe" in getattr(a, "mlps", "")
    method = draw(st.sampled_from(methods))
    if method not in ("lora", "rslora") and has_experts:
        method = "lora"
    return {
        "adapter": method,
        "trained": " ".join(draw(st.sets(st.sampled_from(PARTS), max_size=2))) or "default",
        "trained_from_layer": draw(st.integers(0, getattr(a, "n_layer", 1) - 1)),
        "modules_to_save": draw(st.sampled_from(["none", "head", "embedding norms"])),
        "adapter_targets": targets,
        "input_gradient": draw(st.booleans()),
        "adapter_rank": draw(st.integers(1, 8)),
        "adapter_block": draw(st.sampled_from([2, 4, 8])),
        "adapter_dtype": draw(st.sampled_from(["float32", "dtype"])),
        "adapter_dropout": draw(st.booleans())
        and not (has_experts and {"all-linear", "experts", "router"} & {*targets.split()}),
        **gpu,
        **ALONE,
    }


@st.composite
def with_adapters(draw) -> tuple[Decoder, RunConfig]:
    a, run = draw(decoders_that_run())
    return a, run.model_copy(update=draw(adapters(a, run)))


@settings(max_examples=examples(40), deadline=None)
@given(with_adapters())
def test_every_allocation_with_adapters_is_the_traces(decoder_and_run):
    """Catches a gradient that is made though nothing needs it, or saved though it is frozen."""
    check_step(*decoder_and_run)


def check_step(a, run):
    """Compare each allocation of a step, and its quantities, with a trace of our modules."""
    program = type(a).program()
    try:
        step = training_step(program, a, run)
    except NoProgramError:
        return
    assert not first_difference(programmed(a, run, program), traced(a, run)), (a, run)
    with uninitialised():
        values = train(
            build(a, "meta", run.dtype), run, {"peak_training_bytes", "activation_bytes"}
        )
    assert step.peaks == values["peak_training_bytes"]
    by_component = {
        "gradient_bytes": step.gradient_bytes,
        "optimizer_bytes": step.optimizer_bytes,
        "activation_bytes": step.saved,
    }
    for name, predicted in by_component.items():
        assert +predicted == {k: n for k, n in values[name].items() if n}, name


LLAMA = {
    "n_vocab": 300, "n_ctx": 64, "d_model": 32, "n_layer": 2, "n_head": 4, "n_kv_head": 2,
    "d_head": 8, "d_ff": 40, "gated": True, "activation": "silu", "norm": "rmsnorm",
    "position": "rotary", "tied": False,
}  # fmt: skip


EXPERTS = {"mlps": "moe", "n_expert": 4, "n_expert_per_token": 2, "d_expert": 8}
WITHOUT_STEP = ["parameters", "parameter_bytes"]
OF_INFERENCE = ["cache_bytes", "flops_decode", "peak_inference_bytes"]


@pytest.mark.parametrize(
    ("method", "fields", "quantities"),
    [
        ("lora", {}, WITHOUT_STEP + OF_INFERENCE),
        ("dora", {}, WITHOUT_STEP + OF_INFERENCE),
        ("vera", {}, WITHOUT_STEP + OF_INFERENCE),
        ("loha", {"d_model": 4, "d_ff": 400}, WITHOUT_STEP + OF_INFERENCE),
        ("lora", {"n_layer": 7}, WITHOUT_STEP + OF_INFERENCE),
        ("lora", EXPERTS, WITHOUT_STEP + OF_INFERENCE),
    ],
)
def test_what_is_held_and_computed_without_training(method, fields, quantities):
    """Only here: adapters that are not trained, originals next to copies, experts with a gate.

    With loha its product is the peak: the scale is freed before it, as in PEFT.
    """
    of_run = {"adapter_dropout": True, "modules_to_save": "head norms", "attention_kernel": "math"}
    model = mb.model("decoder", **LLAMA | fields)
    of_run |= {"trained_from_layer": 5} if "n_layer" in fields else {}
    of_run |= {"adapter_dropout": False} if fields is EXPERTS else {}
    of_run |= {"dtype": "bfloat16", "adapter_targets": "down"} if method == "loha" else {}
    found = model.measure({"adapter": method, "batch": 2, "length": 8, **of_run}, quantities)
    assert found.agrees, (found.differences, found.failed)


ON_THE_HOST = ("aten.rand", "aten.gt")
"""LoKr and LoHa draw a number on the host, which says whether the layer has its adapter."""


def of_peft(a, run):
    """Return the allocations of a step of our linear layers in the layers of PEFT."""
    import peft

    with uninitialised():
        model = build(a, "meta", run.dtype)
    plain = run.model_copy(update={"adapter": "none"})
    arrange(model, plain)
    names = TARGETS[1:8] if run.adapter_targets == "all-linear" else run.adapter_targets.split()
    config, is_float32 = config_of(run, model, [*names]), run.adapter_dtype == "float32"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if run.adapter in ("vera", "pvera"):  # these share tensors, which the whole model has
            made = peft.get_peft_model(model, config, autocast_adapter_dtype=is_float32)
            return traced(a, plain, made.base_model.model)
        model = peft.inject_adapter_in_model(config, model)
    for path, parameter in model.named_parameters():
        if any(name in path for name in method_of(run.adapter).frozen):
            parameter.requires_grad_(False)
    return traced(a, plain, with_dtype(model, run), ON_THE_HOST)


STEPS = [
    {"dtype": "bfloat16"},
    {"dtype": "bfloat16", "adapter_dropout": True, "adapter_dtype": "dtype"},
    {"dtype": "float32", "recompute": "full", "adapter_targets": "output up down"},
]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("fields", STEPS if ALL else STEPS[:2])
def test_peft_makes_the_same_allocations(method, fields):
    """The witness of adapters: PEFT's own layers around our linear layers, two of them biased.

    Only here: tensors that a method frees between two of the peaks, and the gradient of a view
    that it changes in place.
    """
    a = Decoder(**LLAMA, query_bias=True, value_bias=True)
    sizes = {"adapter_rank": 4, "adapter_block": 2 if method == "lokr" else 8}
    run = RunConfig(
        batch=2, length=16, attention_kernel="efficient", adapter=method, adapter_frequencies=50,
        **sizes, **fields,
    )  # fmt: skip
    if method == "delora" and run.adapter_dtype == "dtype":
        return  # on meta PEFT makes its buffer in float32
    assert not first_difference(programmed(a, run), of_peft(a, run))


@pytest.mark.parametrize("method", ["lokr", "miss"])
def test_a_grid_of_widths_equals_single_models(method, monkeypatch):
    """Only here: conditions on widths (`needs`) and their quotients, read with symbols."""
    monkeypatch.setattr(by_regime, "FEW", 0)
    run = RunConfig(adapter=method, adapter_block=2, adapter_rank=4, batch=1, length=8)
    fields = dict(Decoder(**LLAMA)) | dict(run)
    fields = {n: int(v) if isinstance(v, bool) else v for n, v in fields.items()}
    fields["d_model"], fields["d_ff"] = pl.Series([32, 64, 30, 96]), pl.Series([64, 48, 40, 160])
    total = by_regime.totals(Decoder, "peak_training_bytes", fields, pl.Series([True] * 4))
    for row, value in enumerate(total):
        widths = {name: fields[name][row] for name in ("d_model", "d_ff")}
        a = Decoder(**LLAMA | widths)
        if method == "miss" and widths["d_model"] == 30:
            assert value is None
            continue
        assert value == max(training_step(program, a, run).peaks.values())


@pytest.mark.parametrize(
    ("model", "targets", "rank", "trained"),
    [
        # Printed by PEFT's print_trainable_parameters for these models.
        ("llama-3-8b", "all-linear", 16, 41_943_040),
        ("llama-2-7b", "query value", 8, 4_194_304),
    ],
)
def test_printed_numbers_of_trained_parameters(model, targets, rank, trained):
    run = {"adapter": "lora", "adapter_targets": targets, "adapter_rank": rank}
    found = mb.model(model).predict("gradient_bytes", run)
    assert found.total == 4 * trained


def test_adapters_of_stacked_experts_are_counted_and_the_sum_with_each_is_saved():
    run = {"adapter": "lora", "length": 8}
    mixtral = mb.model("mixtral-8x7b")
    # By shapes: attention, the router, gate and up of all experts at twice the rank, and down.
    attention = 2 * (4096 + 4096) + 2 * (4096 + 1024)
    experts = 8 * 2 * (4096 + 2 * 14336) + 8 * (14336 + 4096)
    trained = 32 * 8 * (attention + (4096 + 8) + experts)
    assert mixtral.predict("gradient_bytes", run).total == 4 * trained
    # Of each layer autograd saves a copy of all experts, in bfloat16, to which PEFT adds products.
    saved = mixtral.predict("activation_bytes", run).total
    assert 0 < saved - 32 * 2 * 8 * 3 * 4096 * 14336 < 1e9


@pytest.mark.parametrize(
    ("model", "run", "reason"),
    [("mixtral-8x7b", {"adapter": "lora", "zero": 3, "data_parallel": 2, "adapter_dtype": "dtype"},
      "adapter: lora: of stacked experts with zero: 3; allowed: a"),
     ("mixtral-8x7b", {"adapter": "lora", "weights": "bnb-4bit", "weights_of": "all"},
      "adapter: lora: of stacked experts with weights: bnb-4bit; allowed: a format"),
     ("mixtral-8x7b", {"adapter": "lora", "n_layer": 2, "pipeline_schedule": "gpipe",
      "pipeline_parallel": 2, "adapter_dropout": True},
      "adapter: lora: of stacked experts with adapter_dropout: true; allowed: a"),
     ("mixtral-8x7b", {"adapter": "dora"}, "adapter: dora: not of stacked experts; allowed: a"),
     ("gpt-2-124m", {"adapter": "lora", "adapter_targets": "gate"},
      "adapter_targets: gate, which no layer is"),
     ("gpt-2-124m", {"trained": "head"}, "trained: head, which no part is")],
)  # fmt: skip
def test_what_modules_refuse_is_not_said_to_be_measured(model, run, reason):
    """Of each reason the module itself is asked, not a list of reasons.

    Only this sees experts without adapters: in predictions of stages, in measurements of DoRA.
    """
    run = {"n_layer": 1, "length": 8, **run}
    why = mb.model(model).why_not("activation_bytes", run)
    assert reason in why
    assert "measures it" not in why
    assert mb.model(model).measure(run, ["activation_bytes"]).failed


@pytest.mark.parametrize("method", ["shira", "prompt"])
def test_a_method_that_is_only_counted_promises_no_measurement(method):
    """Only here: a forward pass without its virtual tokens is not its measurement."""
    gpt2, why = mb.model("gpt-2-124m"), f"adapter: {method}: only its parameters are known"
    run = {"adapter": method}
    assert gpt2.why_not("peak_training_bytes", run) == f"no formula covers it ({why})"
    measured = gpt2.measure(run, ["activation_bytes", "peak_inference_bytes", "parameter_bytes"])
    assert not measured.failed
    assert measured.agrees
    assert {*measured.table.drop_nulls("measured")["quantity"]} == {"parameter_bytes"}


def test_virtual_tokens_are_as_wide_as_the_rows_next_to_them():
    """PEFT's have the width of the layers: of OPT 350M its torch.cat fails."""
    why = mb.model("opt-350m").why_not("gradient_bytes", {"adapter": "prompt"})
    assert "adapter: prompt: needs d_emb == 0, here d_emb = 512" in str(why)


def test_a_trained_bias_of_a_router_is_updated_before_its_adapter():
    """As in PEFT, whose layer has the original first: AdamW's tensors of two in a row are live."""
    run = RunConfig(adapter="lora", trained="biases", batch=2, length=8)
    check_step(Decoder(**LLAMA | EXPERTS | {"router_bias": "logit"}), run)
