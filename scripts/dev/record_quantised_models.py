# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportArgumentType=false
"""Record the bytes that small models hold after transformers has quantised them on a CPU.

    pip install bitsandbytes==0.50.2 torchao==0.18.0 optimum-quanto==0.2.7
    python scripts/dev/record_quantised_models.py > tests/golden/quantised_models.json

Each entry has the config.json with its `quantization_config`, and the bytes of all parameters with
the tensors inside of them (bitsandbytes keeps most of its own outside of `parameters()`).
"""

import json
import tempfile
import warnings
from collections.abc import Iterator

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
    print(json.dumps(rows, indent=1, default=str))


if __name__ == "__main__":
    main()
