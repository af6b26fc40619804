"""`loss_chunks`: head and loss in chunks of the tokens, against torch and against traces."""

import pytest
import torch
from helpers.training import OF_STEP, measured, predicted, without_zeros

from modelbudget.architecture.run_config import RunConfig
from modelbudget.families.decoder import Decoder
from modelbudget.measurement.build import build
from modelbudget.measurement.step.train import forward
from modelbudget.modules.initialise import initialise

SMALL = {
    "n_vocab": 500, "d_model": 64, "n_layer": 2, "n_head": 4, "n_kv_head": 4, "d_head": 16,
    "d_ff": 128, "n_ctx": 16,
}  # fmt: skip
SHAPES = [
    {}, {"tied": False}, {"head_bias": True}, {"final_norm": False}, {"d_emb": 32},
    {"n_vocab": 12, "d_model": 256}, {"n_vocab": 12, "d_emb": 32},
]  # fmt: skip


@pytest.mark.parametrize("settings", SHAPES, ids=str)
@pytest.mark.parametrize(
    ("dtype", "autocast"), [("float32", "none"), ("bfloat16", "none"), ("float32", "bfloat16")]
)
@pytest.mark.parametrize(
    ("loss_dtype", "outputs", "recompute"),
    [("logits", "freed", "none"), ("float32", "kept", "full")],
)
def test_a_step_needs_what_is_predicted(settings, dtype, autocast, loss_dtype, outputs, recompute):
    """The peak is in a chunk, at the cast of the gathered gradient, in the layers."""
    a = Decoder.model_validate(SMALL | settings)
    for n_chunk in (2, 16):
        run = RunConfig.model_validate({
            "batch": 2, "length": 16, "dtype": dtype, "loss_dtype": loss_dtype, "outputs": outputs,
            "recompute": recompute, "loss_chunks": n_chunk, "autocast": autocast,
        })  # fmt: skip
        found = measured(a, run)
        expected = predicted(a, run, OF_STEP)
        for quantity, values in expected.items():
            assert without_zeros(values) == without_zeros(found[quantity])


def test_gradients_are_those_of_the_whole_loss():
    a = Decoder.model_validate(SMALL | {"head_bias": True, "position": "learned"})
    torch.manual_seed(0)
    tokens, targets = torch.randint(a.n_vocab, (2, 2, 16))

    def step(n_chunk: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
        torch.manual_seed(1)
        model = build(a, "cpu", "float64")
        initialise(model)
        run = RunConfig(batch=2, length=16, dtype="float64", backend="cpu", loss_chunks=n_chunk)
        loss, _ = forward(model, run, tokens, targets)
        loss.backward()
        return loss, [p.grad for p in model.parameters()]

    (loss, gradients), (whole, expected) = step(4), step(1)
    assert torch.isclose(loss, whole)
    assert all(map(torch.allclose, gradients, expected))


def test_no_logits_are_saved_but_the_gradient_of_the_states():
    a = Decoder.model_validate(SMALL)
    whole, chunked = (
        predicted(a, RunConfig(batch=2, length=16, loss_chunks=n))["activation_bytes"]
        for n in (1, 4)
    )
    assert whole["loss"] == 4 * (32 * 500 + 1) + 8 * 32
    assert (chunked["loss"], chunked.get("head", 0)) == (4 * 32 * 64, 0)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"loss_chunks": 3}, "loss_chunks = 3: must divide the 2 · 16 tokens"),
        ({"loss_chunks": 2, "targets": "shifted"}, "takes given targets, here targets: shifted"),
        ({"loss_chunks": 0}, "loss_chunks"),
    ],
)
def test_a_mistake_names_what_is_allowed(settings, words):
    with pytest.raises(ValueError, match=words):
        RunConfig.model_validate({"batch": 2, "length": 16} | settings)
