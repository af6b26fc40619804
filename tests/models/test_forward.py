"""The modules are real models: they run, they learn, and they compute what they claim to."""

import pytest
import torch
from helpers.strategies import architectures
from helpers.tiers import examples
from hypothesis import given, settings
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from modelbudget.families.decoder import Decoder
from modelbudget.families.hybrid import Hybrid
from modelbudget.measurement.build import build
from modelbudget.modules.initialise import initialise, uninitialised
from modelbudget.modules.mixers.channel_rnn import ChannelRNN

TOKENS = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])


@given(architectures)
@settings(max_examples=examples(40))
def test_logits_are_finite_and_gradients_reach_every_parameter(architecture):
    torch.manual_seed(0)
    model = build(architecture, "cpu", "float32")
    initialise(model)
    tokens = TOKENS % architecture.n_vocab
    logits = model(tokens)
    multiple = architecture.vocab_multiple
    assert logits.shape == (*tokens.shape, -(-architecture.n_vocab // multiple) * multiple)
    assert logits.isfinite().all()
    logits.square().sum().backward()
    without = [
        name
        for name, parameter in model.named_parameters()
        if parameter.grad is None and parameter.requires_grad
    ]
    assert without == []


def test_uninitialised_draws_no_numbers():
    before = torch.get_rng_state()
    with uninitialised():
        nn.Linear(3, 3), nn.Embedding(3, 3)
    assert torch.equal(torch.get_rng_state(), before)
    nn.Linear(3, 3)
    assert not torch.equal(torch.get_rng_state(), before)


def test_gpt2_computes_what_hugging_face_computes():
    torch.manual_seed(0)
    theirs = GPT2LMHeadModel(
        GPT2Config(vocab_size=11, n_positions=8, n_embd=12, n_layer=2, n_head=3)
    )
    ours = build(
        Decoder(
            n_vocab=11, n_ctx=8, d_model=12, n_layer=2, n_head=3, n_kv_head=3, d_head=4, d_ff=48,
            norm_bias=True, query_bias=True, key_bias=True, value_bias=True, output_bias=True,
            up_bias=True, down_bias=True,
        ),
        "cpu",
        "float32",
    )  # fmt: skip
    state = {"embedding.token.weight": theirs.transformer.wte.weight,
             "embedding.position.weight": theirs.transformer.wpe.weight,
             "head.weight": theirs.transformer.wte.weight}  # fmt: skip
    state |= prefixed("norm.final.", theirs.transformer.ln_f.state_dict())
    for i, block in enumerate(theirs.transformer.h):
        layer = f"layer.{i}."
        state |= prefixed(f"{layer}norm.attention.", block.ln_1.state_dict())
        state |= prefixed(f"{layer}norm.mlp.", block.ln_2.state_dict())
        for name, weight, bias in zip(
            ("query", "key", "value"),
            block.attn.c_attn.weight.split(12, dim=1),
            block.attn.c_attn.bias.split(12),
            strict=True,
        ):
            state[f"{layer}attention.{name}.weight"] = weight.T
            state[f"{layer}attention.{name}.bias"] = bias
        for name, module in (
            ("attention.output", block.attn.c_proj),
            ("mlp.up", block.mlp.c_fc),
            ("mlp.down", block.mlp.c_proj),
        ):
            state[f"{layer}{name}.weight"] = module.weight.T
            state[f"{layer}{name}.bias"] = module.bias
    ours.load_state_dict(state)
    # Theirs approximates GELU by tanh, ours does not: the difference is known and small.
    assert torch.allclose(ours(TOKENS), theirs.eval()(TOKENS).logits, atol=1e-3)


def test_llama_computes_what_hugging_face_computes():
    torch.manual_seed(0)
    theirs = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=11, hidden_size=12, intermediate_size=20, num_hidden_layers=2,
            num_attention_heads=6, num_key_value_heads=2, head_dim=4,
            rms_norm_eps=torch.finfo(torch.float32).eps,
        )
    )  # fmt: skip
    ours = build(
        Decoder(
            n_vocab=11, d_model=12, n_layer=2, n_head=6, n_kv_head=2, d_head=4, d_ff=20,
            norm="rmsnorm", position="rotary", gated=True, activation="silu", tied=False,
        ),
        "cpu",
        "float32",
    )  # fmt: skip
    renamed = {
        "model.embed_tokens": "embedding.token", "model.layers": "layer",
        "model.norm": "norm.final",
        "self_attn": "attention", "q_proj": "query", "k_proj": "key", "v_proj": "value",
        "o_proj": "output", "gate_proj": "gate", "up_proj": "up", "down_proj": "down",
        "input_layernorm": "norm.attention", "post_attention_layernorm": "norm.mlp",
        "lm_head": "head",
    }  # fmt: skip
    state = {}
    for name, value in theirs.state_dict().items():
        for old, new in renamed.items():
            name = name.replace(old, new)
        state[name] = value
    ours.load_state_dict(state)
    assert torch.allclose(ours(TOKENS), theirs.eval()(TOKENS).logits, atol=1e-5)


def test_channel_rnn_is_one_torch_rnn_for_each_channel():
    torch.manual_seed(0)
    a = Hybrid(
        n_vocab=11, d_model=3, n_layer=1, n_head=1, n_kv_head=1, d_head=3, d_ff=3, d_hidden=4
    )
    ours = ChannelRNN(a)
    initialise(ours)
    x = torch.randn(2, 6, 3)
    outputs, parameters = [], 0
    for channel in range(3):
        cell = nn.RNN(1, 4, batch_first=True)
        parameters += sum(p.numel() for p in cell.parameters())
        cell.weight_ih_l0.data[:, 0] = ours.input[channel].data
        cell.weight_hh_l0.data = ours.hidden[channel].data
        cell.bias_ih_l0.data = ours.biases[0, channel].data
        cell.bias_hh_l0.data = ours.biases[1, channel].data
        outputs.append(cell(x[..., channel : channel + 1])[0].mean(-1))
    assert torch.allclose(ours(x), torch.stack(outputs, dim=-1), atol=1e-6)
    assert sum(p.numel() for p in ours.parameters()) == parameters


@pytest.mark.parametrize("parallel", [False, True])
def test_a_token_does_not_see_the_future(parallel):
    torch.manual_seed(0)
    model = build(
        Decoder(
            n_vocab=11, d_model=8, n_layer=2, n_head=2, n_kv_head=1, d_head=4, d_ff=8,
            position="rotary", parallel=parallel,
        ),
        "cpu",
        "float32",
    )  # fmt: skip
    initialise(model)
    changed = TOKENS.clone()
    changed[:, 3:] = 0
    assert torch.allclose(model(TOKENS)[:, :3], model(changed)[:, :3], atol=1e-6)
    assert not torch.allclose(model(TOKENS)[:, 3:], model(changed)[:, 3:], atol=1e-3)


def prefixed(prefix: str, state: dict) -> dict:
    return {prefix + name: value for name, value in state.items()}
