"""A training step of models that are not decoders: programs against traces, component by
component and by phase; the trace on meta against a real one; and what the trace itself counts.
"""

import pytest
import torch
from helpers.few_layers import of_few_layers
from helpers.inference import measured_inference
from helpers.other_families import TINY_MODELS, trained
from helpers.tiers import ALL, examples
from helpers.training import OF_STEP, PREDICTED, measured, predicted, without_zeros
from hypothesis import HealthCheck, given, settings
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_constraints import run_mistake
from modelbudget.families.decoder import Decoder
from modelbudget.measurement.trace.module_trace import Trace
from modelbudget.predict.prediction_or_reason import why_not
from modelbudget.sweeps.derive import named_architecture


def assert_equal(a, run: RunConfig) -> None:
    found, expected = measured(a, run), predicted(a, run, OF_STEP)
    for quantity in OF_STEP:
        assert without_zeros(expected[quantity]) == without_zeros(found[quantity]), quantity


@given(trained())
@settings(max_examples=examples(80), suppress_health_check=[HealthCheck.too_slow])
def test_predicted_is_measured_component_by_component(model):
    assert_equal(*model)


NAMED = {
    "bert-large": RunConfig(batch=2, length=33, dtype="bfloat16", attention_kernel="flash"),
    "modernbert-large": RunConfig(batch=2, length=200, recompute="full"),
    "modernbert-base": RunConfig(batch=2, length=200, dtype="bfloat16", attention_kernel="flash"),
    "albert-base": RunConfig(length=16, backend="cpu", loss_dtype="float32"),
    "t5-base": RunConfig(batch=3, length=40, dtype="bfloat16", master_weights=True),
    "t5-v1-1-small": RunConfig(batch=2, length=40, target_length=24, dtype="bfloat16"),
    "transformer-base": RunConfig(batch=2, length=24, attention_kernel="efficient"),
    "roberta-base": RunConfig(batch=2, length=33, dtype="bfloat16", recompute="full"),
    "albert-large": RunConfig(batch=2, length=16, recompute="full", dtype="bfloat16"),
    "t5-small": RunConfig(batch=2, length=40, dtype="bfloat16", recompute="full"),
    "transformer-big": RunConfig(batch=2, length=24, recompute="full"),
    "mamba-130m": RunConfig(batch=2, length=20, optimizer="sgd"),
    "mamba-2-130m": RunConfig(length=20, dtype="bfloat16"),
    "rwkv-4-169m": RunConfig(batch=2, length=20, dtype="bfloat16"),
    "transformer-xl-large": RunConfig(length=40),
    "zaremba-large": RunConfig(batch=2, length=35),
    "big-lstm-cnn-input": RunConfig(batch=2, length=20),
    "bloom-560m": RunConfig(batch=2, length=40, dtype="bfloat16", dropout=True),
    "chinchilla-a9-44m": RunConfig(batch=2, length=40, dtype="bfloat16", recompute="full"),
}
AS_DEEP_AS_THEY_ARE = "bert-large", "bloom-560m", "t5-base"
"""With TESTS=all the others are, too."""


@pytest.mark.parametrize(("name", "run"), NAMED.items())
def test_published_models_at_difference_0(catalogue, name, run):
    a = named_architecture(catalogue[name])
    assert_equal(a if ALL or name in AS_DEEP_AS_THEY_ARE else of_few_layers(a, run), run)


@pytest.mark.parametrize("name", TINY_MODELS)
def test_a_step_with_autocast_is_measured(name):
    """Of the casts only traces know, and which of them a backward pass repeats."""
    a, run = TINY_MODELS[name], RunConfig(length=8, autocast="bfloat16")
    quantities = ("activation_bytes", "peak_training_bytes")
    found = measured(a, run, quantities=quantities)
    if type(a).has_cache:
        quantities += ("peak_inference_bytes",)
        found |= measured_inference(a, run, {"peak_inference_bytes"})
    for quantity, values in predicted(a, run, quantities).items():
        assert without_zeros(values) == without_zeros(found[quantity]), quantity


MIXED = {
    "n_vocab": 7, "d_model": 6, "n_layer": 3, "n_head": 2, "n_kv_head": 1, "d_head": 4, "d_ff": 5,
    "position": "none", "mixers": "mamba2 attention", "n_mamba_head": 4, "d_mamba_head": 3,
    "n_mamba_group": 2, "d_mamba_state": 5, "d_mamba_convolution": 3,
}  # fmt: skip


def test_an_encoder_without_a_head_has_no_training():
    whole, run = TINY_MODELS["BERT"], RunConfig(batch=2, length=5)
    a = whole.model_copy(update={"lm_head": False, "transform": False})
    for quantity in {*PREDICTED, "peak_training_bytes"} - {"flops_forward"}:
        assert "needs logits and a loss" in why_not(quantity, a, run)
    assert not why_not("parameter_bytes", a, run)
    assert not why_not("flops_forward", a, run)
    with pytest.raises(ValueError, match="lm_head = false: a model without logits has no loss"):
        measured(a, run)
    states = a.build()(torch.zeros(2, 5, dtype=torch.long))
    assert states.shape == (2, 5, a.d_model)


@pytest.mark.parametrize("name", ["BERT", "ModernBERT", "T5", "BART"])
def test_layers_of_encoders_are_computed_again(name):
    """What both save is less: a module and a program that ignore the setting are equal, too."""
    a, run = TINY_MODELS[name], RunConfig(batch=2, length=6, recompute="full")
    assert run_mistake(a, run) is None
    saved = [
        sum(measured(a, each, quantities=("activation_bytes",))["activation_bytes"].values())
        for each in (run.model_copy(update={"recompute": "none"}), run)
    ]
    assert saved[1] < saved[0]
    assert "allowed: none, or full" in run_mistake(a, RunConfig(length=6, recompute="selective"))


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_a_decoder_with_mamba_2_at_difference_0(recompute):
    run = RunConfig(batch=2, length=5, dtype="bfloat16", recompute=recompute, dropout=True)
    assert_equal(Decoder(**MIXED), run)


@pytest.mark.parametrize("name", ["RWKV-4", "RWKV-5", "RWKV-6"])
def test_a_single_token_leaves_a_decay_without_gradient(name):
    """Only this sees states of an optimizer that are of parameters without a gradient."""
    a, run = TINY_MODELS[name], RunConfig(length=1)
    assert_equal(a, run)
    if name != "RWKV-6":  # whose decays are stacked with keys and values
        found = measured(a, run, quantities=("gradient_bytes",))
        assert found["gradient_bytes"]["layer.time.decay"] == 0


@pytest.mark.parametrize("name", TINY_MODELS)
def test_a_real_step_and_one_without_storage_hold_the_same(name):
    run = RunConfig(batch=2, length=6, backend="cpu")
    assert measured(TINY_MODELS[name], run) == measured(TINY_MODELS[name], run, "cpu")


def test_what_no_result_depends_on_is_not_saved():
    """Its last node saves its own result."""
    model = nn.Linear(3, 3, device="meta")
    trace = Trace(model)
    with trace.watching("forward"):
        result = model(torch.ones(2, 3, device="meta")).exp()
        unused = result.exp().exp()
        del unused
    assert sum(trace.saved().values()) == 2 * 4 * 2 * 3
    assert result.requires_grad


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_gradients_of_a_convolution_take_as_much_as_its_result(groups):
    """Torch's counter agrees where there is one group."""
    model = nn.Conv1d(4, 8, 3, groups=groups, device="meta")
    trace, counter = Trace(model), FlopCounterMode(display=False)
    x = torch.ones(2, 4, 9, device="meta", requires_grad=True)
    with trace.watching("forward"):
        result = model(x).sum()
    with trace.watching("backward"), counter:
        result.backward()
    forward, backward = (sum(trace.flops[phase].values()) for phase in ("forward", "backward"))
    assert forward == 2 * 2 * 8 * 7 * 3 * 4 // groups
    assert backward == 2 * forward
    if groups == 1:
        assert backward == counter.get_total_flops()
