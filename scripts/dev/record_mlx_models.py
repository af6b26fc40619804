"""Record the bytes of small models that MLX has quantised on a CPU: tests/golden/mlx_models.json.

    pip install mlx==0.32.4 mlx-lm==0.32.2
    python scripts/dev/record_mlx_models.py > tests/golden/mlx_models.json

Each entry has a config.json with its `quantization_config`, and the bytes of all parameters of
mlx-lm's model, in which MLX's `quantize` converts each layer whose rows groups divide.
"""

import json
from importlib import import_module
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

SIZES = {
    "vocab_size": 320, "hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 352, "head_dim": 64, "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0, "max_position_embeddings": 128, "tie_word_embeddings": False,
}  # fmt: skip
OF_GEMMA = {"sliding_window": 8, "query_pre_attn_scalar": 64}
MODELS: list[tuple[str, str, dict[str, Any]]] = [
    ("llama", "LlamaForCausalLM", {}),
    ("llama", "LlamaForCausalLM", {"tie_word_embeddings": True}),
    ("qwen2", "Qwen2ForCausalLM", {"tie_word_embeddings": True}),
    ("qwen3", "Qwen3ForCausalLM", {}),
    ("gemma2", "Gemma2ForCausalLM", OF_GEMMA | {
        "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
        "tie_word_embeddings": True}),
    ("gemma3_text", "Gemma3ForCausalLM", OF_GEMMA | {
        "sliding_window_pattern": 2, "rope_local_base_freq": 10000.0}),
    ("olmo2", "Olmo2ForCausalLM", {}),
    ("phi3", "Phi3ForCausalLM", {"pad_token_id": 0}),
]  # fmt: skip
SETTINGS: list[dict[str, Any]] = [
    {"group_size": 64, "bits": 4},
    {"group_size": 32, "bits": 8},
    {"group_size": 128, "bits": 3},
    {"group_size": 32, "bits": 4, "mode": "mxfp4"},
]


def n_bytes(config: dict[str, Any], settings: dict[str, Any]) -> int:
    """Return the bytes of all parameters of a model that MLX has quantised."""
    module = import_module(f"mlx_lm.models.{config['model_type']}")
    model = module.Model(module.ModelArgs.from_dict(config))
    model.set_dtype(mx.bfloat16)

    def converts(_: str, layer: nn.Module) -> bool:
        return (
            hasattr(layer, "to_quantized") and not layer.weight.shape[-1] % settings["group_size"]
        )

    nn.quantize(model, class_predicate=converts, **settings)
    return sum(parameter.nbytes for _, parameter in tree_flatten(model.parameters()))


def main() -> None:
    """Print the entries."""
    entries = []
    for model_type, class_name, changed in MODELS:
        config = SIZES | changed | {"model_type": model_type, "architectures": [class_name]}
        for settings in SETTINGS:
            written = config | {"dtype": "bfloat16", "quantization_config": settings}
            entries.append({"config": written, "bytes": n_bytes(config, settings)})
    print(json.dumps(entries, indent=1))


if __name__ == "__main__":
    main()
