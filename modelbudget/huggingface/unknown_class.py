"""Classes without a formula: built from a config.json by the installed transformers.

Nothing is downloaded and no code of a model page is run: keys that name code are removed before the
package reads the config. Importing this module imports transformers, which takes seconds.

Time and memory of a class are not bounded here: `bounded_check.py` calls these functions in a
bounded process, and so do the workers that measure.
"""

import json
import re
from typing import Any, cast

from modelbudget.common.suggestions import offered
from modelbudget.common.validation_messages import show
from modelbudget.huggingface.classes import shared_keys, translations
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

OF_TASKS = (
    transformers.MODEL_FOR_CAUSAL_LM_MAPPING, transformers.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING, transformers.MODEL_FOR_MASKED_LM_MAPPING,
    transformers.MODEL_MAPPING,
)  # fmt: skip
"""Configs → the class of transformers for each task, language models first."""
MODEL_TYPES = "python -c 'from transformers import CONFIG_MAPPING as m; print(*m.keys())'"
"""Prints every model type. `len(CONFIG_MAPPING)` is 0, since its entries are loaded lazily."""

MOST = 2**40
MOST_LAYERS = 10_000
MOST_EXPERTS = 1_000_000
WIDEST = 2**24
_LIMITS = {
    re.compile(r"\w*(layers?|blocks?|depths?|stages?|repeats?|num_layers_\w+)"): MOST_LAYERS,
    re.compile(r"\w*experts?"): MOST_EXPERTS,
    re.compile(r"d_\w+|\w*_(size|dim)"): WIDEST,
}
"""Numbers of modules and of experts, which make a class slow to build, and widths. All else may be
larger: frequencies of RoPE, seeds, rows of a table of n-grams.
"""


def fields_of(config: dict[str, Any]) -> dict[str, Any]:
    """Translate a config.json to fields of the family `hugging-face`. Raises ValueError."""
    class_name = _class_of(config)
    config = without_code(config)
    mistakes = list(_absurd(config))
    if mistakes:
        raise ValueError("\n".join(mistakes))
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
    model_type, names = config["model_type"], config.get("architectures") or []
    known = _classes_of(model_type)
    if model_type not in transformers.CONFIG_MAPPING and not known:
        named = offered(model_type, transformers.CONFIG_MAPPING.keys(), MODEL_TYPES)
        if what := shared_keys().unread_types.get(model_type):
            named = f": {what}"
        code = "; the code that auto_map names is never run" if "auto_map" in config else ""
        raise ValueError(
            f"model_type = {show(model_type)}: not one of transformers "
            f"{transformers.__version__}{code}{named}"
        )
    if not (names or known):
        raise ValueError(
            f"model_type = {show(model_type)}: no language model by default; name the class in "
            "architectures"
        )
    name, *_ = *names, *known
    class_ = getattr(transformers, name, None)
    if not (isinstance(class_, type) and issubclass(class_, transformers.PreTrainedModel)):
        raise ValueError(
            f"architectures[0] = {show(name)}: not a model class of transformers"
            f"{offered(name, known, '')}"
        )
    type_of_class = getattr(class_.config_class, "model_type", None)
    if type_of_class != model_type and name not in known:
        raise ValueError(
            f"architectures[0] = {show(name)} and model_type = {show(model_type)} contradict "
            f"each other: the class is of model_type {show(type_of_class)}"
        )
    return name


def _classes_of(model_type: str) -> list[str]:
    """Return the classes of a model_type: those with a formula, and the usual ones of the package.

    The first of the package is a language model if it has one.
    """
    known = [name for name, of in translations().items() if of.model_type == model_type]
    if model_type in transformers.CONFIG_MAPPING:
        config_class = transformers.CONFIG_MAPPING[model_type]
        usual = [of_task[config_class] for of_task in OF_TASKS if config_class in of_task]
        known += [cast(type, class_).__name__ for class_ in usual if isinstance(class_, type)]
    return [*dict.fromkeys(known)]


def _text_part(config: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the part of a config with the language model's sizes, and each field's key in it."""
    config_class = _config_class(config)
    if isinstance(config.get("text_config"), dict):
        config_class = config_class.sub_configs.get("text_config", config_class)
        config = config["text_config"]
    spelled = getattr(config_class, "attribute_map", {})
    names = SPELLINGS | ({"n_ctx": OF_TARGET} if hasattr(config_class, OF_TARGET) else {})
    return config, {field: spelled.get(name, name) for field, name in names.items()}


def _absurd(config: dict[str, Any]):
    """Yield a mistake for each size that is too large to build on any machine."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield from (f"{key}.{line}" for line in _absurd(value))
        elif isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
            yield from _absurd({f"{key}[{i}]": item for i, item in enumerate(value)})
        elif not any(pattern.fullmatch(key) for pattern in shared_keys().ignored):
            most = next((n for keys, n in _LIMITS.items() if keys.fullmatch(key)), MOST)
            values = value if isinstance(value, list) else [value]
            if any(isinstance(size, int) and size > most for size in values):
                yield f"{key} = {show(value)}: must be at most {most:,}"
