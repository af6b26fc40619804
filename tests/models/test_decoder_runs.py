"""Tiny decoders of each kind run: forward, backward, one token after another."""

import itertools

import pytest
import torch

from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_constraints import run_mistake
from modelbudget.architecture.terms import total
from modelbudget.families.decoder import Decoder
from modelbudget.measurement.build import build
from modelbudget.measurement.step.module_settings import arrange
from modelbudget.modules.initialise import initialise
from modelbudget.modules.mixers.attention import Attention
from modelbudget.modules.position import DistanceBuckets, alibi, shift

BASE = {
    "n_vocab": 29, "d_model": 12, "n_layer": 2, "n_head": 4, "n_kv_head": 2, "d_head": 4,
    "d_ff": 20, "n_ctx": 16,
}  # fmt: skip
EXPERTS = {"mlps": "moe", "n_expert": 4, "n_expert_per_token": 2, "d_expert": 6}
LATENT = {
    "mixers": "mla", "position": "rotary", "kv_lora_rank": 5, "d_nope": 4, "d_rope": 2,
    "d_value": 3,
}  # fmt: skip
BIASES = dict.fromkeys(
    ["norm_bias", "query_bias", "key_bias", "value_bias", "output_bias", "up_bias", "down_bias"],
    True,
)
KINDS = {
    "plain": {},
    "biases": BIASES,
    "gated rmsnorm": {"gated": True, "norm": "rmsnorm", "activation": "silu", "tied": False},
    "no positions": {"position": "none"},
    "offset": {"position_offset": 2},
    "sinusoidal": {"position": "sinusoidal"},
    "rotary": {"position": "rotary"},
    "partial rotary": {"position": "rotary", "d_rotary": 2},
    "alibi": {"position": "alibi", "embedding_norm": True},
    "buckets": {"position": "buckets"},
    "relative": {"position": "relative"},
    "sinks": {"sinks": True},
    "relative with sinks": {"position": "relative", "sinks": True},
    "alibi with sinks": {"position": "alibi", "sinks": True},
    "post": {"norm_placement": "post", "final_norm": False},
    "output": {"norm_placement": "output"},
    "both": {"norm_placement": "both"},
    "parallel": {"parallel": True},
    "parallel, two norms": {"parallel": True, "shared_norm": False},
    "shared query norm": {"qk_norm": "shared"},
    "separate query norms": {"qk_norm": "separate", "qk_norm_bias": True},
    "joint query norm": {"qk_norm": "joint", "norm": "rmsnorm"},
    "factorised": {"d_emb": 5},
    "factorised untied": {"d_emb": 5, "tied": False},
    "padded": {"vocab_multiple": 8, "head_bias": True},
    "experts": EXPERTS,
    "experts with all": EXPERTS | BIASES | {
        "gated": True, "d_shared": 3, "shared_gate": True, "router_bias": "logit",
    },
    "experts by selection": EXPERTS | {"router_bias": "selection", "n_dense_layer": 1},
    "experts with a norm": EXPERTS | {"moe_output_norm": True, "n_dense_layer": 1},
    "latent": LATENT,
    "latent query": LATENT | {"q_lora_rank": 7},
    "hybrid": {"mixers": "channel_rnn attention", "d_hidden": 2, "mlps": "mlp none"},
}  # fmt: skip


@pytest.fixture(params=KINDS.values(), ids=KINDS.keys())
def a(request) -> Decoder:
    return Decoder(**BASE | request.param)


def made(a: Decoder) -> torch.nn.Module:
    torch.manual_seed(0)
    model = a.build()
    initialise(model)
    with torch.no_grad():  # away from the zeros and ones that hide a wrong wiring
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def test_logits_are_finite_and_gradients_reach_every_parameter(a):
    model = made(a)
    logits = model(torch.randint(0, a.n_vocab, (4, 16)))
    assert logits.shape == (4, 16, -(-a.n_vocab // a.vocab_multiple) * a.vocab_multiple)
    assert logits.isfinite().all()
    logits.logsumexp(-1).square().mean().backward()
    missing = [
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and (parameter.grad is None or not parameter.grad.any())
    ]
    assert missing == []


def test_no_token_sees_what_comes_after_it(a):
    model = made(a)
    tokens = torch.randint(0, a.n_vocab, (2, 9))
    changed = tokens.clone()
    changed[:, 6:] = (changed[:, 6:] + 1) % a.n_vocab
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :6], after[:, :6])
    assert not torch.allclose(before[:, 6:], after[:, 6:])


def test_runs_without_storage(a):
    with torch.device("meta"):
        model = a.build()
        logits = model(torch.zeros(2, 8, dtype=torch.long))
    assert logits.is_meta
    assert logits.shape[:2] == (2, 8)


@pytest.mark.parametrize(
    "position", ["none", "learned", "sinusoidal", "rotary", "alibi", "buckets", "relative"]
)
def test_the_last_of_one_layer_knows_the_order_by_positions_alone(position):
    model = made(Decoder(**BASE | {"n_layer": 1, "position": position}))
    tokens = torch.randint(0, 29, (1, 8))
    swapped = tokens[:, [2, 0, 1, *range(3, 8)]]
    same = torch.allclose(model(tokens)[:, -1], model(swapped)[:, -1], atol=1e-6)
    assert same == (position == "none")


def test_one_token_moves_only_its_own_experts():
    """The experts that get a gradient from one token are those that count as active."""
    a = Decoder(**BASE | EXPERTS | {"n_layer": 1, "up_bias": True, "down_bias": True})
    model = made(a)
    model(torch.tensor([[3]])).square().sum().backward()
    unused = 0
    for name, parameter in model.layer[0].moe.named_parameters():
        if not name.startswith("router"):
            moved = parameter.grad.flatten(1).any(1)
            assert moved.sum() == a.n_expert_per_token, name
            unused += parameter[~moved].numel()
    assert total(a.parameters(a)) - unused == total(a.active_parameters(a))


@pytest.mark.parametrize("gathers", [False, True])
def test_experts_are_what_a_loop_over_tokens_gives(gathers):
    """Gathered, the weights of a token have a sum of 1."""
    a = Decoder(**BASE | EXPERTS | {"n_layer": 1, "gated": True, "up_bias": True})
    experts = made(a).layer[0].moe
    x = torch.randn(2, 5, a.d_model)
    expected = torch.zeros(10, a.d_model)
    for i, token in enumerate(x.flatten(0, 1)):
        shares = (experts.router.weight @ token).softmax(0)
        best = shares.topk(a.n_expert_per_token)
        shares = shares / best.values.sum() if gathers else shares
        for e in best.indices:
            up = experts.up.weight[e] @ token + experts.up.bias[e]
            gate = experts.gate.weight[e] @ token + experts.gate.bias[e]
            hidden = torch.nn.functional.gelu(gate) * up
            expected[i] += shares[e] * (experts.down.weight[e] @ hidden)
    experts.gather(gathers)
    torch.testing.assert_close(experts(x).flatten(0, 1), expected)


def test_relative_scores_are_what_the_definition_gives():
    """Dai et al. 2019, §3.3: A = (q + u)·k + (q + v)·W r, term by term."""
    a = Decoder(**BASE | {"position": "relative", "n_kv_head": 4})
    torch.manual_seed(1)
    attention = Attention(a, "relative")
    initialise(attention)
    length = 6
    x = torch.randn(1, length, a.d_model)
    q, k, v = (
        projection(x)[0].unflatten(1, (a.n_head, a.d_head))
        for projection in (attention.query, attention.key, attention.value)
    )
    frequency = 10_000 ** (-torch.arange(0, a.d_model, 2) / a.d_model)
    heads = []
    for h in range(a.n_head):
        u, w = attention.content_bias[h, 0], attention.position_bias[h, 0]
        rows = []
        for i in range(length):
            scores = []
            for j in range(i + 1):
                angle = (i - j) * frequency
                r = attention.position(torch.cat((angle.sin(), angle.cos())))
                r = r.unflatten(0, (a.n_head, a.d_head))[h]
                scores.append((q[i, h] + u) @ k[j, h] + (q[i, h] + w) @ r)
            shares = (torch.stack(scores) / a.d_head**0.5).softmax(0)
            rows.append(shares @ v[: i + 1, h])
        heads.append(torch.stack(rows))
    expected = attention.output(torch.cat(heads, dim=1))
    torch.testing.assert_close(attention(x)[0], expected)


def test_a_sink_takes_attention_away():
    a = Decoder(**BASE | {"sinks": True})
    attention = Attention(a)
    initialise(attention)
    x = torch.randn(1, 5, a.d_model)
    with torch.no_grad():
        attention.sinks.fill_(-1e4)
        without = Attention(Decoder(**BASE))
        without.load_state_dict(attention.state_dict(), strict=False)
        torch.testing.assert_close(attention(x), without(x))
        attention.sinks.fill_(1e4)
        torch.testing.assert_close(attention(x), torch.zeros_like(x))


def test_shift_puts_distances_under_keys():
    scores = torch.arange(9.0).reshape(3, 3)
    assert shift(scores).tril().tolist() == [[0, 0, 0], [4, 3, 0], [8, 7, 6]]


@pytest.mark.parametrize("n_head", [1, 2, 4, 6, 8, 12, 112])
def test_alibi_slopes_are_those_of_bloom(n_head):
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    theirs = build_alibi_tensor(torch.ones(1, 2), n_head, torch.float32)  # (heads, 1, length)
    ours = alibi(n_head, 2, torch.empty(0))
    torch.testing.assert_close(ours[:, 1, 0] - ours[:, 1, 1], -theirs[:, 0, 1])


@pytest.mark.parametrize("n_bucket", [8, 32])
def test_buckets_are_those_of_t5(n_bucket):
    from transformers.models.t5.modeling_t5 import T5Attention

    length = 300
    places = torch.arange(length)
    theirs = T5Attention._relative_position_bucket(
        places[None, :] - places[:, None], bidirectional=False, num_buckets=n_bucket
    )
    ours = DistanceBuckets(n_bucket, 1)
    with torch.no_grad():
        ours.weight.copy_(torch.arange(n_bucket)[:, None])
        assert torch.equal(ours(length)[0].long(), theirs)


@pytest.mark.parametrize("biases", [*itertools.product([False, True], repeat=3)])
def test_what_no_linear_layer_can_be_is_refused(biases):
    """Only this sees an answer about one matrix of query, key and value that torch cannot have."""
    fields = dict(zip(("query_bias", "key_bias", "value_bias"), biases, strict=True))
    a, run = Decoder(**BASE, **fields), RunConfig(batch=1, length=4, projections="packed")
    try:
        arrange(build(a, "meta", run.dtype), run)
        is_possible = True
    except ValueError:
        is_possible = False
    assert (run_mistake(a, run) is None) == is_possible
