"""Zamba and Zamba2 against the classes of transformers, with the same weights."""

import pytest
import torch
from helpers.inference import measured_inference, predicted_inference
from helpers.other_families import TINY_MODELS, TOKENS
from transformers import (
    DynamicCache,
    Zamba2Config,
    Zamba2ForCausalLM,
    ZambaConfig,
    ZambaForCausalLM,
)

from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.terms import total
from modelbudget.families.zamba import Zamba2
from modelbudget.measurement.build import build

MIXER = {
    "conv1d.weight": "convolution.weight", "conv1d.bias": "convolution.bias", "D": "skip",
    "A_log": "decay", "out_proj.weight": "output.weight",
}  # fmt: skip
MIXERS = {
    "Zamba": MIXER | {
        "x_proj_weight": "selection.weight", "dt_proj_weight": "step.weight",
        "dt_proj_bias": "step.bias",
    },
    "Zamba2": MIXER | {
        "in_proj.weight": "input.weight", "dt_bias": "step", "norm.weight": "norm.weight",
    },
}  # fmt: skip
ATTENTION = {"q": "query", "k": "key", "v": "value", "o": "output"}


def theirs(name: str):
    a = TINY_MODELS[name]
    words = a.mixers.split()
    sizes = {
        "vocab_size": a.n_vocab, "hidden_size": a.d_model, "num_hidden_layers": a.n_layer,
        "intermediate_size": a.d_ff, "num_attention_heads": a.n_head,
        "num_key_value_heads": a.n_head, "pad_token_id": 0,
        "layers_block_type": [
            "hybrid" if words[i % len(words)] == "hybrid" else "linear_attention"
            for i in range(a.n_layer)
        ],
    }  # fmt: skip
    if name == "Zamba":
        settings = ZambaConfig(
            **sizes, mamba_d_state=a.d_scan_state, mamba_dt_rank=a.d_scan_step,
            n_mamba_heads=a.n_scan_head,
        )  # fmt: skip
        return ZambaForCausalLM(settings)
    settings = Zamba2Config(
        **sizes, mamba_d_state=a.d_mamba_state, mamba_ngroups=a.n_mamba_group, use_mem_rope=True,
        n_mamba_heads=a.n_mamba_head, num_mem_blocks=a.n_shared_block, adapter_rank=a.d_adapter,
        use_shared_attention_adapter=True,
    )  # fmt: skip
    return Zamba2ForCausalLM(settings)


def renamed(name: str, model) -> dict:
    """Their weights under our names; gate and up, and the channels of an input, in our order."""
    state = {
        "embedding.token.weight": model.model.embed_tokens.weight,
        "norm.final.weight": model.model.final_layernorm.weight,
        "head.weight": model.lm_head.weight,
    }
    n_use = 0
    for i, layer in enumerate(model.model.layers):
        mamba = getattr(layer, "mamba_decoder", layer)
        state[f"layer.{i}.norm.weight"] = mamba.input_layernorm.weight
        parameters = dict(mamba.mamba.named_parameters())
        if name == "Zamba":
            inner = parameters["in_proj.weight"].unflatten(0, (-1, 2)).transpose(0, 1)
            state[f"layer.{i}.mixer.input.weight"] = inner.flatten(0, 1)
        for there, ours in MIXERS[name].items():
            state[f"layer.{i}.mixer.{ours}"] = parameters[there]
        if mamba is layer:
            continue
        state[f"layer.{i}.use.linear.weight"] = layer.linear.weight
        block = getattr(layer, "shared_transformer", getattr(layer, "shared_transf", None))
        ours = f"block.{n_use % TINY_MODELS[name].n_shared_block}"
        state[f"{ours}.norm.attention.weight"] = block.input_layernorm.weight
        state[f"{ours}.norm.mlp.weight"] = block.pre_ff_layernorm.weight
        for letter, word in ATTENTION.items():
            weight = getattr(block.self_attn, f"{letter}_proj").weight
            state[f"{ours}.attention.{word}.weight"] = weight
            adapters = getattr(block.self_attn, f"linear_{letter}_adapter_list", None)
            if adapters is not None:
                for j in (0, 1):
                    state[f"layer.{i}.use.{word}.{j}.weight"] = adapters[n_use][j].weight
        mlp = block.feed_forward
        state[f"{ours}.mlp.down.weight"] = mlp.down_proj.weight
        if name == "Zamba":
            gate, up = mlp.gate_proj.weight, mlp.up_proj.weight
        else:
            gate, up = mlp.gate_up_proj.weight.chunk(2)
            for j in (0, 1):
                weight = mlp.gate_up_proj_adapter_list[n_use][j].weight
                state[f"layer.{i}.use.mlp.{j}.weight"] = weight
        state[f"{ours}.mlp.gate.weight"], state[f"{ours}.mlp.up.weight"] = gate, up
        n_use += 1
    return state


@pytest.mark.parametrize("name", ["Zamba", "Zamba2"])
def test_logits_equal_those_of_the_class(name):
    torch.manual_seed(0)
    model = theirs(name).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    for module in model.modules():
        if hasattr(module, "variance_epsilon"):  # as small as torch's own
            module.variance_epsilon = torch.finfo(torch.float32).eps
        if hasattr(module, "time_step_limit"):  # ours has none
            module.time_step_limit = (0.0, float("inf"))
    ours = build(TINY_MODELS[name], "cpu", "float32")
    state = renamed(name, model)
    assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in ours.parameters())
    ours.load_state_dict({k: state[k].reshape(v.shape) for k, v in ours.state_dict().items()})
    with torch.no_grad():
        expected = model(TOKENS, logits_to_keep=0).logits
        torch.testing.assert_close(ours(TOKENS), expected, atol=1e-4, rtol=1e-4)
    assert expected.std() > 0.1


@pytest.mark.parametrize("name", ["Zamba", "Zamba2"])
def test_the_class_keeps_as_much(name):
    """Keys and values of each use of a shared block, and states in the dtype of its own scan."""
    a, run = TINY_MODELS[name], RunConfig(batch=2, length=8)
    kept = theirs(name).eval()(TOKENS, use_cache=True).past_key_values
    assert isinstance(kept, DynamicCache)
    held = {"states": 0, "keys": 0}
    for layer in kept.layers:
        if hasattr(layer, "conv_states"):
            states = [*layer.conv_states.values(), *layer.recurrent_states.values()]
            held["states"] += sum(state.nbytes for state in states)
        if getattr(layer, "keys", None) is not None:
            held["keys"] += layer.keys.nbytes + layer.values.nbytes
    found = predicted_inference(a, run, "cache_bytes")
    assert held["keys"] == found.pop("layer.use")
    assert held["states"] == sum(found.values())


def test_a_token_costs_as_much_as_a_hand_count_says():
    """Zamba2 with one layer, which uses a block: d_model 4, everything else 2 or 1."""
    a = Zamba2(
        n_vocab=3, d_model=4, n_layer=1, mixers="hybrid", n_head=1, d_head=8, d_ff=2, d_adapter=1,
        n_mamba_head=2, d_mamba_head=4, n_mamba_group=1, d_mamba_state=2, norm="rmsnorm",
    )  # fmt: skip
    block = 3 * 8 * 8 + 8 * 4 + 3 * 4 * 2 + 8 + 4
    use = 4 * 4 + (4 + 2 * 2)
    mixer = 4 * (8 + 12 + 2) + 12 * 4 + 12 + 3 * 2 + 8 + 8 * 4
    assert total(a.parameters(a)) == 3 * 4 + block + use + mixer + 4 + 4
    run = RunConfig(batch=1, length=5)
    weights = 3 * 8 * 8 + 8 * 4 + 3 * 4 * 2 + use + 4 * 22 + 12 * 4 + 8 * 4 + 3 * 4
    products = 2 * (weights + 5 * (8 + 8) + 8 * 2)
    assert sum(predicted_inference(a, run, "flops_decode").values()) == products
    assert sum(measured_inference(a, run)["flops_decode"].values()) == products
