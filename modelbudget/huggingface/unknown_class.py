"""Classes without a formula: built from a config.json by the installed transformers.

Nothing is downloaded and no code of a model page is run: keys that name code are removed before the
package reads the config. Importing this module imports transformers, which takes seconds.

Time and memory of a class are not bounded here: `bounded_check.py` calls these functions in a
bounded process, and so do the workers that measure.
"""

import json
from typing import Any

from modelbudget.common.validation_messages import show
from modelbudget.huggingface.class_code import class_of, classes_of
from modelbudget.huggingface.keys_of_class import stretch, without_code
from modelbudget.huggingface.offline import refusals, transformers

SPELLINGS = {
    "n_vocab": "vocab_size", "d_model": "hidden_size", "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads", "n_kv_head": "num_key_value_heads", "d_head": "head_dim",
    "d_ff": "intermediate_size", "n_ctx": "max_position_embeddings",
}  # fmt: skip
"""Field → its common attribute in all configs of transformers, whatever the key in the file."""
OF_TARGET = "max_target_positions"
"""The key of `n_ctx` where a source has other positions (Whisper)."""


def fields_of(config: dict[str, Any]) -> dict[str, Any]:
    """Translate a config.json to fields of the family `hugging-face`. Raises ValueError."""
    class_name = _class_of(config)
    config = without_code(config)
    place, keys = _text_part(config)
    sizes = {field: place.get(key) for field, key in keys.items()}
    tied = config.get("tie_word_embeddings", place.get("tie_word_embeddings"))
    if tied is None or (place is config and sizes["n_ctx"] is None):
        of_class = _config_class(config)()
        tied = _ties(of_class) if tied is None else tied
        n_ctx = getattr(of_class, keys["n_ctx"], None)
        if sizes["n_ctx"] is None and isinstance(n_ctx, int) and n_ctx > 0:  # XLNet has -1
            sizes["n_ctx"] = n_ctx
    counted = {field: size for field, size in sizes.items() if isinstance(size, int)}
    return {"kind": class_name, "config": json.dumps(config), "tied": bool(tied), **counted}


def _ties(config: Any) -> bool:
    """Return whether a config object ties the head, itself or in its language model (BLIP-2).

    What has no such attribute does not (transformers 5.23, `get_expanded_tied_weights_keys`).
    """
    of_text = getattr(config.get_text_config(), "tie_word_embeddings", False)
    return bool(getattr(config, "tie_word_embeddings", of_text))


def fields_of_built(config: dict[str, Any]) -> dict[str, Any]:
    """Translate a config as `fields_of`, and build its class on meta. Raises ValueError."""
    import torch

    from modelbudget.huggingface.construct import config_object, construct
    from modelbudget.modules.initialise import uninitialised

    fields = fields_of(config)
    keys = {k: v for k, v in without_code(config).items() if k != "model_type"}
    with torch.device("meta"), uninitialised():
        construct(fields["kind"], config_object(fields["kind"], keys))
    return fields


def ties_head(config: dict[str, Any]) -> bool:
    """Return whether the config class has a tied head, whatever the file says (T5 and relatives).

    Raises ValueError if the class rejects the config.
    """
    return bool(getattr(_built(config), "tie_word_embeddings", False))


def configuration(record):
    """Return the config object of a record. Raises ValueError if the class rejects it."""
    config = json.loads(record.config)
    place, keys = _text_part(config)
    before = place.get(keys["n_layer"])
    for field, key in keys.items():
        if getattr(record, field):
            place[key] = getattr(record, field)
    for part in (config, place):
        if part is config or "tie_word_embeddings" in part:
            part["tie_word_embeddings"] = record.tied
    if record.n_layer and record.n_layer != before:
        stretch(place, before, record.n_layer)
    return _built(config, record.kind)


def check(record) -> None:
    """Raise ValueError if the class rejects the config of a record."""
    configuration(record)


def build(record):
    """Build the model on the current default device."""
    from modelbudget.huggingface.construct import construct  # imports torch, which takes a second

    return construct(record.kind, configuration(record))


def _built(config: dict[str, Any], class_name: str = "the class") -> Any:
    with refusals(class_name):
        return _config_class(config)(**{k: v for k, v in config.items() if k != "model_type"})


def _config_class(config: dict[str, Any]) -> Any:
    return transformers.CONFIG_MAPPING[config["model_type"]]


def _class_of(config: dict[str, Any]) -> str:
    """Return the class that a config names, or without one a language model of its model_type."""
    name, model_type = class_of(config), config["model_type"]
    type_of_class = getattr(getattr(transformers, name).config_class, "model_type", None)
    if type_of_class != model_type and name not in classes_of(model_type):
        raise ValueError(
            f"architectures[0] = {show(name)} and model_type = {show(model_type)} contradict "
            f"each other: the class is of model_type {show(type_of_class)}"
        )
    return name


def _text_part(config: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the part of a config with the language model's sizes, and each field's key in it."""
    config_class = _config_class(config)
    if isinstance(config.get("text_config"), dict):
        config_class = config_class.sub_configs.get("text_config", config_class)
        config = config["text_config"]
    spelled = getattr(config_class, "attribute_map", {})
    names = SPELLINGS | ({"n_ctx": OF_TARGET} if hasattr(config_class, OF_TARGET) else {})
    return config, {field: spelled.get(name, name) for field, name in names.items()}
