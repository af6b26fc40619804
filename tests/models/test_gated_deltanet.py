"""Gated DeltaNet and gated attention: predictions against traces, modules against transformers."""

import pytest
import torch
import transformers
from helpers.inference import measured_inference, predicted_inference
from helpers.training import PREDICTED, measured, predicted, without_zeros
from helpers.transformers_decoders import config

from modelbudget.architecture.run_config import RunConfig
from modelbudget.families.decoder import Decoder
from modelbudget.measurement.build import build
from modelbudget.modules.cache import caching
from modelbudget.modules.initialise import initialise
from modelbudget.predict.cache_bytes import layer_caches
from modelbudget.sweeps.derive import named_architecture

EPSILON = torch.finfo(torch.float32).eps
"""Of torch's RMSNorm."""
LINEAR = {
    "mixers": "gated_deltanet", "n_linear_head": 4, "n_linear_key_head": 2, "d_linear_key": 6,
    "d_linear_value": 10, "d_linear_convolution": 4,
}  # fmt: skip
SIZES = {
    "n_vocab": 19, "d_model": 16, "n_layer": 2, "n_head": 2, "n_kv_head": 1, "d_head": 8,
    "d_ff": 24, "norm": "rmsnorm", "position": "rotary", "gated": True, "activation": "silu",
}  # fmt: skip
QWEN = SIZES | LINEAR | {
    "mixers": "gated_deltanet gated_deltanet gated_deltanet attention", "n_layer": 4,
    "qk_norm": "shared", "attention_gate": True, "tied": False, "mlps": "moe", "n_expert": 4,
    "n_expert_per_token": 2, "d_expert": 8, "d_shared": 8, "shared_gate": True, "d_rotary": 2,
}  # fmt: skip
KINDS = {
    "alone": SIZES | LINEAR,
    "as many key heads": SIZES | LINEAR | {"n_linear_key_head": 4, "d_linear_convolution": 1},
    "one channel": SIZES | LINEAR
    | {"n_linear_head": 1, "n_linear_key_head": 1, "d_linear_key": 1, "d_linear_value": 1},
    "Qwen3-Next": QWEN,
}  # fmt: skip
RUNS = {
    "GPU": {"batch": 2, "length": 100},
    "half precision": {"length": 130, "dtype": "bfloat16", "recompute": "selective"},
    "CPU": {"batch": 3, "length": 200, "dtype": "float64", "backend": "cpu"},
    "one chunk": {"batch": 2, "length": 9},
    "one token": {"length": 1, "dropout": True, "recompute": "full"},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("run", RUNS)
def test_training_is_predicted_component_by_component(kind, run):
    a, run = Decoder(**KINDS[kind]), RunConfig(**RUNS[run])
    found, expected = measured(a, run, quantities=PREDICTED), predicted(a, run)
    for quantity in PREDICTED:
        assert without_zeros(expected[quantity]) == without_zeros(found[quantity]), quantity


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("run", RUNS)
def test_inference_is_predicted(kind, run):
    a, run = Decoder(**KINDS[kind]), RunConfig(**RUNS[run])
    found = measured_inference(a, run)
    for quantity in ("cache_bytes", "flops_decode", "peak_inference_bytes"):
        assert predicted_inference(a, run, quantity) == without_zeros(found[quantity])


def test_states_and_keys_of_a_program_are_those_of_each_layer(catalogue):
    """Only this sees a program's cache that engines cannot divide among layers and heads.

    By hand: 12 layers of 2 heads with keys and values of 256 channels; in 36 others 32 states of
    128 × 128 in float32, and 4 tokens of 2 · 16 · 128 + 32 · 128 channels in bfloat16.
    """
    a = named_architecture(catalogue["qwen3-next-80b-a3b"])
    attention, *states = layer_caches(a, RunConfig(dtype="bfloat16"))
    assert (attention.n_layer, attention.vectors) == (12, ((2, 256, False),) * 2)
    assert {state.n_layer for state in states} == {36}
    assert sum(state.state for state in states) == 4 * 32 * 128**2 + 2 * 4 * 8192


def test_a_token_at_a_time_gives_what_all_at_once_give():
    model = build(Decoder(**QWEN), "cpu", "float64").eval()
    torch.manual_seed(0)
    initialise(model)
    tokens = torch.randint(19, (2, 70))
    with torch.no_grad():
        at_once = model(tokens)
    with caching(model, 2, 70):
        steps = [model(tokens[:, :66]), *(model(tokens[:, i : i + 1]) for i in range(66, 70))]
    torch.testing.assert_close(torch.cat(steps, dim=1), at_once)


def test_the_named_model_counts_as_the_class(catalogue):
    """By component: theirs stores queries with gates, queries to gates, and β with decays as one.
    Their buffers of the mixer are parameters.
    """
    a = named_architecture(catalogue["qwen3-next-80b-a3b"])
    with torch.device("meta"):
        theirs = transformers.Qwen3NextForCausalLM(config("Qwen3Next", a))
    ours = {name: term.each for name, term in a.parameters(a).items()}
    layers = theirs.model.layers
    linear, attention, moe = layers[0].linear_attn, layers[3].self_attn, layers[0].mlp

    def of(part: str, *names: str) -> int:
        return sum(ours[f"layer.{part}.{name}"] for name in names)

    pairs = {
        linear.in_proj_qkvz: of("gated_deltanet", "query_key_value", "gate"),
        linear.in_proj_ba: of("gated_deltanet", "beta", "decay"),
        linear.conv1d: of("gated_deltanet", "convolution"),
        linear.norm: of("gated_deltanet", "norm"),
        linear.out_proj: of("gated_deltanet", "output"),
        attention.q_proj: of("attention", "query", "gate"),
        attention.o_proj: of("attention", "output"),
        moe.experts: of("moe", "gate", "up", "down"),
        moe.shared_expert_gate: of("moe", "shared_gate"),
        theirs.model.embed_tokens: ours["embedding.token"],
    }
    assert {m: sum(p.numel() for p in m.parameters()) for m in pairs} == pairs
    total = sum(term.total for term in a.parameters(a).values())
    assert total == sum(parameter.numel() for parameter in theirs.parameters())


def taken_apart(state: dict, a) -> dict:
    """Their weights as ours: by our names below a layer, with norms that scale by 1 + w."""
    found = {}
    group = a.n_linear_head // a.n_linear_key_head
    width = group * a.d_linear_value
    for name, value in state.items():
        if "norm" in name and "linear_attn" not in name:
            value = value + 1
        if name.endswith("self_attn.q_proj.weight"):
            query, gate = value.unflatten(0, (a.n_head, 2, -1)).unbind(1)
            found[name] = query.flatten(0, 1)
            found[name.replace("q_proj", "gate")] = gate.flatten(0, 1)
        elif name.endswith("in_proj_qkvz.weight"):
            widths = [a.d_linear_key, a.d_linear_key, width, width]
            parts = value.unflatten(0, (a.n_linear_key_head, -1)).split(widths, 1)
            *qkv, gate = (part.flatten(0, 1) for part in parts)
            found[name.replace("in_proj_qkvz", "query_key_value")] = torch.cat(qkv)
            found[name.replace("in_proj_qkvz", "gate")] = gate
        elif name.endswith("in_proj_ba.weight"):
            beta, decay = value.unflatten(0, (a.n_linear_key_head, -1)).split(group, 1)
            found[name.replace("in_proj_ba", "beta")] = beta.flatten(0, 1)
            found[name.replace("in_proj_ba", "decay")] = decay.flatten(0, 1)
        elif name.endswith("gate_up_proj"):
            gate, up = value.chunk(2, dim=1)
            found |= {name.replace("gate_up", "gate"): gate, name.replace("gate_up", "up"): up}
        else:
            found[name] = value
    return found


THEIRS = {
    "embedding.token.": "model.embed_tokens.", "norm.final.": "model.norm.", "head.": "lm_head.",
    "norm.gated_deltanet.": "input_layernorm.", "norm.attention.": "input_layernorm.",
    "norm.moe.": "post_attention_layernorm.", "gated_deltanet.rate": "linear_attn.A_log",
    "gated_deltanet.step": "linear_attn.dt_bias", "gated_deltanet.output.": "linear_attn.out_proj.",
    "gated_deltanet.convolution.": "linear_attn.conv1d.", "gated_deltanet.": "linear_attn.",
    "attention.query_norm.": "self_attn.q_norm.", "attention.key_norm.": "self_attn.k_norm.",
    "attention.query.": "self_attn.q_proj.", "attention.key.": "self_attn.k_proj.",
    "attention.value.": "self_attn.v_proj.", "attention.output.": "self_attn.o_proj.",
    "attention.gate.": "self_attn.gate.", "moe.router.": "mlp.gate.",
    "moe.shared_gate.": "mlp.shared_expert_gate.",
    **{f"moe.shared.{n}.": f"mlp.shared_expert.{n}_proj." for n in ("gate", "up", "down")},
    **{f"moe.{n}.weight": f"mlp.experts.{n}_proj" for n in ("gate", "up", "down")},
}  # fmt: skip


def test_the_same_weights_give_the_same_logits():
    a = Decoder(**QWEN)
    rope = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.25}
    same = {"norm_topk_prob": False, "rope_parameters": rope, "rms_norm_eps": EPSILON}
    settings = config("Qwen3Next", a)
    for name, value in same.items():
        setattr(settings, name, value)
    torch.manual_seed(0)
    theirs = transformers.Qwen3NextForCausalLM._from_config(settings, attn_implementation="eager")
    theirs = theirs.eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    ours, weights = a.build(), taken_apart(theirs.state_dict(), a)
    for path, parameter in ours.named_parameters():
        layer, _, rest = path.removeprefix("layer.").partition(".")
        inside = path.startswith("layer.")
        rest = rest if inside else path
        key = next(key for key in THEIRS if rest.startswith(key))
        name = THEIRS[key] + rest.removeprefix(key)
        value = weights[f"model.layers.{layer}.{name}" if inside else name]
        parameter.data.copy_(value.view_as(parameter))
    tokens = torch.randint(0, a.n_vocab, (2, 70))
    with torch.no_grad():
        expected = theirs(tokens).logits
        torch.testing.assert_close(ours(tokens), expected, atol=1e-4, rtol=1e-4)
    assert expected.std() > 0.1
