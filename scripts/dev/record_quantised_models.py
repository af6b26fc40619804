"""Record the bytes that small models hold after transformers has quantised them on a CPU.

    pip install bitsandbytes==0.50.2 torchao==0.18.0 optimum-quanto==0.2.7
    pip install compressed-tensors==0.20.0
    python scripts/dev/record_quantised_models.py > tests/golden/quantised_models.json

Each entry has the config.json with its `quantization_config`, and the bytes of all parameters with
the tensors inside of them (bitsandbytes keeps most of its own outside of `parameters()`).
"""

import json
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import transformers
from torch import nn
from transformers import AutoModelForCausalLM

SIZES = {
    "vocab_size": 320, "hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "max_position_embeddings": 128, "tie_word_embeddings": False,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
SHARED = EXPERTS | {"shared_expert_intermediate_size": 64}
LINEAR = {
    "num_hidden_layers": 4, "linear_num_value_heads": 4, "linear_num_key_heads": 2,
    "linear_key_head_dim": 32, "linear_value_head_dim": 32, "linear_conv_kernel_dim": 4,
}  # fmt: skip
MODELS = {
    "Llama": SIZES,
    "Qwen2": SIZES,
    "Mixtral": SIZES | {"num_local_experts": 4},
    "Qwen3Moe": SIZES | EXPERTS,
    "GptOss": SIZES | {"intermediate_size": 64, "num_local_experts": 4},
    "DeepseekV3": {
        "vocab_size": 320, "hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 3,
        "moe_intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4,
        "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 1,
        "topk_group": 1, "q_lora_rank": 48, "kv_lora_rank": 32, "qk_rope_head_dim": 16,
        "qk_nope_head_dim": 32, "v_head_dim": 32, "first_k_dense_replace": 1,
    },
    "GPT2": {"vocab_size": 320, "n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": 128},
    "Qwen2Moe": SIZES | SHARED,
    "Qwen3Next": SIZES | SHARED | LINEAR,
    "Qwen3_5Text": SIZES | LINEAR,
}  # fmt: skip


def quantisations() -> Iterator:
    from torchao.quantization import Int8WeightOnlyConfig

    yield transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    yield transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_use_double_quant=True)
    yield transformers.BitsAndBytesConfig(load_in_8bit=True)
    yield transformers.QuantoConfig(weights="int4")
    yield transformers.TorchAoConfig(Int8WeightOnlyConfig())


def inner(value) -> Iterator[torch.Tensor]:
    """Yield the plain tensors of a parameter."""
    if hasattr(value, "__tensor_flatten__"):
        for name in value.__tensor_flatten__()[0]:
            yield from inner(getattr(value, name))
        return
    yield value
    state = getattr(value, "quant_state", None)
    if state is not None:
        yield from (state.absmax, state.code)
        if state.nested:
            yield from (state.offset, state.state2.absmax, state.state2.code)
    if getattr(value, "SCB", None) is not None:
        yield value.SCB


def n_bytes(model: nn.Module) -> int:
    """Return the bytes of all storages of parameters; buffers are tables of RoPE and of quanto."""
    storages = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            for tensor in () if parameter is None else inner(parameter):
                storage = tensor.untyped_storage()
                storages[storage._cdata] = storage.nbytes()
    return sum(storages.values())


def group(*targets: str) -> dict:
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group",
               "group_size": 32}  # fmt: skip
    return {"targets": [*targets], "weights": weights}


def of_groups() -> Iterator[tuple[str, dict]]:
    """Yield the quantization_config of compressed-tensors whose groups choose by name."""
    kept = [
        "lm_head",
        "re:.*self_attn.*",
        "re:.*shared_experts.*",
        "re:.*mlp\\.(gate|up|down)_proj.*",
    ]
    cases = [
        ("Llama", {"a": group("re:.*self_attn.*"), "b": group("re:.*mlp.*")}, []),
        ("Llama", {"a": group("re:.*self_attn.*"), "b": group("Linear")}, []),
        ("Qwen3Moe", {"a": group("re:.*experts.*")}, []),
        ("Qwen3Moe", {"a": group("Linear")}, ["lm_head", "re:.*experts.*"]),
        ("DeepseekV3", {"a": group("Linear")}, kept),
    ]
    for name, groups, ignored in cases:
        yield (
            name,
            {
                "quant_method": "compressed-tensors",
                "format": "pack-quantized",
                "config_groups": groups,
                "ignore": ignored,
            },
        )


def apart(experts: Any) -> nn.ModuleList:
    """Return the linear layers that files have in place of stacked experts."""
    n, rows, d_model = experts.gate_up_proj.shape
    sizes = {"gate_proj": (d_model, rows // 2), "up_proj": (d_model, rows // 2),
             "down_proj": (rows // 2, d_model)}  # fmt: skip
    return nn.ModuleList(
        nn.ModuleDict(
            {
                name: nn.Linear(*size, bias=False, dtype=torch.bfloat16)
                for name, size in sizes.items()
            }
        )
        for _ in range(n)
    )


def bytes_by_groups(model: nn.Module, given: dict) -> int:
    """Return the bytes of parameters after compressed-tensors has converted a model by groups."""
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config

    for name, module in list(model.named_modules()):
        if name.endswith(".experts"):
            model.set_submodule(name, apart(module))
    config = QuantizationConfig.model_validate(given | {"quantization_status": "frozen"})
    apply_quantization_config(model, config)
    for name, parameter in model.named_parameters():
        if "scale" in name:
            parameter.data.fill_(1)
    compressor = ModelCompressor.from_pretrained_model(model, given["format"])
    compressor.compress_model(model)
    tensors = model.state_dict().items()
    return sum(t.nbytes for name, t in tensors if "e_score_correction_bias" not in name)


def main() -> None:
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    rows = []
    for name, sizes in MODELS.items():
        with tempfile.TemporaryDirectory() as folder:
            config = getattr(transformers, f"{name}Config")(**sizes)
            plain = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
            plain.save_pretrained(folder)
            for quantisation in quantisations():
                model = AutoModelForCausalLM.from_pretrained(
                    folder, quantization_config=quantisation, device_map="cpu", dtype="bfloat16"
                )
                keys = {
                    "model_type": config.model_type,
                    "architectures": [type(plain).__name__],
                    "dtype": "bfloat16",
                    "quantization_config": quantisation.to_dict(),
                }
                rows.append({"config": sizes | keys, "bytes": n_bytes(model)})
    for name, given in of_groups():
        config = getattr(transformers, f"{name}Config")(**MODELS[name])
        plain = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        keys = {
            "model_type": config.model_type,
            "architectures": [type(plain).__name__],
            "dtype": "bfloat16",
            "quantization_config": given,
        }
        rows.append({"config": MODELS[name] | keys, "bytes": bytes_by_groups(plain, given)})
    print(json.dumps(rows, indent=1, default=str))


if __name__ == "__main__":
    main()
