"""The format of quantised weights that a config.json names in `quantization_config`."""

import re
from typing import Any

from modelbudget.architecture.stored_formats import FORMATS
from modelbudget.huggingface.module_names import LINEAR, chosen, linear_layers
from modelbudget.huggingface.run_settings import Note

NOT_CONVERTED = re.compile(
    r"(re:)?((.*\.)?(mlp|block_sparse_moe)\.)?gate(\.e_score_correction_bias)?|"
    r"(re:)?(.*\.)?(lm_head|embed_\w+|e_score_correction_bias|\w*router|\w*norm|"
    r"linear_attn\.(conv1d|A_log|dt_bias)|mtp\.(fc|pre_fc_norm_\w+)|"
    r"(visual|vision_\w+|audio_\w+|multi_modal_projector|mlp1)(\..*)?)(\.(weight|bias))?\$?"
)
"""Modules that have the dtype in every format, or that are not of the language model.

Naming them among the exceptions changes nothing."""
GATE = re.compile(
    r"(re:)?(.*\.)?(mlp\\?\.shared_expert_gate|linear_attn\\?\.(in_proj_(ba|b|a)|b_proj|a_proj))"
    r"(\.weight)?\$?"
)
"""Gates of layers, which most formats leave in the dtype."""
GATE_OF_LAYER = re.compile(
    r"(?:(?:re:)?\.\*\\?\.?|(?:model\.|language_model\.)*layers\.(\d+)\.)?"
    r"linear_attn\\?\.(\w+)(?:\.weight)?\$?"
)
"""A gate of one layer, or by its name in all layers."""
GATES_OF_MIXER = {
    "qwen3_next": ("in_proj_ba",), "qwen3_5_text": ("in_proj_b", "in_proj_a"),
    "qwen3_5_moe_text": ("in_proj_b", "in_proj_a"), "olmo_hybrid": ("b_proj", "a_proj"),
}  # fmt: skip
"""Layers of β and decay of Gated DeltaNet, by model type."""
SKIPPED = (
    "modules_to_not_convert", "ignored_layers", "ignore", "llm_int8_skip_modules", "skip_modules",
    "linear_weights_not_to_quantize", "exclude_modules",
)  # fmt: skip
"""Keys of the modules that are not converted."""
PARTIAL = ("modules_in_block_to_quantize", "dynamic")
"""Keys of settings that no formula covers, where they are set."""
OF_AUTOGPTQ = ("model_name_or_path", "model_file_base_name")
"""Keys that AutoGPTQ writes; its layers have a bias of zeros where the model has none."""
MAX_LAYERS = 10_000
CONV1D = {"gpt2", "openai-gpt", "imagegpt", "decision_transformer", "clvp"}
"""Model types whose matrices are `Conv1D` of transformers, in place of `torch.nn.Linear`."""
OF_GROUPS = "compressed-tensors"
"""The method whose layers have formats by groups."""
TORCHAO = "torchao"
MODELOPT = "modelopt"
BY_NAMES = ("FqnToConfig", "ModuleFqnToConfig")
"""Configs of torchao by the names of modules."""
INCLUDED = ("include_input_output_embeddings", "include_embedding")
"""Keys with which torchao converts embedding and head, too."""
INT8_ROWS = {
    "_type": "IntxWeightOnlyConfig", "_data.weight_dtype._data": "int8",
    "_data.granularity._type": "PerAxis", "_data.granularity._data.axis": 0,
    "_data.scale_dtype": None,
}  # fmt: skip
OF_MXFP4 = {"gpt_oss"}
"""Model types whose experts transformers converts to MXFP4; it leaves all others in the dtype."""


def weight_format(config: dict[str, Any], fields: dict[str, Any]) -> tuple[dict, list[Note]]:
    """Return the fields of the run for quantised weights, with a note; nothing if there are none.

    `fields`: those of the architecture. A format without formula is `unknown`: its bytes are
    refused.
    """
    method_config = config.get("quantization_config")
    if not isinstance(method_config, dict):
        return {}, []
    method = str(method_config.get("quant_method") or _without_name(method_config))
    of_cache = cache_format(method_config)
    read, of_table = _by_names(method_config) if method == TORCHAO else (method_config, {})
    of_run = _read(method, _keys(read)) if not _left_out(method, config) else None
    why_not = _unlike_library(of_run, config, fields) if of_run else ""
    of_run = None if why_not else of_run
    if of_run is None and method == OF_GROUPS:
        of_run = _by_groups(config, fields)
    if of_run is None or of_cache is None:
        why = _left_out(method, config) or why_not or _allowed(method_config)
        text = f"quantization_config: {method}: no formula covers it{why}: bytes are refused"
        return {"weights": "unknown"}, [Note(text, "bytes")]
    cache, notes = of_cache
    of_run |= of_table
    if why := _stays(method, of_run, config, fields):
        return cache, [Note(f"quantization_config: {why}: all stays in the dtype", "bytes"), *notes]
    if "weights_of" not in of_run and _converts_head(method, method_config):
        of_run["weights_of"] = "all"
    listed = ", ".join(f"{name}: {value}" for name, value in of_run.items())
    note = Note(f"quantization_config: {method}: used as {listed}", "bytes", "weights")
    return of_run | cache, [note, *notes]


def of_modelopt(content: Any) -> dict[str, Any]:
    """Return the quantization_config that a file of ModelOpt stands for, `hf_quant_config.json`."""
    quantization = content.get("quantization") if isinstance(content, dict) else None
    if not isinstance(quantization, dict):
        return {"quant_method": MODELOPT}
    cache = quantization.get("kv_cache_quant_algo")
    return quantization | {"quant_method": MODELOPT, "kv_cache_scheme": cache}


def _without_name(quantization: dict[str, Any]) -> str:
    """Return the method of a config that does not name it: that of early files."""
    producer = quantization.get("producer")
    is_modelopt = isinstance(producer, dict) and producer.get("name") == MODELOPT
    return MODELOPT if is_modelopt else "bitsandbytes"


def _by_names(quantization: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return torchao's config of a name for all other layers, and the fields of the embedding.

    Nothing for a config that converts the embedding otherwise than to int8 by rows, or other names.
    """
    types = quantization.get("quant_type")
    default = types.get("default") if isinstance(types, dict) else None
    includes = any(quantization.get(key) for key in INCLUDED)
    if not isinstance(default, dict) or default.get("_type") not in BY_NAMES:
        return ({}, {}) if includes else (quantization, {})
    data = default.get("_data")
    data = data if isinstance(data, dict) else {}
    names = data.get("fqn_to_config") or data.get("module_fqn_to_config")
    names = {**names} if isinstance(names, dict) else {}
    layers, embedding = names.pop("_default", None), names.pop("model.embed_tokens", None)
    of_embedding = _flat(embedding) if isinstance(embedding, dict) else {}
    if names or not includes or any(of_embedding.get(k) != value for k, value in INT8_ROWS.items()):
        return {}, {}
    read = quantization | {"quant_type": {"default": layers}}
    return read, {"vocabulary_dtype": "int8", "weights_of": "all"}


def cache_format(quantization: dict[str, Any]) -> tuple[dict[str, str], list[Note]] | None:
    """Return the format of the cache that `kv_cache_scheme` names, with a note; None if unknown.

    Its scales, two numbers a layer, are not counted.
    """
    scheme = quantization.get("kv_cache_scheme")
    if not scheme:
        return {}, []
    if scheme == "FP8":  # as ModelOpt writes it
        scheme = {"type": "float", "num_bits": 8}
    if not isinstance(scheme, dict) or (scheme.get("type"), scheme.get("num_bits")) != ("float", 8):
        return None
    if scheme.get("strategy", "tensor") != "tensor":
        return None
    text = "kv_cache_scheme: float, 8 bits: used as cache_dtype: fp8"
    return {"cache_dtype": "fp8"}, [Note(text, "bytes", "cache_dtype")]


def _allowed(quantization: dict[str, Any]) -> str:
    """Return which groups have a formula, of a config with several."""
    groups = quantization.get("config_groups")
    if not isinstance(groups, dict) or len(groups) < 2:
        return ""
    return (
        f" (config_groups: {len(groups)} groups; allowed: one format, of all layers, of all but "
        "the experts or of the experts)"
    )


def _by_groups(config: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any] | None:
    """Return the fields of the run for groups whose targets are names or patterns.

    Nothing if layers of one part differ, or if two parts have different formats: a run has one.
    """
    quantization = config["quantization_config"]
    groups, parts = quantization.get("config_groups"), linear_layers(config, fields)
    if not isinstance(groups, dict) or not parts:
        return None
    formats, targets = [], []
    for group in groups.values():
        if not isinstance(group, dict):
            return None
        formats.append(_read(OF_GROUPS, _keys(quantization, group)))
        targets.append(group.get("targets"))
    groups_of = chosen(parts, targets, quantization.get("ignore") or [])
    if groups_of is None:
        return None
    of_parts = {}
    for part, numbers in groups_of.items():
        of_layers = [formats[number] if number is not None else {} for number in numbers]
        if any(of_layer != of_layers[0] for of_layer in of_layers) or of_layers[0] is None:
            return None
        of_parts[part] = of_layers[0]
    converted = {part for part, stored in of_parts.items() if stored}
    of_experts = _second(of_parts)
    first, *more = [stored for stored in of_parts.values() if stored] or [None]
    if first is None or any(stored != first for stored in more):
        return None
    if of_experts:
        return first | of_experts | {"weights_of": "all" if "head" in converted else "dense"}
    layers = of_parts.keys() - {"head"}
    if converted >= layers:
        return first | {"weights_of": "all" if "head" in converted else "layers"}
    return None if "head" in converted else first | {"weights_of": converted.pop()}


def _second(of_parts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the second format of a run, of the experts, and leave it out of the parts.

    Nothing if they have the format of the others, or none, or whole rows as groups where the others
    have smaller ones.
    """
    experts, dense = of_parts.get("experts"), of_parts.get("dense")
    if not experts or not dense or experts == dense:
        return {}
    differences = {name: value for name, value in experts.items() if value != dense.get(name)}
    if 0 in differences.values():
        return {}
    del of_parts["experts"]
    return {f"expert_{name}": value for name, value in differences.items()} | {
        "expert_weights": experts["weights"]
    }


def _read(method: str, keys: dict[str, Any]) -> dict[str, Any] | None:
    """Return the fields of the run that name a format; None for a format without formula."""
    for word, known in FORMATS.items():
        library = known.library
        if library.quant_method != method:
            continue
        for case in known.format.config:
            if all(_plain(keys.get(key)) in values for key, values in case.items()):
                settings = {"weights": word}
                for field, sources in library.settings.items():
                    values = [keys[key] for key in sources if keys.get(key) is not None]
                    if not all(type(value) is int for value in values):
                        return None
                    if values and (known.format.groups or field == "weight_block"):
                        settings[field] = max(values[0], 0)
                return settings
    return None


def _keys(quantization: dict[str, Any], group: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the values by their path, of compressed-tensors those of a group, or of its only one.

    Nothing if it has several groups, or one that is not of all linear layers.
    """
    keys = _flat(quantization)
    keys["of_autogptq"] = any(key in quantization for key in OF_AUTOGPTQ)
    groups = quantization.get("config_groups")
    if isinstance(groups, dict) and quantization.get("quant_method") == OF_GROUPS:
        if group is None:
            group = next(iter(groups.values()), None)
            if len(groups) != 1 or not isinstance(group, dict) or group.get("targets") != [LINEAR]:
                return {}
        keys["format"] = group.get("format") or keys.get("format")
        keys |= _flat(
            {"weights": group.get("weights"), "input": group.get("input_activations") or {}}
        )
    blocks = quantization.get("weight_block_size") or keys.get("weights.block_structure")
    keys["has_blocks"] = blocks is not None
    if isinstance(blocks, list) and len(blocks) == 2:
        keys["rows_of_block"], keys["columns_of_block"] = blocks
    elif blocks is not None:
        return {}
    return keys


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    """Return nested values by their path: `weights.num_bits`."""
    by_key: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            by_key[key] = "nested"
            by_key |= {f"{key}.{inner}": inner_value for inner, inner_value in _flat(value).items()}
        else:
            by_key[key] = value
    return by_key


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | int | str) else None if value is None else str(value)


def _stays(method: str, settings: dict[str, Any], config: dict[str, Any], fields: dict) -> str:
    """Return why transformers leaves all matrices in the dtype; empty if it converts some."""
    library = FORMATS[settings["weights"]].library
    if config.get("model_type") in CONV1D and "conv1d" not in library.converts:
        return f"{method} converts no Conv1D, of which {config['model_type']} is made"
    if library.converts == ["experts"] and config.get("model_type") not in OF_MXFP4:
        return f"{method} converts the experts of gpt_oss alone"
    return ""


def _converts_head(method: str, quantization: dict[str, Any]) -> bool:
    """Whether the head is converted too, if it has a matrix of its own."""
    if method == OF_GROUPS:
        return not any("lm_head" in str(name) for name in quantization.get("ignore") or ())
    return bool(quantization.get("lm_head"))


def _left_out(method: str, config: dict[str, Any]) -> str:
    """Return which layers of one kind are left out, in brackets; empty if none are."""
    quantization = config["quantization_config"]
    names = _names(quantization)
    partial = [key for key in PARTIAL if quantization.get(key)]
    skipped = [n for n in names if not NOT_CONVERTED.fullmatch(n) and not GATE.fullmatch(n)]
    skipped = [] if method == "mxfp4" else skipped
    if not partial and not skipped:
        return ""
    more = f" and {len(skipped) - 1} more" if len(skipped) > 1 else ""
    return f" ({partial[0]} is set)" if partial else f" ({skipped[0]}{more} are left out)"


def _unlike_library(of_run: dict[str, Any], config: dict[str, Any], fields: dict[str, Any]) -> str:
    """Return which gates are not converted as its library does, in brackets; empty if all are.

    A library that converts gates must leave out none. Of a library that does not, those of Gated
    DeltaNet must be left out layer by layer, or by their name in all layers.
    """
    names = {name for name in _names(config["quantization_config"]) if GATE.fullmatch(name)}
    if "gates" in FORMATS[of_run["weights"]].library.converts:
        return f" ({min(names)} is left out)" if names else ""
    mixers = str(fields.get("mixers", "")).split()
    if "gated_deltanet" not in mixers:
        return ""
    matches = filter(None, map(GATE_OF_LAYER.fullmatch, names))
    left_out = {match.groups() for match in matches}
    gates = GATES_OF_MIXER.get(config.get("model_type", ""), ("β and decay",))
    for layer in range(min(fields.get("n_layer", 0), MAX_LAYERS)):
        for gate in gates if mixers[layer % len(mixers)] == "gated_deltanet" else ():
            if not {(str(layer), gate), (None, gate)} & left_out:
                return f" (model.layers.{layer}.linear_attn.{gate} is not left out)"
    return ""


def _names(quantization: dict[str, Any]) -> list[str]:
    """Return the names and patterns of the modules that are not converted."""
    return [str(name) for key in SKIPPED for name in quantization.get(key) or ()]
