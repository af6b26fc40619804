"""The format of quantised weights that a config.json names in `quantization_config`."""

import re
from typing import Any

from modelbudget.huggingface.run_settings import Note

NOT_CONVERTED = re.compile(
    r"(re:)?(.*\.)?(lm_head|embed_\w+|mlp\.(shared_expert_)?gate|block_sparse_moe\.gate|\w*router|"
    r"\w*norm|(visual|vision_\w+|audio_\w+|multi_modal_projector|mlp1)(\..*)?)(\.weight)?\$?"
)
"""Modules that have the dtype in every format, or that are not of the language model.

Naming them among the exceptions changes nothing."""
SKIPPED = ("modules_to_not_convert", "ignored_layers", "ignore", "llm_int8_skip_modules")
"""Keys of the modules that are not converted."""
PARTIAL = ("modules_in_block_to_quantize", "dynamic", "lm_head")
"""Keys of settings that no formula covers, where they are set."""
OF_AUTOGPTQ = ("model_name_or_path", "model_file_base_name")
"""Keys that AutoGPTQ writes; its layers have a bias of zeros where the model has none."""
CONV1D = {"gpt2", "openai-gpt", "imagegpt", "decision_transformer", "clvp"}
"""Model types whose matrices are `Conv1D` of transformers, in place of `torch.nn.Linear`."""
OF_CONV1D = ("bitsandbytes", "gptq")
"""Methods that convert `Conv1D` too; the others leave it in the dtype."""
OF_MXFP4 = {"gpt_oss"}
"""Model types whose experts transformers converts to MXFP4; it leaves all others in the dtype."""


def weight_format(config: dict[str, Any], fields: dict[str, Any]) -> tuple[dict, list[Note]]:
    """Return the fields of the run for quantised weights, with a note; nothing if there are none.

    `fields`: those of the architecture. A format without formula is `unknown`: its bytes are
    refused.
    """
    given = config.get("quantization_config")
    if not isinstance(given, dict):
        return {}, []
    method = str(given.get("quant_method") or "bitsandbytes")
    of_cache = cache_format(given)
    found = _format(method, given) if _is_whole(method, config, fields) else None
    if found is None or of_cache is None:
        text = f"quantization_config: {method}: no formula covers it: bytes are refused"
        return {"weights": "unknown"}, [Note(text, "bytes")]
    weights, group = found
    of_run = {"weights": weights} | ({} if group is None else {"weight_group": max(group, 0)})
    listed = ", ".join(f"{name}: {value}" for name, value in of_run.items())
    note = Note(f"quantization_config: {method}: used as {listed}", "bytes", "weights")
    cache, notes = of_cache
    return of_run | cache, [note, *notes]


def cache_format(given: dict[str, Any]) -> tuple[dict[str, str], list[Note]] | None:
    """Return the format of the cache that `kv_cache_scheme` names, with a note; None if unknown.

    Its scales, two numbers a layer, are not counted.
    """
    scheme = given.get("kv_cache_scheme")
    if not scheme:
        return {}, []
    if not isinstance(scheme, dict) or (scheme.get("type"), scheme.get("num_bits")) != ("float", 8):
        return None
    if scheme.get("strategy", "tensor") != "tensor":
        return None
    text = "kv_cache_scheme: float, 8 bits: used as cache_dtype: fp8"
    return {"cache_dtype": "fp8"}, [Note(text, "bytes", "cache_dtype")]


def _is_whole(method: str, config: dict[str, Any], fields: dict[str, Any]) -> bool:
    """Whether exactly the matrices of the layers are converted, or those of experts in MXFP4."""
    given, model_type = config["quantization_config"], config.get("model_type")
    if any(given.get(key) for key in PARTIAL):
        return False
    if method == "gptq" and any(key in given for key in OF_AUTOGPTQ):
        return False
    if model_type in CONV1D and method not in OF_CONV1D:
        return False
    # Experts are stacked in transformers 5, which bitsandbytes leaves as they are.
    if method == "bitsandbytes" and "moe" in fields.get("mlps", ""):
        return False
    skipped = [name for key in SKIPPED for name in given.get(key) or ()]
    if method == "mxfp4":
        return model_type in OF_MXFP4 and any("self_attn" in name for name in skipped)
    return all(NOT_CONVERTED.fullmatch(str(name)) for name in skipped)


def _format(method: str, given: dict[str, Any]) -> tuple[str, int | None] | None:
    """Return the word of a format and its group size, if it has one; None for other formats."""
    bits, group = given.get("bits"), given.get("group_size")
    match method:
        case "awq" if bits == 4 and given.get("version", "gemm").lower() == "gemm":
            return "awq", group
        case "gptq" if bits in (4, 8):
            return f"gptq-{bits}bit", group
        case "bitsandbytes" if given.get("load_in_8bit"):
            return "bnb-8bit", None
        case "bitsandbytes" if given.get("load_in_4bit"):
            double = given.get("bnb_4bit_use_double_quant")
            return "bnb-4bit-double" if double else "bnb-4bit", None
        case "fp8" if given.get("weight_block_size") == [128, 128]:
            return ("fp8-block", None) if given.get("activation_scheme") != "static" else None
        case "mxfp4":
            return "mxfp4", None
        case "compressed-tensors":
            return _compressed(given)
    return None


def _compressed(given: dict[str, Any]) -> tuple[str, int | None] | None:
    """Return the format of compressed-tensors, where all linear layers have the same."""
    groups = list((given.get("config_groups") or {}).values())
    if len(groups) != 1 or groups[0].get("targets") != ["Linear"]:
        return None
    weights = groups[0].get("weights") or {}
    inputs = groups[0].get("input_activations") or {"dynamic": True}
    if not weights.get("symmetric", True) or weights.get("actorder") or not inputs.get("dynamic"):
        return None
    form = (
        given.get("format"), weights.get("type"), weights.get("num_bits"), weights.get("strategy")
    )  # fmt: skip
    words: dict[tuple[Any, ...], tuple[str, int | None]] = {
        ("pack-quantized", "int", 4, "group"): ("int4-group", weights.get("group_size")),
        ("float-quantized", "float", 8, "channel"): ("fp8-channel", None),
        ("int-quantized", "int", 8, "channel"): ("int8-channel", None),
    }
    return words.get(form)
