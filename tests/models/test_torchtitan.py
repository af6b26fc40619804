"""`implementation: torchtitan` against traces of a module that computes as its Llama 3 does.

The module follows https://github.com/pytorch/torchtitan at commit b5bcd76: FusedQKVLinear and
GQAttention (models/common/attention.py), ComplexRoPE (models/common/rope.py), FeedForward,
Llama3TransformerBlock and Decoder.forward. docs/measured.md has the comparison with torchtitan's
own class. All tokens of a step are one sequence without a dimension of batch.
"""

import pytest
import torch
from helpers.tiers import product_by_tier
from helpers.training import measured, predicted
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from modelbudget.architecture.run_config import RunConfig
from modelbudget.catalogue.implementations import implementations
from modelbudget.families.decoder import Decoder
from modelbudget.measurement.step.train import train

QUANTITIES = {"gradient_bytes", "optimizer_bytes", "activation_bytes", "peak_training_bytes"}
SMALL = {
    "n_vocab": 300, "d_model": 64, "n_layer": 3, "n_head": 4, "n_kv_head": 2, "d_head": 16,
    "d_ff": 96, "n_ctx": 64, "norm": "rmsnorm", "position": "rotary", "gated": True,
    "activation": "silu", "tied": False,
}  # fmt: skip
LENGTH = 48
KERNELS = [
    ("float32", "efficient"), ("float32", "math"), ("bfloat16", "flash"), ("bfloat16", "math"),
]  # fmt: skip


class Attention(nn.Module):
    """One matrix, whose result is split by group of heads and copied; RoPE; torch's attention."""

    def __init__(self, a: Decoder):
        super().__init__()
        self.d_head, self.per_group = a.d_head, a.n_head // a.n_kv_head
        self.query_key_value = linear(a.d_model, (a.n_head + 2 * a.n_kv_head) * a.d_head)
        self.output = linear(a.n_head * a.d_head, a.d_model)
        self.register_buffer("table", torch.empty(LENGTH, a.d_head // 2, dtype=torch.complex64))

    def project(self, x):
        groups = self.query_key_value(x).view(len(x), -1, self.per_group + 2, self.d_head)
        parts = groups.split([self.per_group, 1, 1], dim=2)
        return [part.reshape(len(x), -1, self.d_head).contiguous() for part in parts]

    def forward(self, x, positions):
        q, k, v = self.project(x)
        q, k = rotate(q, k, self.table[positions].unsqueeze(1))
        q, k, v = (part.unsqueeze(0).transpose(1, 2) for part in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.per_group > 1)
        return self.output(y.transpose(1, 2).squeeze(0).contiguous().flatten(1))


def rotate(q, k, rows):
    pairs = [torch.view_as_complex(x.float().unflatten(-1, (-1, 2))) for x in (q, k)]
    real = [torch.view_as_real(pair * rows).flatten(-2) for pair in pairs]
    return real[0].type_as(q), real[1].type_as(k)


class Kept:
    """What `selective_ac_option: op` keeps: results of attention and of every second `mm`.

    `n_bytes`: of all that was kept so far.
    """

    def __init__(self):
        self.n_bytes = 0

    def contexts(self):
        self.n_product = 0
        return create_selective_checkpoint_contexts(self.keeps)

    def keeps(self, context, operation, *args, **kwargs) -> bool:
        name = operation.overloadpacket.__name__
        self.n_product += name == "mm"
        if not (self.n_product % 2 if name == "mm" else name in FUSED):
            return False
        results = context.op_output if isinstance(context.op_output, tuple) else [context.op_output]
        self.n_bytes += sum(x.nbytes for x in results if isinstance(x, torch.Tensor))
        return True


FUSED = ["_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention"]


def linear(d_in: int, d_out: int) -> nn.Linear:
    return nn.Linear(d_in, d_out, bias=False)


class Layer(nn.Module):
    def __init__(self, a: Decoder):
        super().__init__()
        self.attention = Attention(a)
        self.before_attention, self.before_mlp = nn.RMSNorm(a.d_model), nn.RMSNorm(a.d_model)
        self.gate, self.up = linear(a.d_model, a.d_ff), linear(a.d_model, a.d_ff)
        self.down = linear(a.d_ff, a.d_model)

    def forward(self, x, positions):
        x = x + self.attention(self.before_attention(x), positions)
        return x + self.mlp(self.before_mlp(x))

    def mlp(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class WithLoss(nn.Module):
    """A Llama that returns its loss, computed in float32, and its logits."""

    def __init__(self, a: Decoder, recompute: str):
        super().__init__()
        self.recompute, self.kept = recompute, Kept()
        self.token = nn.Embedding(a.n_vocab, a.d_model)
        self.layers = nn.ModuleList(Layer(a) for _ in range(a.n_layer))
        self.norm, self.head = nn.RMSNorm(a.d_model), linear(a.d_model, a.n_vocab)
        if a.tied:
            self.head.weight = self.token.weight

    def forward(self, tokens, targets):
        logits = self.logits(tokens.flatten())
        summed = F.cross_entropy(logits.float(), targets.flatten(), reduction="sum")
        return summed / targets.numel(), logits

    def logits(self, tokens):
        x, positions = self.token(tokens), torch.arange(len(tokens), device=tokens.device)
        for layer in self.layers:
            if self.recompute == "selective_op":  # of 2024, when it stopped early
                contexts = self.kept.contexts
                x = checkpoint(layer, x, positions, use_reentrant=False, context_fn=contexts)
            elif self.recompute == "full":
                x = checkpoint(layer, x, positions, use_reentrant=False, early_stop=False)
            else:
                x = layer(x, positions)
        return self.head(self.norm(x))


def run_of(**settings) -> RunConfig:
    given = {"length": LENGTH, "foreach": True} | settings
    return RunConfig.model_validate(implementations()["torchtitan"].settings | given)


def differences(a: Decoder, run: RunConfig, traced) -> dict[str, int]:
    """Return what is predicted less what is traced, where the two are not equal."""
    found = {}
    expected = predicted(a, run, QUANTITIES)
    for phase, n_bytes in expected.pop("peak_training_bytes").items():
        found[phase] = n_bytes - traced["peak_training_bytes"][phase]
    for quantity, values in expected.items():
        found[quantity] = sum(values.values()) - sum(traced[quantity].values())
    return {name: value for name, value in found.items() if value}


FIELDS = [{}, {"n_kv_head": 4}, {"n_vocab": 8}, {"tied": True}]


@pytest.mark.parametrize(
    ("computed", "fields", "recompute"),
    product_by_tier(KERNELS, FIELDS, ["none", "full", "selective_op"]),
)
def test_saved_bytes_and_peaks_are_predicted(computed, fields, recompute):
    """Checkpointed layers save the positions too, one tensor that is live anyway. What they keep
    for their second run autograd does not save: we count it as activations.
    """
    dtype, kernel = computed
    # Torch's memory-efficient attention takes no grouped heads (configs/attention_kernels.yaml).
    heads = {"n_kv_head": SMALL["n_head"]} if kernel == "efficient" else {}
    a = Decoder.model_validate(SMALL | fields | heads)
    run = run_of(dtype=dtype, attention_kernel=kernel, recompute=recompute, loss_chunks=1)
    with torch.device("meta"):
        model = WithLoss(a, recompute)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(getattr(torch, dtype))
    traced = train(model, run, QUANTITIES)
    n_bytes = model.kept.n_bytes // 2 - 8 * LENGTH  # of two steps
    not_traced = {"activation_bytes": n_bytes} if recompute != "none" else {}
    assert differences(a, run, traced) == not_traced


@pytest.mark.parametrize(
    ("computed", "batch", "recompute"),
    product_by_tier(KERNELS, [1, 2], ["none", "full", "selective", "selective_op"]),
)
def test_our_modules_with_its_settings_have_difference_0(computed, batch, recompute):
    dtype, kernel = computed
    a = Decoder.model_validate(SMALL)
    run = run_of(dtype=dtype, attention_kernel=kernel, recompute=recompute, batch=batch)
    assert not differences(a, run, measured(a, run))


def test_a_real_step_and_one_without_storage_hold_the_same():
    a, run = Decoder.model_validate(SMALL), run_of(dtype="float32", backend="cpu", batch=2)
    assert measured(a, run) == measured(a, run, "cpu")
    assert not differences(a, run, measured(a, run))


def test_complex_numbers_rotate_pairs_of_neighbours():
    """As the product with e^(i · position · frequency), written with real numbers."""
    from modelbudget.modules.rope import angles, complex_table, rotate_complex

    torch.manual_seed(0)
    q = torch.randn(2, 3, 5, 8, dtype=torch.float64)
    rows = complex_table(5, 8, q).expand(2, 5, 4)
    (rotated,) = rotate_complex([q], rows)
    cos, sin = angles(5, 8, "cpu").double().cos(), angles(5, 8, "cpu").double().sin()
    first, second = q[..., 0::2], q[..., 1::2]
    expected = torch.stack((first * cos - second * sin, first * sin + second * cos), -1).flatten(-2)
    assert torch.allclose(rotated, expected)
