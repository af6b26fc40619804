"""RWKV-5, 6 and 7: printed counts, and recurrences worked out one token and head at a time."""

import pytest
import torch
from helpers.catalogue import CATALOGUE
from helpers.inference import measured_inference, predicted_inference
from helpers.other_families import TINY_MODELS
from torch.nn import functional as F

import modelbudget as mb
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.terms import total
from modelbudget.measurement.build import build
from modelbudget.sweeps.derive import named_architecture


def count(name: str) -> int:
    a = named_architecture(CATALOGUE[name])
    return total(a.parameters(a))


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        ("rwkv-7-0.1b", 64 + 32 + 64 + 128),
        ("rwkv-7-0.4b", 64 + 32 + 64 + 128),
        ("rwkv-7-1.5b", 96 + 64 + 96 + 256),
    ],
)
def test_rwkv_7_has_as_many_parameters_as_its_authors_count(name, ranks):
    """BlinkDL/RWKV-LM, README: the first layer's v0, v1 and v2 are there, and unused."""
    a = named_architecture(CATALOGUE[name])
    n_vocab, d, n_layer = a.n_vocab, a.d_model, a.n_layer
    whole = 2 * n_vocab * d + 4 * d + n_layer * (19 * d + 12 * d * d + 2 * d * ranks)
    assert count(name) == whole - d - 2 * d * a.d_value_mix


def test_the_printed_count_of_rwkv_7():
    assert count("rwkv-7-0.4b") == 450_767_872


def test_the_printed_state_of_rwkv_7():
    """The same README: 1.622016 M numbers for 24 layers of 1024 channels, 64 in a head."""
    a = named_architecture(CATALOGUE["rwkv-7-0.4b"])
    held = predicted_inference(a, RunConfig(batch=1, length=7, dtype="float32"), "cache_bytes")
    assert sum(held.values()) == 4 * 1_622_016


@pytest.mark.parametrize("name", ["rwkv-5-0.4b", "rwkv-5-1.5b", "rwkv-5-3b", "rwkv-5-7b"])
def test_rwkv_5_has_as_many_parameters_as_its_code(name):
    """Summed over SmerkyG/RWKV_Explained, rwkv5_2.py: 13 matrices and 14 vectors a layer."""
    a = named_architecture(CATALOGUE[name])
    d = a.d_model
    time = 4 * d + 5 * d * d + 2 * d + 2 * d
    channel = 2 * d + 2 * d * (int(d * 3.5) // 32 * 32) + d * d
    ends = 2 * 65536 * d + 4 * d
    assert count(name) == a.n_layer * (time + channel + 4 * d) + ends


def test_rwkv_5_rounds_its_hidden_width_down():
    """`int((args.n_embd * 3.5) // 32 * 32)` of BlinkDL/RWKV-LM, where 3.5 times a width is not
    a multiple of 32.
    """
    a = mb.model("rwkv5", n_vocab=11, d_model=800, n_head=25, d_head=32, n_layer=1).architecture
    assert a.d_ff == 2784


@pytest.mark.parametrize("name", ["rwkv-6-1.6b", "rwkv-6-3b"])
def test_rwkv_6_has_as_many_parameters_as_its_code(name):
    """Summed over SmerkyG/RWKV_Explained, rwkv6.py, with LoRAs of 32 and 64 channels."""
    a = named_architecture(CATALOGUE[name])
    d = a.d_model
    lerps = d + 5 * (d + 2 * 32 * d)
    time = lerps + (d + 2 * 64 * d) + 5 * d * d + d + 2 * d
    channel = 2 * d + 2 * d * (int(d * 3.5) // 32 * 32) + d * d
    ends = 2 * 65536 * d + 4 * d
    assert count(name) == a.n_layer * (time + channel + 4 * d) + ends


def built(name: str):
    torch.manual_seed(0)
    a = TINY_MODELS[name]
    model = build(a, "cpu", "float64")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    return a, model


def shifted(x):
    """The state before each token of (length, d_model)."""
    return torch.cat((torch.zeros_like(x[:1]), x[:-1]))


def head_norm(x, norm, n_head: int):
    """Normalise each head of (length, d_model) alone."""
    heads = F.layer_norm(x.unflatten(1, (n_head, -1)), (x.shape[1] // n_head,))
    return heads.flatten(1) * norm.weight + norm.bias


def each_head(d_model: int, d_head: int):
    return [slice(i, i + d_head) for i in range(0, d_model, d_head)]


def read_of_matrix(a, r, k, v, w, u):
    """Peng et al. 2024: y = r (S + diag(u) kᵀv), then S ← diag(w) S + kᵀv; w: (length, d_model)."""
    found = torch.empty_like(v)
    for one in each_head(a.d_model, a.d_head):
        state = torch.zeros(a.d_head, a.d_head, dtype=v.dtype)
        for t in range(len(v)):
            new = torch.outer(k[t, one], v[t, one])
            found[t, one] = r[t, one] @ (state + torch.diag(u[one]) @ new)
            state = torch.diag(w[t, one]) @ state + new
    return found


@torch.no_grad()
def test_rwkv_5_computes_its_equations():
    a, model = built("RWKV-5")
    time = model.layer[1].time
    x = torch.randn(6, a.d_model, dtype=torch.double)
    r, k, v, g = (mix * x + (1 - mix) * shifted(x) for mix in time.mix)
    w = torch.exp(-torch.exp(time.decay)).expand_as(x)
    read = read_of_matrix(a, time.receptance(r), time.key(k), time.value(v), w, time.bonus)
    expected = time.output(head_norm(read, time.norm, a.n_head) * F.silu(time.gate(g)))
    torch.testing.assert_close(time(x.unsqueeze(0))[0], expected)


@torch.no_grad()
def test_rwkv_6_computes_its_equations():
    a, model = built("RWKV-6")
    time = model.layer[1].time
    x = torch.randn(6, a.d_model, dtype=torch.double)
    change = shifted(x) - x
    low = torch.tanh((x + change * time.mix[0]) @ time.mix_down.weight.T)
    blends = []
    for i in range(5):
        own = low[:, i * a.d_mix : (i + 1) * a.d_mix] @ time.mix_up.weight[i]
        blends.append(x + change * (time.mix[i + 1] + own))
    r, k, v, g, decay = blends
    up = time.decay.up
    w = torch.tanh(decay @ time.decay.down.weight.T) @ up.weight.T + up.bias
    w = torch.exp(-torch.exp(w))
    read = read_of_matrix(a, time.receptance(r), time.key(k), time.value(v), w, time.bonus)
    expected = time.output(head_norm(read, time.norm, a.n_head) * F.silu(time.gate(g)))
    torch.testing.assert_close(time(x.unsqueeze(0))[0], expected)


@torch.no_grad()
@pytest.mark.parametrize("layer", [0, 1])
def test_rwkv_7_computes_its_equations(layer):
    """Peng et al. 2025: S ← S (diag(w) − κᵀ(a κ)) + vᵀk, with matrices written out."""
    a, model = built("RWKV-7")
    time = model.layer[layer].time
    x, first = torch.randn(2, 6, a.d_model, dtype=torch.double)
    r, w, k, v, rate, g = (x + (shifted(x) - x) * mix for mix in time.mix)
    share = None if layer == 0 else time.value_mix(v).sigmoid()
    r, k, v = time.receptance(r), time.key(k), time.value(v)
    if share is not None:
        v = torch.lerp(v, first, share)
    w = torch.exp(-0.606531 * time.decay(w).sigmoid())
    rate = time.rate(rate).sigmoid()
    old, new = k * time.removal, k + time.replacement * (k * rate - k)
    read, own = torch.empty_like(x), torch.empty_like(x)
    for one in each_head(a.d_model, a.d_head):
        state = torch.zeros(a.d_head, a.d_head, dtype=torch.double)
        for t in range(6):
            kappa = old[t, one] / old[t, one].norm()
            removed = torch.outer(kappa, rate[t, one] * kappa)
            state = state @ (torch.diag(w[t, one]) - removed) + torch.outer(v[t, one], new[t, one])
            read[t, one] = state @ r[t, one]
            own[t, one] = (r[t, one] * new[t, one] * time.bonus[one]).sum() * v[t, one]
    gate = (g @ time.gate.down.weight.T).sigmoid() @ time.gate.up.weight.T
    expected = time.output((head_norm(read, time.norm, a.n_head) + own) * gate)
    found, _ = time(x.unsqueeze(0), first.unsqueeze(0))
    torch.testing.assert_close(found[0], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["RWKV-5", "RWKV-6", "RWKV-7"])
def test_a_token_costs_the_same_after_any_number(name):
    a = TINY_MODELS[name]
    for length in (1, 9):
        run = RunConfig(batch=2, length=length)
        found = measured_inference(a, run)
        assert predicted_inference(a, run, "flops_decode") == found["flops_decode"]
        assert predicted_inference(a, run, "cache_bytes") == found["cache_bytes"]
