"""`implementation: nanogpt` against traces of a module that computes as nanoGPT does.

The module follows model.py of https://github.com/karpathy/nanoGPT at commit 3adf61e: LayerNorm,
CausalSelfAttention.forward, MLP.forward, Block.forward and GPT.forward. docs/measured.md has the
comparison with nanoGPT's own class.
"""

import pytest
import torch
from helpers.inference import predicted_inference
from helpers.training import predicted
from torch import nn
from torch.nn import functional as F

from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.terms import total
from modelbudget.catalogue.implementations import implementations
from modelbudget.families.decoder import Decoder
from modelbudget.measurement.step.train import train
from modelbudget.measurement.trace.backend import backend
from modelbudget.measurement.trace.module_trace import Trace

QUANTITIES = {"gradient_bytes", "optimizer_bytes", "activation_bytes", "peak_training_bytes"}
SMALL = {
    "n_ctx": 64, "n_layer": 3, "d_model": 64, "n_head": 4, "n_kv_head": 4, "d_head": 16,
    "d_ff": 256, "norm": "layernorm", "activation": "gelu", "tied": True,
}  # fmt: skip
BIASES = (
    "norm_bias", "query_bias", "key_bias", "value_bias", "output_bias", "up_bias", "down_bias",
)  # fmt: skip


class Layer(nn.Module):
    """One matrix for queries, keys and values; attention of torch; exact GELU; two residuals."""

    def __init__(self, a: Decoder, drop: float):
        super().__init__()
        bias, width = a.norm_bias, a.d_model
        self.n_head, self.drop = a.n_head, nn.Dropout(drop)
        self.before_attention, self.before_mlp = (nn.LayerNorm(width, bias=bias) for _ in range(2))
        self.packed = nn.Linear(width, 3 * width, bias=bias)
        self.output = nn.Linear(width, width, bias=bias)
        self.up, self.down = nn.Linear(width, a.d_ff, bias), nn.Linear(a.d_ff, width, bias)

    def forward(self, x):
        x = x + self.attend(self.before_attention(x))
        return x + self.drop(self.down(F.gelu(self.up(self.before_mlp(x)))))

    def attend(self, x):
        parts = self.packed(x).split(x.shape[-1], dim=2)
        q, k, v = (one.unflatten(2, (self.n_head, -1)).transpose(1, 2) for one in parts)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.drop.p, is_causal=True)
        return self.drop(self.output(y.transpose(1, 2).flatten(2)))


class WithLoss(nn.Module):
    """A GPT-2 with tied embedding that returns logits and loss."""

    def __init__(self, a: Decoder, drop: float, holds_embeddings: bool = True):
        super().__init__()
        self.holds_embeddings, self.drop = holds_embeddings, nn.Dropout(drop)
        self.token = nn.Embedding(a.n_vocab, a.d_model)
        self.position = nn.Embedding(a.n_ctx, a.d_model)
        self.layers = nn.ModuleList(Layer(a, drop) for _ in range(a.n_layer))
        self.norm = nn.LayerNorm(a.d_model, bias=a.norm_bias)
        self.head = nn.Linear(a.d_model, a.n_vocab, bias=False)
        self.head.weight = self.token.weight

    def forward(self, tokens, targets):
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        embedded = [self.token(tokens), self.position(positions)]
        x = self.drop(embedded[0] + embedded[1])
        if not self.holds_embeddings:
            embedded.clear()
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class MLP(nn.Module):
    """The products of an MLP as a module, which holds its argument while it runs."""

    def __init__(self, up, down):
        super().__init__()
        self.up, self.down = up, down

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class LayerOfModules(Layer):
    """The same with the MLP as a module, as nanoGPT's own is, and that of `transformers`."""

    def __init__(self, a: Decoder):
        super().__init__(a, 0.0)
        self.mlp = MLP(self.up, self.down)

    def forward(self, x):
        x = x + self.attend(self.before_attention(x))
        return x + self.mlp(self.before_mlp(x))


@pytest.mark.parametrize("is_module", [True, False])
def test_in_inference_a_module_holds_its_argument(is_module):
    """One state of all tokens, the MLP's, that a layer with products of its own has freed."""
    a = Decoder.model_validate(SMALL | {"n_vocab": 99} | dict.fromkeys(BIASES, True))
    run = RunConfig(batch=2, length=48, dtype="bfloat16", attention_kernel="flash")
    with torch.device("meta"):
        model = WithLoss(a, 0.0).eval().to(torch.bfloat16)
        if is_module:
            model.layers = nn.ModuleList(LayerOfModules(a).bfloat16() for _ in model.layers)
    trace = Trace(model)
    with torch.no_grad(), backend(run.backend, run.attention_kernel), trace.watching("prefill"):
        tokens = torch.zeros(run.batch, run.length, dtype=torch.long, device="meta")
        x = model.token(tokens)
        for layer in model.layers:
            x = layer(x)
    peak = predicted_inference(a, run, "peak_inference_bytes")["prefill"]
    predicted = peak - total(a.cache_bytes(a, run))
    states = 2 * run.batch * run.length * a.d_model
    assert trace.peak == predicted - (not is_module) * states


def differences(bias: bool = True, n_vocab: int = 500, holds_embeddings: bool = True, **settings):
    """Return what is predicted less what is traced, where the two are not equal."""
    a = Decoder.model_validate(SMALL | {"n_vocab": n_vocab} | dict.fromkeys(BIASES, bias))
    run = RunConfig.model_validate(implementations()["nanogpt"].settings | settings)
    with torch.device("meta"):
        model = WithLoss(a, 0.1 * run.dropout, holds_embeddings)
    traced = train(model.to(getattr(torch, run.dtype)), run, QUANTITIES)
    found = {}
    of_run = predicted(a, run, QUANTITIES)
    for phase, peak in of_run.pop("peak_training_bytes").items():
        found[phase] = peak - traced["peak_training_bytes"][phase]
    for quantity, values in of_run.items():
        found[quantity] = sum(values.values()) - sum(traced[quantity].values())
    return {name: value for name, value in found.items() if value}


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("dtype", "kernel"),
    [("float32", "efficient"), ("float32", "math"), ("bfloat16", "flash"), ("bfloat16", "math")],
)
def test_saved_bytes_and_peaks_are_predicted(dtype, kernel, bias, dropout, foreach):
    assert not differences(
        bias, batch=3, length=48, dtype=dtype, attention_kernel=kernel, dropout=dropout,
        foreach=foreach,
    )  # fmt: skip


@pytest.mark.parametrize(("n_vocab", "batch", "length"), [(20, 4, 64), (5000, 1, 8), (8, 2, 60)])
def test_where_the_peak_is_elsewhere(n_vocab, batch, length):
    """In the layers, in the gradients of the embedding, in the loss."""
    assert not differences(
        n_vocab=n_vocab, batch=batch, length=length, dtype="bfloat16", attention_kernel="flash"
    )


@pytest.mark.parametrize("kernel", ["flash", "efficient", "math"])
def test_autocast_as_train_py_has_it(kernel):
    assert not differences(batch=3, length=48, autocast="bfloat16", attention_kernel=kernel)


def test_embeddings_are_held_through_the_forward_pass():
    """Local variables of GPT.forward, which a peak in the last layer's forward pass contains.

    With materialised scores in float32, which dropout makes once more, and next to no vocabulary.
    Without them it is predicted.
    """
    run = {"batch": 3, "length": 48, "dtype": "bfloat16", "attention_kernel": "math"}
    run |= {"dropout": True}
    of_embeddings = 2 * (3 + 1) * 48 * 64
    short = differences(n_vocab=8, **run)
    assert short.keys() == {"first.forward_backward", "second.forward_backward"}
    assert all(-of_embeddings <= value < 0 for value in short.values())
    assert not differences(n_vocab=8, holds_embeddings=False, **run)
