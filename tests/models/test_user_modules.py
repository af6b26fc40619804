"""A user's own torch modules: one that computes its loss, and one that returns logits."""

import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.functional import scaled_dot_product_attention

import modelbudget as mb
from modelbudget.common import user_code
from modelbudget.common.errors import InputError
from modelbudget.common.paths import STARTED_IN
from modelbudget.measurement.process.measure_in_processes import measure_all
from modelbudget.workflow import preflight

aten = torch.ops.aten
MODELS = '''
"""Small models in two styles of training code."""
import math

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width, n_head):
        super().__init__()
        self.n_head = n_head
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def attend(self, x):
        q, k, v = (t.unflatten(-1, (self.n_head, -1)) for t in self.qkv(x).chunk(3, -1))
        heads = (t.transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(*heads, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))

    def forward(self, x):
        x = x + self.attend(self.norm_1(x))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class WithLoss(nn.Module):
    """Tied; returns logits and loss if it gets targets, and otherwise logits of the last token."""

    def __init__(self, n_layer, d_model, n_head=2, n_vocab=50, n_ctx=32):
        super().__init__()
        self.token = nn.Embedding(n_vocab, d_model)
        self.position = nn.Embedding(n_ctx, d_model)
        self.h = nn.ModuleList(Block(d_model, n_head) for _ in range(n_layer))
        self.norm = nn.LayerNorm(d_model)
        self.head = nn.Linear(d_model, n_vocab, bias=False)
        self.head.weight = self.token.weight

    def forward(self, idx, targets=None):
        place = torch.arange(idx.shape[1], device=idx.device)
        x = self.token(idx) + self.position(place)
        for block in self.h:
            x = block(x)
        x = self.norm(x)
        if targets is None:
            return self.head(x[:, [-1]]), None
        logits = self.head(x)
        loss = F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))
        return logits, loss


class LogitsAlone(nn.Module):
    """Layers in a dictionary, RMSNorm, and complex rotations in a buffer; returns logits."""

    def __init__(self, n_layer, d_model, n_vocab=50, n_ctx=32):
        super().__init__()
        self.tok_embeddings = nn.Embedding(n_vocab, d_model)
        angles = torch.outer(torch.arange(n_ctx), 1e4 ** -(torch.arange(0, d_model, 2) / d_model))
        self.register_buffer("freqs_cis", torch.polar(torch.ones_like(angles), angles))
        self.layers = nn.ModuleDict(
            {str(i): nn.Linear(d_model, d_model, bias=False) for i in range(n_layer)}
        )
        self.norm = nn.RMSNorm(d_model)
        self.output = nn.Linear(d_model, n_vocab, bias=False)

    def forward(self, tokens):
        h = self.tok_embeddings(tokens)
        for layer in self.layers.values():
            turned = torch.view_as_complex(h.float().unflatten(-1, (-1, 2)))
            turned = torch.view_as_real(turned * self.freqs_cis[: h.shape[1]]).flatten(-2)
            h = h + layer(turned.type_as(h))
        return self.output(self.norm(h))


def with_loss(n_layer=2, d_model=16):
    return WithLoss(n_layer, d_model)


def logits_alone(n_layer=2, d_model=16):
    return LogitsAlone(n_layer, d_model)


def without_logits():
    return nn.Sequential(nn.Embedding(50, 8), nn.Flatten())


number = 3
'''
QUANTITIES = (
    "parameters, activation_bytes, peak_training_bytes, flops_forward, optimizer_bytes, cache_bytes"
)
SWEEP = """
base: module
fixed: {{batch: 2, length: 8, dtype: float32}}
points: [{{module: {name}, {sizes}}}]
measure: {{device: auto, quantities: [{quantities}, unsupported_ops]}}
"""


def counting(name: str) -> str:
    return SWEEP.format(name=name, sizes="n_layer: 1", quantities="parameters")


@pytest.fixture
def written(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "gpt.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(user_code.ALLOWED, raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] == "mine"]:
        del sys.modules[name]


@pytest.fixture
def measured(sweep, written):
    def of(function: str, sizes: str = "n_layer: 2", allowed: bool = True):
        name = f"mine.gpt:{function}"
        preflight.allow_modules(name if allowed else None)
        expanded = sweep(SWEEP.format(name=name, sizes=sizes, quantities=QUANTITIES))
        (found,) = measure_all([(p.architecture, p.run) for p in expanded.points],
                               expanded.sweep.measure, 1)  # fmt: skip
        return found

    return of


def test_a_module_that_computes_its_loss(measured):
    """Two layers of width 16, 50 tokens of vocabulary, tied; two sequences of 8 tokens."""
    found = measured("with_loss")
    assert found.method == "meta"
    layer = 2 * 2 * 16 + 3 * 16 * 16 + 16 * 16 + 2 * 4 * 16 * 16
    assert sum(found.values["parameters"].values()) == 2 * layer + (50 + 32) * 16 + 2 * 16
    assert found.shared_with == {"head": "token"}
    matrices = 2 * 2 * 8 * (2 * 12 * 16 * 16 + 16 * 50)
    attention = 2 * 2 * 4 * 8 * 8 * 16
    assert sum(found.values["flops_forward"].values()) == matrices + attention
    assert found.values["activation_bytes"]["h.up"] == 2 * 2 * 8 * 16 * 4
    assert found.values["peak_training_bytes"]["second.optimizer"] > 0
    assert "returns no cache" in found.missing["cache_bytes"]
    assert "aten.native_layer_norm" in found.values["unsupported_ops"]


def test_a_module_that_returns_logits(measured):
    found = measured("logits_alone")
    assert found.missing.keys() == {"cache_bytes"}
    assert sum(found.values["parameters"].values()) == 2 * 50 * 16 + 2 * 16 * 16 + 16
    assert found.values["parameters"]["layers"] == 2 * 16 * 16
    assert found.values["flops_forward"] == {
        "layers": 2 * 2 * 16 * 16 * 16,
        "output": 2 * 16 * 16 * 50,
    }


def test_sizes_are_arguments_of_the_function(measured):
    small, large = (measured("with_loss", f"n_layer: {n}") for n in (1, 3))
    per_layer = 2 * 2 * 16 + 12 * 16 * 16
    difference = sum(large.values["parameters"].values()) - sum(small.values["parameters"].values())
    assert difference == 2 * per_layer


@pytest.mark.parametrize(
    ("function", "sizes", "reason"),
    [
        ("without_logits", "batch: 1", "the module returns no logits (batch, length, n_vocab)"),
        ("with_loss", "n_head: 4", "unexpected keyword argument 'n_head'"),
        ("missing", "batch: 1", "mine.gpt has no function missing"),
        ("number", "batch: 1", "mine.gpt has no function number"),
    ],
)
def test_what_cannot_be_measured_has_a_reason(measured, function, sizes, reason):
    found = measured(function, sizes)
    assert reason in found.missing["activation_bytes"]


def test_code_that_the_command_line_does_not_name_never_runs(measured, written, sweep, monkeypatch):
    with (written / "mine" / "gpt.py").open("a") as file:
        file.write("\nopen('ran', 'w').close()\n")
    found = measured("with_loss", allowed=False)
    assert "is code, which only the command line allows" in found.missing["parameters"]
    assert not (written / "ran").exists()
    expanded = sweep(
        SWEEP.format(name="mine.gpt:with_loss", sizes="n_layer: 1", quantities="parameters")
    )
    with pytest.raises(InputError, match=r"--config modules=mine\.gpt:with_loss"):
        preflight.check_modules([expanded])
    monkeypatch.setenv(STARTED_IN, str(written))  # by `modelbudget sweep`, which has no --config
    with pytest.raises(InputError, match=r"--module mine\.gpt:with_loss$"):
        preflight.check_modules([expanded])
    preflight.allow_modules("mine.gpt:with_loss, other:f")
    preflight.check_modules([expanded])
    preflight.allow_modules("mine.gpt:logits_alone")
    with pytest.raises(InputError):
        preflight.check_modules([expanded])
    assert not (written / "ran").exists()


def test_a_changed_file_is_another_model(sweep, written):
    text = counting("mine.gpt:with_loss")
    before = sweep(text).points[0].architecture.digest()
    assert sweep(text).points[0].architecture.digest() == before
    (written / "mine" / "other.py").write_text("x = 1\n")
    assert sweep(text).points[0].architecture.digest() != before


@pytest.mark.parametrize(
    "name", ["mine.gpt", "../x:f", "a b:f", "mine/gpt:f", "__import__('os'):f"]
)
def test_a_name_is_a_dotted_path_and_a_function(sweep, written, name):
    with pytest.raises(InputError, match="module"):
        sweep(counting(f'"{name}"'))


def test_a_file_that_is_not_there_is_refused_before_anything_runs(sweep, written):
    preflight.allow_modules("nowhere.gpt:f")
    expanded = sweep(
        SWEEP.format(name="nowhere.gpt:f", sizes="n_layer: 1", quantities="parameters")
    )
    with pytest.raises(InputError, match="no such file in this folder or in those of PYTHONPATH"):
        preflight.check_modules([expanded])


class Attention(nn.Module):
    """One call of attention, of which autograd saves what the kernel needs."""

    def __init__(self, call):
        super().__init__()
        self.scale = nn.Parameter(torch.empty((), dtype=torch.bfloat16, device="meta"))
        self.call = call

    def forward(self, q, k, v, mask=None):
        return self.call(q, k, v, mask)


def by_name(q, k, v, mask):
    return scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None)


def grouped(q, k, v, mask):
    return F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None, enable_gqa=True)


def flash(q, k, v, mask):
    return aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[0]


def flash_of_wider_heads(q, k, v, mask):
    q, k, v = (F.pad(x, (0, 4)) for x in (q, k, v))
    return flash(q, k, v, mask)[..., :20]


def efficient(q, k, v, mask):
    return aten._scaled_dot_product_efficient_attention(q, k, v, mask, True, 0.0, mask is None)[0]


def efficient_with_padded_rows(q, k, v, mask):
    return efficient(q, k, v, F.pad(mask, (0, 4))[..., :20].expand(2, 4, 20, 20))


def by_math(q, k, v, mask):
    grouped = q.shape[1] != k.shape[1]
    of = aten._scaled_dot_product_attention_math
    return of(q, k, v, mask, 0.0, mask is None, enable_gqa=grouped)[0]


@pytest.mark.parametrize(
    ("call", "kernel", "sizes"),
    [
        (by_name, flash, {}),
        (grouped, flash, {"n_kv_head": 2}),
        (by_name, flash_of_wider_heads, {"width": 20}),
        (by_name, efficient, {"dtype": torch.float32}),
        (by_name, efficient, {"width": 264}),
        (by_name, efficient, {"width_of_values": 32}),
        (by_name, efficient_with_padded_rows, {"mask": (20, 20)}),
        (by_name, by_math, {"width": 260}),
        (by_name, by_math, {"dtype": torch.float64}),
        (grouped, by_math, {"n_kv_head": 2, "dtype": torch.float32}),
        (grouped, by_math, {"n_kv_head": 2, "mask": (20, 20)}),
        (by_name, by_math, {"mask": (20, 1)}),
    ],
)
def test_attention_of_any_module_runs_as_on_a_gpu(call, kernel, sizes):
    """Torch's dispatch of 2.13, by what each call is, against the kernel called by its name."""

    def measured(function):
        dtype, width = sizes.get("dtype", torch.bfloat16), sizes.get("width", 16)
        n_kv_head, of_values = sizes.get("n_kv_head", 4), sizes.get("width_of_values", width)
        shapes = [(2, 4, 20, width), (2, n_kv_head, 20, width), (2, n_kv_head, 20, of_values)]
        heads = [torch.empty(s, dtype=dtype, device="meta", requires_grad=True) for s in shapes]
        mask = None
        if shape := sizes.get("mask"):
            mask = torch.empty(shape, dtype=dtype, device="meta").expand(20, 20)
        found = mb.measure(Attention(function), (*heads, mask))
        return found.activation_bytes.total, found.peak_bytes

    assert measured(call) == measured(kernel)
