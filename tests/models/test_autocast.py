"""Emulated autocast against torch's own on a CPU, which has it for products and attention."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import modelbudget as mb
from modelbudget.architecture.run_config import RunConfig
from modelbudget.measurement.trace.emulated_autocast import autocast
from modelbudget.measurement.trace.module_trace import Trace

RUN = RunConfig(autocast="bfloat16")
EMULATED = (lambda: autocast(RUN)), (lambda: autocast(RUN, caches=False))
TORCH = (lambda: torch.autocast("cpu", torch.bfloat16)), nullcontext
Contexts = tuple[Callable[[], AbstractContextManager], Callable[[], AbstractContextManager]]
"""Of the forward and of the backward pass."""


class Block(nn.Module):
    """Attention and two linear layers, around which states (batch, length, 16) are in float32."""

    def __init__(self, checkpoints: bool):
        super().__init__()
        self.up, self.down = nn.Linear(16, 48), nn.Linear(48, 16)
        self.weight, self.bias = nn.Parameter(torch.rand(16, 16)), nn.Parameter(torch.rand(16))
        self.checkpoints = checkpoints

    def forward(self, x):
        return (
            checkpoint(self.compute, x, use_reentrant=False)
            if self.checkpoints
            else self.compute(x)
        )

    def compute(self, x):
        heads = [x.unflatten(2, (2, 8)).transpose(1, 2) * factor for factor in (2, 3, 4)]
        y = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + y.transpose(1, 2).flatten(2)
        x = x + torch.bmm(x, torch.bmm(x.transpose(1, 2) * 2, x + 1))  # two are temporary
        x = x + torch.addmm(self.bias, x.flatten(0, 1), self.weight).view_as(x)
        return x + self.down(F.gelu(self.up(x)))


def trained(contexts: Contexts, checkpoints: bool) -> tuple[list[int], list[torch.Tensor]]:
    """Live bytes after each allocation of a forward and a backward pass; gradients."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(checkpoints) for _ in range(2)))
    x = torch.randn(3, 4, 16)
    trace = Trace(model)
    with contexts[0](), trace.watching("forward"):
        loss = model(x).float().square().sum()
    with contexts[1](), trace.watching("backward"):
        loss.backward()
    return _live(trace), [p.grad for p in model.parameters()]


def _live(trace: Trace) -> list[int]:
    sizes, live, found = {}, 0, []
    for key, n_bytes in trace.changes:
        live += -sizes.pop(key) if n_bytes is None else n_bytes
        if n_bytes is not None:
            sizes[key] = n_bytes
            found.append(live)
    return found


@pytest.mark.parametrize("checkpoints", [False, True])
def test_torch_casts_the_same_in_the_same_order(checkpoints):
    """Also of layers that are computed again: their casts live to the end of that."""
    (live, gradients), (expected_live, expected) = (
        trained(contexts, checkpoints) for contexts in (EMULATED, TORCH)
    )
    assert live == expected_live
    assert all(map(torch.equal, gradients, expected))


def test_a_product_into_a_tensor_is_not_cast():
    """torch's documentation of autocast: operations with `out` are not eligible."""
    for context in (EMULATED[0], TORCH[0]):
        result = torch.empty(3, 4)
        with context():
            torch.addmm(torch.ones(4), torch.full((3, 2), 1.001), torch.ones(2, 4), out=result)
        assert result[0, 0] == pytest.approx(3.002)


class Made(TorchDispatchMode):
    """Keep the tensors that operations return."""

    def __init__(self):
        super().__init__()
        self.tensors: list[torch.Tensor] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.tensors += [result] if isinstance(result, torch.Tensor) else []
        return result


def test_float16_needs_as_much_as_bfloat16_and_its_scaler_four_scalars():
    """What people train with before compute capability 8.0: predicted as measured of our module.

    torch's GradScaler divides gradients in place; what it makes besides are numbers of single
    elements.
    """
    names = ("activation_bytes", "peak_training_bytes", "flops_forward")
    run = {"dtype": "float32", "batch": 2, "length": 24, "attention_kernel": "efficient"}
    model = mb.model("pythia-14m")
    values = []
    for autocast_dtype in ("float16", "bfloat16"):
        measured = model.measure(run | {"autocast": autocast_dtype}, names)
        assert measured.agrees
        values.append([row["measured"] for row in measured.rows()])
    assert values[0] == values[1]
    block = Block(checkpoints=False)
    optimizer, scaler = torch.optim.AdamW(block.parameters()), torch.amp.GradScaler("cpu")
    scaler.scale(block(torch.randn(1, 4, 16)).sum()).backward()
    scaled = [(p.grad.data_ptr(), p.grad.clone()) for p in block.parameters()]
    with Made() as made:
        scaler.unscale_(optimizer)
    for p, (address, gradient) in zip(block.parameters(), scaled, strict=True):
        assert p.grad.data_ptr() == address
        assert torch.equal(p.grad * scaler.get_scale(), gradient)
    assert {tensor.numel() for tensor in made.tensors} == {1}
