"""`loss_chunks` with shards: the head is a group of its own and is gathered once for all chunks."""

import pytest
import torch
from helpers.devices import measured, predicted, programmed
from helpers.gloo import of_all_ranks
from torch.distributed.tensor import DTensor

from modelbudget.architecture.run_config import RunConfig
from modelbudget.families.decoder import Decoder
from modelbudget.measurement.build import build
from modelbudget.measurement.parallel import rank
from modelbudget.measurement.step.train import forward
from modelbudget.modules.initialise import initialise

SMALL = {
    "n_vocab": 103, "d_model": 36, "n_layer": 2, "n_head": 2, "n_kv_head": 2, "d_head": 16,
    "d_ff": 100, "n_ctx": 16,
}  # fmt: skip
SHAPES = {
    "tied": {"position": "learned", "norm_bias": True, "head_bias": True},
    "untied": {"tied": False, "position": "rotary", "norm": "rmsnorm", "gated": True},
    "factorised": {"d_emb": 12, "embedding_norm": True, "final_norm": False},
}
MIXED = {"dtype": "bfloat16", "master_weights": True, "reduce_dtype": "float32"}

RUNS = (
    {"zero": 2, "loss_chunks": 2},
    {"zero": 3, "loss_chunks": 4},
    MIXED | {"zero": 3, "loss_chunks": 8},
)


@pytest.mark.parametrize("name", SHAPES)
def test_what_a_device_needs_is_predicted(name):
    """The peak by program alone; no norm has the last layer's output for the head's group."""
    a = Decoder.model_validate(SMALL | SHAPES[name])
    for settings in (
        {"zero": 2, "loss_chunks": 2},
        {"zero": 3, "loss_chunks": 4},
        MIXED | {"zero": 3, "loss_chunks": 8},
    ):
        run = RunConfig.model_validate(
            {"batch": 2, "length": 8, "data_parallel": 3, "recompute": "full"} | settings
        )
        found = measured(a, run)
        assert programmed(a, run) == found
        assert predicted(a, run).items() <= found.items()


def _gradients(a: Decoder, run: RunConfig) -> list:
    """Return the gradients of a step, whole, by as many processes as the run has devices."""
    torch.manual_seed(0)
    model = build(a, "cpu", run.dtype)
    initialise(model)
    tokens, targets = torch.randint(a.n_vocab, (2, run.batch, run.length))
    if run.zero:
        model = rank.distribute(model, run, rank.mesh_of(run))
    loss, _ = forward(model, run, tokens, targets)
    loss.backward()
    found = [parameter.grad for parameter in model.parameters()]
    return [one.full_tensor() if isinstance(one, DTensor) else one for one in found]


@pytest.mark.parametrize("name", ["tied", "untied"])
def test_processes_that_communicate_have_the_gradients_of_the_whole_loss(tmp_path, name):
    a = Decoder.model_validate(SMALL | SHAPES[name])
    run = RunConfig.model_validate({"batch": 2, "length": 8, "dtype": "float64", "backend": "cpu"})
    shared = run.model_copy(update={"zero": 3, "data_parallel": 2, "loss_chunks": 4})
    expected = _gradients(a, run)
    for found in of_all_ranks(_as_lists, a, shared, tmp_path):
        for one, whole in zip(found, expected, strict=True):
            assert torch.allclose(torch.tensor(one, dtype=torch.float64), whole)


def _as_lists(a: Decoder, run: RunConfig) -> list[list]:
    """Return what another process can read."""
    return [one.tolist() for one in _gradients(a, run)]
