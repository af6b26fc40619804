"""Logits of tiny decoders against those of transformers' classes with the same weights."""

import pytest
import torch
import transformers
from helpers.transformers_decoders import config

from modelbudget.families.decoder import Decoder

TINY = {
    "n_vocab": 29, "d_model": 16, "n_layer": 2, "n_head": 4, "n_kv_head": 2, "d_head": 4,
    "d_ff": 24, "n_ctx": 16,
}  # fmt: skip
LLAMA = TINY | {
    "norm": "rmsnorm", "gated": True, "activation": "silu", "tied": False, "position": "rotary",
}  # fmt: skip
LAYERNORM = TINY | {"norm": "layernorm", "norm_bias": True, "n_kv_head": 4}
QKV_BIAS = dict.fromkeys(["query_bias", "key_bias", "value_bias"], True)
BIASES = QKV_BIAS | dict.fromkeys(["output_bias", "up_bias", "down_bias"], True)
EXPERTS = {"mlps": "moe", "n_expert": 5, "n_expert_per_token": 2, "d_expert": 8}
LATENT = {"mixers": "mla", "kv_lora_rank": 7, "d_nope": 6, "d_rope": 4, "d_value": 3}
PARTIAL = {"position": "rotary", "d_rotary": 2, "parallel": True, "tied": False}
MODELS = {
    "Llama": LLAMA,
    "Mistral": LLAMA | {"mixers": "sliding_attention", "window": 4},
    "Qwen2": LLAMA | QKV_BIAS | {"mixers": "attention sliding_attention", "window": 3},
    "SmolLM3": LLAMA | {"mixers": "attention nope_attention"},
    "Qwen3": LLAMA | {"qk_norm": "shared", "d_head": 6},
    "Olmo2": LLAMA | {"qk_norm": "joint", "norm_placement": "output"},
    "Olmoe": LLAMA | EXPERTS | {"qk_norm": "joint"},
    "StableLm": LLAMA | {
        "norm": "layernorm", "norm_bias": True, "qk_norm": "separate", "parallel": True,
        "d_rotary": 2,
    },
    "DeepseekV3": LLAMA | LATENT | {"n_kv_head": 4, "q_lora_rank": 5, "n_dense_layer": 0},
    "Phi": LAYERNORM | BIASES | PARTIAL | {"head_bias": True},
    "GPTNeoX": LAYERNORM | BIASES | PARTIAL | {"shared_norm": False},
    "OPT": LAYERNORM | BIASES | {
        "position_offset": 2, "activation": "relu", "d_emb": 10, "norm_placement": "post",
        "final_norm": False,
    },
    "Mpt": LAYERNORM | {"position": "alibi", "norm_bias": False, "d_ff": 64},
}  # fmt: skip
"""One model for each way of computing."""

SAME = {
    "rms_norm_eps": torch.finfo().eps, "layer_norm_eps": 1e-5, "pad_token_id": None,
    "rope_interleave": False, "first_k_dense_replace": 2, "n_routed_experts": 4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
}  # fmt: skip

# Where a parameter of ours stands in theirs.
MODEL = {
    "embedding.token": "model.embed_tokens",
    "norm.final": "model.norm",
    "head": "lm_head",
}
LAYER = {
    **{f"attention.{long}": f"self_attn.{short}_proj" for long, short in
       (("query", "q"), ("key", "k"), ("value", "v"), ("output", "o"))},
    "attention.query_norm": "self_attn.q_norm",
    "attention.key_norm": "self_attn.k_norm",
    "mla.query_down": "self_attn.q_a_proj",
    "mla.query_norm": "self_attn.q_a_layernorm",
    "mla.query_up": "self_attn.q_b_proj",
    "mla.kv_down": "self_attn.kv_a_proj_with_mqa",
    "mla.kv_norm": "self_attn.kv_a_layernorm",
    "mla.kv_up": "self_attn.kv_b_proj",
    "mla.output": "self_attn.o_proj",
    **{f"mlp.{name}": f"mlp.{name}_proj" for name in ("gate", "up", "down")},
    **{f"moe.{name}": f"mlp.experts.{name}_proj" for name in ("gate", "up", "down")},
    "moe.router": "mlp.gate",
    **dict.fromkeys(["norm.attention", "norm.mla", "norm.shared"], "input_layernorm"),
    **dict.fromkeys(["norm.mlp", "norm.moe"], "post_attention_layernorm"),
}  # fmt: skip
PHI = {
    "attention.output": "self_attn.dense", "mlp.up": "mlp.fc1", "mlp.down": "mlp.fc2",
    "norm.final": "model.final_layernorm",
}  # fmt: skip
OTHER = {
    "Olmo2": {
        "norm.attention": "post_attention_layernorm", "norm.mlp": "post_feedforward_layernorm",
    },
    "StableLm": {
        "attention.query_norm": "self_attn.q_layernorm",
        "attention.key_norm": "self_attn.k_layernorm",
        "norm.final": "model.norm",
    },
    "Phi": PHI,
    "GPTNeoX": {
        "embedding.token": "gpt_neox.embed_in", "layers": "gpt_neox.layers",
        "norm.final": "gpt_neox.final_layer_norm", "attention.query": "attention.q_proj",
        "attention.key": "attention.k_proj", "attention.value": "attention.v_proj",
        "attention.output": "attention.dense", "mlp.up": "mlp.dense_h_to_4h",
        "mlp.down": "mlp.dense_4h_to_h",
    },
    "OPT": {
        "embedding.token": "model.decoder.embed_tokens", "layers": "model.decoder.layers",
        "embedding.position": "model.decoder.embed_positions",
        "embedding.projection": "model.decoder.project_in",
        "head.projection": "model.decoder.project_out",
        "attention.output": "self_attn.out_proj", "norm.attention": "self_attn_layer_norm",
        "norm.mlp": "final_layer_norm", "mlp.up": "fc1", "mlp.down": "fc2",
    },
    "Mpt": {
        "embedding.token": "transformer.wte", "layers": "transformer.blocks",
        "norm.final": "transformer.norm_f", "attention.query": "attn.q_proj",
        "attention.key": "attn.k_proj", "attention.value": "attn.v_proj",
        "attention.output": "attn.out_proj", "norm.attention": "norm_1", "norm.mlp": "norm_2",
        "mlp.up": "ffn.up_proj", "mlp.down": "ffn.down_proj",
    },
}  # fmt: skip


def apart(state: dict, a: Decoder) -> dict:
    """Their weights, with what they store as one tensor taken apart, and heads put together."""
    found = {}
    for name, value in state.items():
        if "Wqkv" in name:
            parts = zip("qkv", value.chunk(3), strict=True)
            found |= {name.replace("Wqkv", f"{letter}_proj"): part for letter, part in parts}
        elif "query_key_value" in name:
            parts = zip("qkv", value.unflatten(0, (a.n_head, 3, -1)).unbind(1), strict=True)
            for letter, part in parts:
                found[name.replace("query_key_value", f"{letter}_proj")] = part.flatten(0, 1)
        elif "gate_up_proj" in name:
            gate, up = value.chunk(2, dim=1)
            found |= {name.replace("gate_up", "gate"): gate, name.replace("gate_up", "up"): up}
        elif ".norms." in name:
            whole = name.split(".norms.")[0] + ".weight"
            found[whole] = torch.cat((found.get(whole, value[:0]), value))
        else:
            found[name] = value
    return found


def copied(model, theirs: dict, kind: str) -> None:
    """Their weights into our model. A parameter of ours that theirs do not have is an error."""
    names = MODEL | LAYER | {"layers": "model.layers"} | OTHER.get(kind, {})
    for path, parameter in model.named_parameters():
        stem, _, leaf = path.rpartition(".")
        if stem.startswith("layer."):
            _, i, stem = stem.split(".", 2)
            place = f"{names['layers']}.{i}.{names[stem]}"
        else:
            place = names[stem]
        value = theirs.get(f"{place}.{leaf}", theirs.get(place))
        parameter.data.copy_(value.view_as(parameter))


@pytest.mark.parametrize("kind", MODELS)
def test_the_same_weights_give_the_same_logits(kind):
    a = Decoder(**MODELS[kind])
    settings = config(kind, a)
    activation = {"hidden_act": a.activation} if hasattr(settings, "hidden_act") else {}
    rope = SAME["rope_parameters"] | {"partial_rotary_factor": (a.d_rotary or a.d_head) / a.d_head}
    for name, value in (SAME | activation | {"rope_parameters": rope}).items():
        if hasattr(settings, name):
            setattr(settings, name, value)
    torch.manual_seed(0)
    their_class = getattr(transformers, f"{kind}ForCausalLM")
    theirs = their_class._from_config(settings, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    ours = a.build()
    copied(ours, apart(theirs.state_dict(), a), kind)
    tokens = torch.randint(0, a.n_vocab, (2, 11))
    with torch.no_grad():
        expected = theirs(tokens).logits
        torch.testing.assert_close(ours(tokens), expected, atol=1e-4, rtol=1e-4)
    assert expected.std() > 0.1
