"""Decoders that two or four devices can compute together, and runs of them."""

import random

from modelbudget.architecture.run_config import RunConfig
from modelbudget.families.decoder import Decoder

SMALL = {"n_vocab": 1004, "d_model": 36, "n_layer": 3, "n_head": 4, "n_kv_head": 4, "d_head": 16}
SMALL |= {"d_ff": 100, "n_ctx": 64}
LLAMA = {"tied": False, "position": "rotary", "norm": "rmsnorm", "gated": True}
BIASES = [f"{name}_bias" for name in ("query", "key", "value", "output", "up", "down", "norm")]
SHAPES = {
    "GPT-2": dict.fromkeys([*BIASES, "head_bias"], True),
    "Llama": LLAMA | {"n_head": 8},
    "one key head": LLAMA | {"n_kv_head": 1},
    "PaLM": LLAMA | {"parallel": True, "n_kv_head": 1, "tied": True},
    "two norms in parallel": {"parallel": True, "shared_norm": False},
    "large layers": {"n_vocab": 32, "d_ff": 900, "n_layer": 5},
    "Gemma 2": LLAMA | {"norm_placement": "both", "tied": True},
    "norms after": {"norm_placement": "post", "embedding_norm": True, "final_norm": False},
    "a gate and windows": LLAMA
    | {"attention_gate": True, "mixers": "sliding_attention attention", "window": 5},
    "sinusoids": {"position": "sinusoidal", "n_layer": 2},
}
RUNS = [
    {"batch": 1, "length": 4},
    {"batch": 4, "length": 32},
    {"batch": 8, "length": 16, "recompute": "full"},
    {"batch": 2, "length": 4, "recompute": "full", "dropout": True},
    {"batch": 4, "length": 16, "dtype": "bfloat16", "dropout": True},
    {"batch": 2, "length": 16, "backend": "cpu", "optimizer": "momentum"},
    {"batch": 2, "length": 16, "recompute": "selective", "norm_kernel": "written_out"},
    {"batch": 2, "length": 8, "outputs": "kept", "loss_dtype": "float32", "dtype": "bfloat16"},
]


def random_share(seed: int) -> tuple[Decoder, RunConfig]:
    """Return a small decoder and a run of devices that compute it together, also with shards."""
    draw = random.Random(seed)
    devices, gates, several = draw.choice([2, 4]), draw.random() < 0.3, draw.random() < 0.4
    a: dict = {
        "n_vocab": draw.choice([8, 32, 1000]), "d_model": draw.choice([4, 36]),
        "n_layer": draw.choice([1, 3, 5]), "n_head": 4, "n_kv_head": draw.choice([1, 4]),
        "d_head": draw.choice([8, 16]), "d_ff": draw.choice([8, 100, 400]),
        "norm": draw.choice(["layernorm", "rmsnorm"]), "norm_scale": draw.random() < 0.8,
        "norm_placement": draw.choice(["pre", "post", "output", "both"]),
        "position": draw.choice(["none", "learned", "sinusoidal", "rotary", "rotary"]),
        "qk_norm": draw.choice(["none", "shared"]), "sinks": draw.random() < 0.3,
        "attention_gate": gates, "gate_per_head": gates and draw.random() < 0.5,
        "mixers": draw.choice(["attention", "sliding_attention attention"]),
        **{name: draw.random() < 0.5 for name in ("tied", "gated", "embedding_norm", "final_norm")},
        **{name: draw.random() < 0.3 for name in (*BIASES[:-1], "head_bias")},
    }  # fmt: skip
    a |= {"window": 5} if "sliding" in a["mixers"] else {}
    dtype = draw.choice(["float32", "bfloat16"])
    run: dict = {
        "batch": draw.choice([1, 2, 5]), "length": draw.choice([4, 16, 32]), "dtype": dtype,
        "tensor_parallel": devices, "sequence_parallel": draw.random() < 0.5,
        "optimizer": draw.choice(["adamw", "adamw", "momentum", "sgd"]),
        "recompute": draw.choice(["none", "full", "selective"]), "dropout": draw.random() < 0.2,
        "targets": draw.choice(["given", "shifted"]), "logit_cap": draw.choice(["none", "tanh"]),
        "loss_dtype": draw.choice(["logits", "float32"]),
        "embedding_scale": draw.choice(["none", "buffer"]),
        "embeddings": draw.choice(["freed", "held"]), "outputs": draw.choice(["freed", "kept"]),
        "norm_kernel": draw.choice(["fused", "written_out_exact"][: 1 + a["norm_scale"]]),
    }  # fmt: skip
    if draw.random() < 0.3:
        a |= {"mlps": "moe", "n_expert": 4, "n_expert_per_token": 2, "d_expert": 24}
        run |= {"sequence_parallel": True, "expert_parallel": draw.choice([1, 2])}
    if a["n_kv_head"] == 4 and len({a["query_bias"], a["key_bias"], a["value_bias"]}) == 1:
        run["projections"] = draw.choice(["separate", "packed"])
    if several:
        run |= {"zero": draw.choice([2, 3]), "data_parallel": draw.choice([2, 3])}
        run |= {"embedding_scale": "none", "logit_cap": "none"}
        run |= {"data_rank": draw.choice(["first", "last"])}
    if dtype == "bfloat16" and draw.random() < 0.6:
        casts = {"reduce_dtype": "float32"} if several else {"gradient_casts": "accumulated"}
        run |= {"master_weights": True} | casts
    return Decoder(**a), RunConfig(**run)


MLA = {"mixers": "mla", "kv_lora_rank": 12, "d_nope": 8, "d_rope": 4, "d_value": 16}
MLA |= {"position": "rotary", "window": 0, "qk_norm": "none"}
MLA |= dict.fromkeys([*BIASES[:4], "sinks", "attention_gate", "gate_per_head"], False)
NO_EXPERTS = dict.fromkeys(("n_expert", "n_expert_per_token", "d_expert"), 0)
PARTS_OF_HEADS = {
    "separate norms": {"qk_norm": "separate", "n_kv_head": 4},
    "a norm of all heads": {"qk_norm": "joint", "n_kv_head": 4},
    "inner norms": {"inner_norm": True, "mlps": "mlp"} | NO_EXPERTS,
    "a factorised embedding": {"d_emb": 12},
    "xIELU": {"activation": "xielu", "mlps": "mlp"} | NO_EXPERTS,
    "ALiBi": {"position": "alibi"},
    "buckets": {"position": "buckets", "n_bucket": 8},
    "MLA": MLA,
    "MLA with a latent of queries": MLA | {"q_lora_rank": 20},
    "MLA and attention": MLA | {"mixers": "mla attention", "q_lora_rank": 8},
}
"""Parts that have no closed peak, most of which a device computes for its own heads or channels."""


def random_share_with(part: str, seed: int) -> tuple[Decoder, RunConfig]:
    """Return a random share, with a part of `PARTS_OF_HEADS`."""
    a, run = random_share(seed)
    a = Decoder(**a.model_dump() | PARTS_OF_HEADS[part])
    is_latent = "mla" in a.mixers.split()
    update: dict = {"projections": "separate"} if is_latent else {}
    return a, run.model_copy(update=update | ({} if a.n_expert else {"expert_parallel": 1}))
