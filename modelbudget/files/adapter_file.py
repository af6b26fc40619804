"""The safetensors file that PEFT writes of an adapter: its tensors, and a header with their names.

Format: https://huggingface.co/docs/safetensors: a length of 8 bytes, JSON padded to 8, tensors by
dtype and name. Names: peft 0.21.2, utils/save_and_load.py, around those of the class.
"""

import json
from collections import Counter
from math import prod

from modelbudget.architecture.adapter_methods import method_of
from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_adapter import NAMES_OF_LLAMA
from modelbudget.architecture.run_config import RunConfig
from modelbudget.common.errors import InputError
from modelbudget.operations.part import NoProgramError
from modelbudget.operations.tape import BYTES, running_on
from modelbudget.quantities.tape_of_run import make_model, tape_of

CLASSES = (
    "LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM",
    "GemmaForCausalLM", "Gemma2ForCausalLM", "Olmo2ForCausalLM",
)  # fmt: skip
"""Classes whose layers have these names."""
PARTS = {"attention": "self_attn", "mlp": "mlp"}
ROLES = {role: name for name, role in NAMES_OF_LLAMA.items()}
AS_LAYER = ("lora_A", "lora_B", "oft_R")
"""Tensors that are the weight of a layer of their own; not those of AdaLoRA."""
NOT_SAVED = "ranknum"
INDICES = {"shira_weight": "shira_indices"}
"""Tensor → the tensor that has row and column of each of its numbers."""
DTYPES = {"float16": "F16", "bfloat16": "BF16", "int32": "I32", "float32": "F32"}
"""Names in a header, in the order of safetensors, which writes the last first."""
ALIGNMENT = 8


def adapter_file_bytes(class_name: str | None, a: Architecture, run: RunConfig) -> int:
    """Return the bytes of the file of a run's adapter around a class. Raises InputError."""
    if run.adapter == "none":
        raise InputError(["adapter = none: has no file; allowed: lora, …"])
    if class_name not in CLASSES:
        raise InputError([f"adapter = {run.adapter} of {class_name}: the names in its file are not "
                          f"known; allowed: adapters of {', '.join(CLASSES)}"])  # fmt: skip
    method = method_of(run.adapter)
    if run.modules_to_save != "none":
        of_whole = f"modules_to_save = {run.modules_to_save}: their names in the file are not known"
        raise InputError([f"{of_whole}; allowed: none"])
    if method.shared or run.adapter == "dora":
        raise InputError([f"adapter = {run.adapter}: what PEFT adds to its file is not known"])
    shapes, n_before = {}, Counter[str]()
    with running_on(tape_of(run)) as tape:
        try:
            make_model(tape, type(a).program(), a, run)
        except NoProgramError as error:
            raise InputError([str(error)]) from None
        for p in tape.parameters:
            owner, _, name = p.name.rpartition(".")
            if name in method.tensors and name != NOT_SAVED and owner.startswith("layer."):
                layer = run.trained_from_layer + n_before[p.name]
                n_before[p.name] += 1
                _, part, role = owner.split(".")
                path = f"model.layers.{layer}.{PARTS[part]}.{ROLES[role]}"
                is_layer = name in AS_LAYER and run.adapter != "adalora"
                shapes[f"base_model.model.{path}.{name}{'.weight' * is_layer}"] = p.shape, p.dtype
                if indices := INDICES.get(name):
                    shapes[f"base_model.model.{path}.{indices}"] = (2, *p.shape), "int32"
    return _file_bytes(shapes)


def _file_bytes(shapes: dict[str, tuple[tuple[int, ...], str]]) -> int:
    header: dict = {"__metadata__": {"format": "pt"}}
    end, order = 0, [*DTYPES]
    for name in sorted(shapes, key=lambda name: (-order.index(shapes[name][1]), name)):
        shape, dtype = shapes[name]
        start, end = end, end + BYTES[dtype] * prod(shape)
        header[name] = {"dtype": DTYPES[dtype], "shape": shape, "data_offsets": [start, end]}
    n_header = len(json.dumps(header, separators=(",", ":")))
    return 8 + n_header + -n_header % ALIGNMENT + end
