"""The format of quantised weights that a config.json names in `quantization_config`."""

from typing import Any

from modelbudget.architecture.stored_formats import FORMATS, OF_EACH_LAYER
from modelbudget.huggingface.formats_by_layer import OF_GROUPS, Group, formats_by_layer
from modelbudget.huggingface.module_names import (
    EXCLUDED,
    GATE,
    LINEAR,
    NOT_CONVERTED,
    copies_of_last,
    layers_ahead,
    linear_layers,
)
from modelbudget.huggingface.run_settings import Note

SKIPPED = (
    "modules_to_not_convert", "ignored_layers", "ignore", "llm_int8_skip_modules", "skip_modules",
    "linear_weights_not_to_quantize", "exclude_modules", "exclude",
)  # fmt: skip
"""Keys of the modules that are not converted."""
OF_HEAD = ("lm_head", "embed_out")
PARTIAL = "modules_in_block_to_quantize"
"""A key of layers that alone are converted, which no formula covers."""
SPARSE = "sparsity_config.format"
"""How compressed-tensors stores the numbers that are not 0."""
OF_LAYERS = ("dynamic", "extra_config", "layer_quant_config")
"""Keys of settings of single layers: GPTQModel's, auto-round's and Quark's. MLX's have none."""
BITS_IN_DTYPE = 16
"""Bits from which on a layer is not converted (auto-round)."""
OF_AUTOGPTQ = ("model_name_or_path", "model_file_base_name")
"""Keys that AutoGPTQ writes; its layers have a bias of zeros where the model has none."""
CONV1D = {"gpt2", "openai-gpt", "imagegpt", "decision_transformer", "clvp"}
"""Model types whose matrices are `Conv1D` of transformers, in place of `torch.nn.Linear`."""
TORCHAO = "torchao"
MLX = "MLX"
OF_MLX_ALONE = "quantization"
"""MLX's name of what others call `quantization_config`."""
MODELOPT = "modelopt"
OF_MLX = {"group_size", "bits"}, {"group_size", "bits", "mode"}
"""Keys of MLX, whose files name no method; those of single layers are nested."""
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

    `fields`: those of the architecture. A format without formula is `unknown`, of weights and of
    the cache apart: its bytes are refused.
    """
    method_config = config.get("quantization_config")
    if not isinstance(method_config, dict):
        return {}, []
    method = str(method_config.get("quant_method") or _without_name(method_config))
    of_cache = cache_format(method_config)
    read, of_table = _by_names(method_config) if method == TORCHAO else (method_config, {})
    of_run, why = _settings(method, read, config, fields)
    if of_run is None or of_cache is None:
        why = why or _allowed(method_config)
        cache, notes = of_cache or ({"cache_dtype": "unknown"}, [])
        but = ", but of the cache" * (of_cache is not None)
        text = f"quantization_config: {method}: no formula covers it{why}: bytes are refused{but}"
        return {"weights": "unknown"} | cache, [Note(text, "bytes"), *notes]
    cache, notes = of_cache
    of_run |= of_table
    if why := _stays(method, of_run, config, fields):
        return cache, [Note(f"quantization_config: {why}: all stays in the dtype", "bytes"), *notes]
    has_stacks = fields.get("mlps") == "moe"  # which weights_of: all has, too
    if "weights_of" not in of_run and _converts_head(method, method_config, has_stacks):
        of_run["weights_of"] = "all"
    listed = ", ".join(f"{name}: {value}" for name, value in of_run.items())
    note = Note(f"quantization_config: {method}: used as {listed}", "bytes", "weights")
    return of_run | cache, [note, *notes]


def of_modelopt(content: dict[str, Any]) -> dict[str, Any]:
    """Return the quantization_config that a file of ModelOpt stands for, `hf_quant_config.json`."""
    quantization = content.get("quantization")
    if not isinstance(quantization, dict):
        return {"quant_method": MODELOPT}
    cache = quantization.get("kv_cache_quant_algo")
    return quantization | {"quant_method": MODELOPT, "kv_cache_scheme": cache}


def _without_name(quantization: dict[str, Any]) -> str:
    """Return the method of a config that does not name it: that of early files."""
    producer = quantization.get("producer")
    if isinstance(producer, dict) and producer.get("name") == MODELOPT:
        return MODELOPT
    keys = {key for key, value in quantization.items() if not _is_of_layer(value)}
    return MLX if keys in OF_MLX else "bitsandbytes"


def of_mlx(content: dict[str, Any]) -> dict[str, Any] | None:
    """Return the quantization_config of a config.json of MLX, whose early files name it otherwise.

    Newer ones have both. None without any.
    """
    given = content.get(OF_MLX_ALONE)
    if isinstance(given, dict) and not given.get("quant_method"):
        return given if _without_name(given) == MLX else None
    return None


def _is_of_layer(value: Any) -> bool:
    """Whether a value of MLX's config is that of a single layer: its settings, or that it stays."""
    return value is False or isinstance(value, dict)


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
    scheme = quantization.get("kv_cache_scheme") or _scheme_of_quark(quantization)
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


def _scheme_of_quark(quantization: dict[str, Any]) -> Any:
    """Return what AMD's Quark does to keys and values, which are the outputs of some layers."""
    export, of_layers = (quantization.get(key) for key in ("export", "layer_quant_config"))
    names = export.get("kv_cache_group") if isinstance(export, dict) else None
    if not names or not isinstance(names, list) or not isinstance(of_layers, dict):
        return names
    formats = [_flat({"of": of_layers.get(str(name))}) for name in names]
    is_fp8 = all(
        (of.get("of.output_tensors.dtype"), of.get("of.output_tensors.qscheme"))
        == ("fp8_e4m3", "per_tensor")
        for of in formats
    )
    return {"type": "float", "num_bits": 8} if is_fp8 else names


def _allowed(quantization: dict[str, Any]) -> str:
    """Return which groups have a formula, of a config with several."""
    groups = quantization.get("config_groups")
    if not isinstance(groups, dict) or len(groups) < 2:
        return ""
    return (
        f" (config_groups: {len(groups)} groups; allowed: one format, of all layers, of all but "
        "the experts or of the experts)"
    )


def _settings(
    method: str, read: dict[str, Any], config: dict[str, Any], fields: dict[str, Any]
) -> tuple[dict[str, Any] | None, str]:
    """Return the fields of the run for the weights; None, and why in brackets, without a formula.

    `read`: the config of the method, or that of most layers. Where the names of the linear layers
    are known, each exception is asked about each of them.
    """
    whole, (texts, partial) = _read(method, _keys(read)), _exceptions(config)
    skipped = [text for text in texts if not NOT_CONVERTED.fullmatch(text)] * (method != "mxfp4")
    ahead = layers_ahead(skipped, fields.get("n_layer"))
    others = [text for text in skipped if not GATE.fullmatch(text) and text not in ahead]
    has_gates = bool({"gated_deltanet", "kimi_delta"} & {*str(fields.get("mixers", "")).split()})
    groups = _groups(config, whole) if method == OF_GROUPS else [(whole, [LINEAR])]
    if partial or groups is None:
        return None, f" ({partial} is set)" if partial else ""
    if not groups:
        return {}, ""
    if skipped or has_gates or whole is None:
        all_texts = [*texts, *(target for _, targets in groups for target in targets)]
        layers = linear_layers(config.get("model_type"), fields, all_texts)
        layers |= copies_of_last(layers, fields.get("n_layer"), ahead.values())
        if layers and all(stored is not None for stored, _ in groups):
            return formats_by_layer(method, layers, groups, texts, others)
    more = f" and {len(others) - 1} more" if len(others) > 1 else ""
    if others or (has_gates and whole):
        why = f"{others[0]}{more} are left out" if others else "which gates are converted"
        return None, f" ({why})"
    if skipped and whole and "gates" in FORMATS[whole["weights"]].library.converts:
        return None, f" ({min(skipped)} is left out)"
    return whole, ""


def _groups(config: dict[str, Any], whole: dict[str, Any] | None) -> list[Group] | None:
    """Return the groups of compressed-tensors; None if they are none."""
    quantization = config["quantization_config"]
    groups = quantization.get("config_groups")
    if whole is not None or not isinstance(groups, dict):
        return [(whole, [LINEAR])]
    if not all(isinstance(group, dict) for group in groups.values()):
        return None
    targets = [group.get("targets") for group in groups.values()]
    if not all(isinstance(t, list) and all(isinstance(x, str) for x in t) for t in targets):
        return None
    formats = [_read(OF_GROUPS, _keys(quantization, group)) for group in groups.values()]
    return list(zip(formats, targets, strict=True))


def _read(method: str, keys: dict[str, Any]) -> dict[str, Any] | None:
    """Return the fields of the run that name a format; None for a format without formula."""
    for word, known in FORMATS.items():
        library = known.library
        if library.quant_method != method:
            continue
        for case in known.format.config:
            if all(_plain(keys.get(key)) in values for key, values in case.items()):
                settings: dict[str, Any] = {"weights": word}
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
    if not settings:
        return f"{method} has no group of layers"
    library = FORMATS[settings["weights"]].library
    if config.get("model_type") in CONV1D and "conv1d" not in library.converts:
        return f"{method} converts no Conv1D, of which {config['model_type']} is made"
    if library.converts == ["experts"] and config.get("model_type") not in OF_MXFP4:
        return f"{method} converts the experts of gpt_oss alone"
    return ""


def _converts_head(method: str, quantization: dict[str, Any], has_stacks: bool) -> bool:
    """Whether the head is converted too, if it has a matrix of its own.

    transformers leaves it out where a file names no modules (quantizers/base.py,
    `get_modules_to_not_convert`).
    """
    if method in OF_EACH_LAYER and not has_stacks:
        names = _names(quantization)
        return bool(names) and not any(head in name for name in names for head in OF_HEAD)
    if method == OF_GROUPS:
        return not any("lm_head" in str(name) for name in quantization.get("ignore") or ())
    return bool(quantization.get("lm_head"))


def _exceptions(config: dict[str, Any]) -> tuple[list[str], str]:
    """Return the texts that name what is not converted, and a key that no formula covers, if any.

    Settings of single layers may leave them out, or have no other format of weights.
    """
    quantization = config["quantization_config"]
    texts = _names(quantization)
    single = {key: quantization.get(key) or {} for key in OF_LAYERS}
    if not quantization.get("quant_method") and _without_name(quantization) == MLX:
        single[MLX] = {name: value for name, value in quantization.items() if _is_of_layer(value)}
    for key, of_layers in single.items():
        if not isinstance(of_layers, dict):
            return texts, key
        for text, settings in of_layers.items():
            is_left_out = _leaves_out(key, text, settings, quantization)
            if is_left_out is None:
                return texts, text if key == MLX else key
            texts += [text] * is_left_out
    if _flat(quantization).get(SPARSE) not in (None, "dense"):
        return texts, SPARSE
    return texts, PARTIAL if quantization.get(PARTIAL) else ""


def _leaves_out(key: str, text: str, settings: Any, quantization: dict[str, Any]) -> bool | None:
    """Return whether settings of single layers leave them out; None if they have another format."""
    of_all = quantization.get("global_quant_config")
    match key:
        case "MLX":
            return settings is False or None
        case _ if settings and not isinstance(settings, dict):
            return None
        case "dynamic":
            return text.startswith(EXCLUDED) or (None if settings else False)
        case "extra_config":
            bits = (settings or {}).get("bits")
            return True if isinstance(bits, int) and bits >= BITS_IN_DTYPE else None
        case _:
            weight = (settings or {}).get("weight")
            is_alike = isinstance(of_all, dict) and weight == of_all.get("weight")
            return False if is_alike else None


def _names(quantization: dict[str, Any]) -> list[str]:
    """Return the names and patterns of the modules that are not converted."""
    values = (quantization.get(key) or [] for key in SKIPPED)
    lists = (value if isinstance(value, list) else [value] for value in values)
    return [str(name) for names in lists for name in names]
