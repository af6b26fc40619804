"""Head and cross-entropy in one kernel: gradients against torch's, program against traces."""

import pytest
import torch
from helpers.allocations import first_difference, programmed, traced
from helpers.strategies import decoders_that_run
from helpers.tiers import examples
from hypothesis import given, settings
from torch.nn import functional as F

import modelbudget as mb
from modelbudget.components.decoder.decoder_program import program
from modelbudget.measurement.build import build
from modelbudget.measurement.step.train import train
from modelbudget.modules.fused_linear_loss import FusedLinearLoss
from modelbudget.modules.initialise import uninitialised
from modelbudget.operations.part import NoProgramError
from modelbudget.quantities.training_step import training_step

FUSED = {
    "loss_kernel": "fused_linear", "loss_chunks": 1, "loss_dtype": "logits", "outputs": "freed",
    "targets": "given", "autocast": "none", "master_weights": False, "logit_cap": "none",
    "gradient_accumulation_fusion": False, "gradient_casts": "together", "dropout": False,
}  # fmt: skip


@pytest.mark.parametrize(("n", "n_vocab", "width"), [(24, 40, 16), (7, 33, 32), (5, 3, 8)])
def test_the_kernel_computes_torchs_gradients(n, n_vocab, width):
    """Only here: that what is traced is this loss, in chunks of which the last may be smaller."""
    torch.manual_seed(0)
    x = torch.randn(n, width, requires_grad=True)
    weight = torch.randn(n_vocab, width, requires_grad=True)
    targets = torch.randint(n_vocab, (n,))
    targets[0] = -100
    expected = F.cross_entropy(x @ weight.T, targets)
    gradients = torch.autograd.grad(expected, (x, weight))
    loss = FusedLinearLoss.apply(x, weight, targets)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(torch.autograd.grad(loss, (x, weight)), gradients)


@settings(max_examples=examples(15), deadline=None)
@given(decoders_that_run())
def test_every_allocation_is_the_traces(decoder_and_run):
    a, run = decoder_and_run
    run = run.model_copy(update=FUSED)
    if a.head_bias or a.d_emb or a.n_mtp_layer or run.backend == "cpu":
        return
    assert not first_difference(programmed(a, run), traced(a, run)), (a, run)
    names = {"flops_forward", "flops_backward", "activation_bytes", "peak_training_bytes"}
    with uninitialised():
        values = train(build(a, "meta", run.dtype), run, names)
    step = training_step(program, a, run)
    assert step.peaks == values["peak_training_bytes"]
    assert sum(step.saved.values()) == sum(values["activation_bytes"].values())
    for name in ("flops_forward", "flops_backward"):
        assert sum(getattr(step, name).values()) == sum(values[name].values())


def test_what_it_saves_of_a_large_vocabulary():
    """Llama 3 8B: by hand, logits and their gradients become one buffer of 512 of 8,192 tokens."""
    model, run = mb.model("llama-3-8b"), {"batch": 1, "length": 8192, "dtype": "bfloat16"}
    saved = model.predict("activation_bytes", run | {"loss_kernel": "fused_linear"})
    of_loss = {c.name: c.value for c in saved.components}["loss"]
    assert of_loss == 2 * (8192 * 4096 + 128256 * 4096)  # gradients of states and head
    peaks = (
        model.predict("peak_training_bytes", run | loss).total
        for loss in ({}, {"loss_kernel": "fused_linear"})
    )
    whole, fused = peaks
    assert fused < whole


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"loss_chunks": 2}, "not known yet with loss_chunks: 2"),
        ({"zero": 3, "data_parallel": 2}, "not known yet with zero: 3"),
        (
            {"zero": 3, "data_parallel": 2, "loss_chunks": 2, "targets": "given"},
            "not known yet with zero: 3; allowed: 0; nor with loss_chunks: 2; allowed: 1",
        ),
    ],
)
def test_what_is_not_known_with_it_is_named(settings, said):
    with pytest.raises(mb.InputError, match=said):
        mb.model("llama-3-8b").predict(
            "peak_training_bytes", {"loss_kernel": "fused_linear", **settings}
        )


def test_a_head_with_a_bias_is_named():
    model = mb.model("phi-2-2.7b")
    why = model.why_not("peak_training_bytes", {"loss_kernel": "fused_linear"})
    assert "a head with more than one matrix" in str(why)
    with pytest.raises(NoProgramError):
        training_step(program, model.architecture, model.run({"loss_kernel": "fused_linear"}))


SMALL = {"n_vocab": 300, "d_model": 32, "n_layer": 1, "n_head": 4, "d_head": 8, "d_ff": 64}
STORED_HEAD = {"weights": "bnb-8bit", "weights_of": "all", "adapter": "lora", "length": 8}


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"loss_kernel": "fused_linear"}, "a head with more than one matrix"),
        ({"modules_to_save": "head"}, "modules_to_save = head: it is quantised"),
    ],
)
def test_a_quantised_head_is_refused_by_prediction_and_measurement(settings, reason):
    """A copy of one had bytes, and both modules ended in an error of torch."""
    model, run = mb.model("decoder", **SMALL, n_kv_head=4, tied=False), STORED_HEAD | settings
    (failed,) = model.measure(run, ["parameters", "peak_training_bytes"]).failed
    assert reason in failed
    assert reason in str(model.why_not("peak_training_bytes", run))
