"""Kernels of `implementation: megatron` against torch's own, and what they save by hand."""

import pytest
import torch
import torch.multiprocessing
from helpers.devices import programmed
from helpers.training import predicted
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.nn import functional as F

from modelbudget.architecture.run_config import RunConfig
from modelbudget.catalogue.implementations import implementations
from modelbudget.families.decoder import Decoder
from modelbudget.measurement.build import build
from modelbudget.measurement.step.train import train
from modelbudget.modules import in_place_loss
from modelbudget.modules.feed_forward.fused_gate import fused_gate

LLAMA = {
    "n_vocab": 300, "d_model": 64, "n_layer": 2, "n_head": 4, "n_kv_head": 2, "d_head": 16,
    "d_ff": 96, "n_ctx": 64, "norm": "rmsnorm", "position": "rotary", "gated": True,
    "activation": "silu", "tied": False,
}  # fmt: skip
GPT = LLAMA | {
    "n_kv_head": 4, "norm": "layernorm", "position": "learned", "gated": False,
    "activation": "gelu", "tied": True,
}  # fmt: skip
PRECISIONS = [
    {"dtype": "float32"},
    {"dtype": "bfloat16", "attention_kernel": "flash", "loss_dtype": "logits"},
    {"dtype": "bfloat16", "master_weights": True, "gradient_casts": "accumulated"},
]


def gradient(function, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The value of a function, and the gradient of a weighted sum of it."""
    leaf = x.clone().requires_grad_()
    value = function(leaf * 1)
    (value * torch.linspace(1, 2, value.numel()).view_as(value)).sum().backward()
    return value.detach(), leaf.grad


@pytest.mark.parametrize("name", ["silu", "gelu"])
def test_the_fused_gate_is_the_written_one(name):
    def written(x):
        gate, up = x.chunk(2, dim=-1)
        return getattr(F, name)(gate) * up

    torch.manual_seed(0)
    x = torch.randn(3, 5, 14, dtype=torch.float64)
    found, expected = gradient(lambda x: fused_gate(x, name), x), gradient(written, x)
    assert all(map(torch.allclose, found, expected))


@pytest.mark.parametrize("copies", [False, True])
def test_the_loss_in_place_is_torchs(copies):
    torch.manual_seed(0)
    logits, targets = torch.randn(2, 4, 11, dtype=torch.float64), torch.randint(11, (2, 4))
    found = gradient(lambda x: in_place_loss.loss_of(x, targets, copies), logits)
    expected = gradient(lambda x: F.cross_entropy(x.flatten(0, 1), targets.flatten()), logits)
    assert all(map(torch.allclose, found, expected))


def _share_of_loss(rank, store, logits, targets, results):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))

    def loss(share):
        logits = DTensor.from_local(share, mesh, [Shard(-1)])
        return in_place_loss.loss_of(logits, targets, copies=False)

    results.put((rank, *(one.numpy() for one in gradient(loss, logits.chunk(2, -1)[rank]))))
    dist.destroy_process_group()


def test_the_loss_over_two_devices_that_divide_the_vocabulary_is_torchs(tmp_path):
    torch.manual_seed(0)
    logits, targets = torch.randn(2, 4, 12, dtype=torch.float64), torch.randint(12, (2, 4))
    context = torch.multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    given = tmp_path / "store", logits, targets, results
    processes = [context.Process(target=_share_of_loss, args=(i, *given)) for i in range(2)]
    for process in processes:
        process.start()
    (_, *first), (_, *second) = sorted((results.get(), results.get()), key=lambda one: one[0])
    expected = gradient(lambda x: F.cross_entropy(x.flatten(0, 1), targets.flatten()), logits)
    assert first[0] == second[0] == pytest.approx(expected[0].item())
    both = torch.cat([torch.from_numpy(of_device[1]) for of_device in (first, second)], dim=-1)
    assert torch.allclose(both, expected[1])


@pytest.mark.parametrize("given", PRECISIONS, ids=str)
@pytest.mark.parametrize(("kind", "shape"), [("LlamaForCausalLM", LLAMA), ("GPT2LMHeadModel", GPT)])
def test_a_step_needs_what_is_predicted(kind, shape, given):
    a, own = Decoder.model_validate(shape), implementations()["megatron"].of_class(kind)
    for recompute in ("none", "full"):
        settings = {"batch": 2, "length": 24, "foreach": True, "recompute": recompute}
        run = RunConfig.model_validate(own | settings | given)
        found = train(build(a, "meta", run.dtype), run, {"peak_training_bytes", "activation_bytes"})
        program = programmed(a, run)
        assert program["peak_training_bytes"] == found["peak_training_bytes"]
        saved = program["activation_bytes"]
        assert sum(saved.values()) == sum(found["activation_bytes"].values())


def test_what_the_kernels_save_by_hand():
    a, run = Decoder.model_validate(LLAMA), RunConfig(batch=2, length=24, dtype="bfloat16")
    in_place = run.model_copy(update={"loss_kernel": "in_place", "loss_dtype": "float32"})
    fused = {"activation_kernel": "fused_gate", "gate_and_up": "packed"}
    n = 48
    assert predicted(a, in_place)["activation_bytes"]["loss"] == n * (4 * 300 + 8 + 1)
    gates = predicted(a, run.model_copy(update=fused))["activation_bytes"]
    assert gates["layer.mlp"] + gates["layer.mlp.down"] == 2 * n * 2 * 3 * 96


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"loss_kernel": "in_place", "loss_chunks": 2}, "not known yet with loss_chunks: 2"),
        ({"loss_kernel": "in_place", "outputs": "kept"}, "overwrites logits that outputs: kept"),
        ({"activation_kernel": "fused_gate"}, "allowed: gate_and_up: packed"),
    ],
)
def test_a_mistake_names_what_is_allowed(settings, words):
    with pytest.raises(ValueError, match=words):
        RunConfig.model_validate({"length": 8} | settings)
