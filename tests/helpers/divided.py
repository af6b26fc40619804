"""Decoders that two or four devices can compute together, and runs of them."""

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
