"""The config.json of a class that is a given architecture: the inverse of `read_config.py`."""

from itertools import cycle, islice
from typing import Any

from modelbudget.common.expressions import expression_of
from modelbudget.huggingface.classes import Translation, translations
from modelbudget.huggingface.layer_types import (
    HAS_ROPE,
    mixers_of_types,
    rotates_all,
    types_of_layers,
)
from modelbudget.huggingface.value_meanings import plain

PADDED = "vocab_multiple * ceil(n_vocab / vocab_multiple)"
"""Size of the padded vocabulary, which configs give."""


def config_of(name: str, a) -> dict[str, Any]:
    """Return the config with which the class is the architecture `a`.

    What the class cannot express is left out: compare `fields_of` the result with `a`.
    """
    translation = translations()[name]
    config = {}
    inverse = {"vocab_size": PADDED} | dict(translation.inverse)
    values = {"vocab_multiple": 1} | a.model_dump()
    for key, default in translation.defaults.items():
        meaning = translation.meaning(key)
        if key in inverse:
            config[key] = plain(expression_of(inverse[key])(values))
        elif isinstance(meaning, str):
            config[key] = values[meaning]
        elif meaning is not None:
            fits = [case.value for case in meaning if case.fields.items() <= values.items()]
            config[key] = default if default in fits else next(iter(fits), default)
        else:
            config |= _of_layers(translation, key, a)
    # Default padding tokens of classes lie outside of a small vocabulary, and are then rejected.
    return _nested(config | {"pad_token_id": 0} | _filled_in(translation.also, config | values))


def _of_layers(translation: Translation, key: str, a) -> dict[str, Any]:
    """Return a key that says which layers have what; nothing for one that only expressions use."""
    default, words = translation.defaults[key], vars(a).get("mixers", "").split()
    has_pattern = translation.attention_where or len(translation.mixers.split()) > 1
    names_layers = has_pattern or translation.layer_types or "layer_types" in translation.requires
    if key in translation.attention_at:
        full = mixers_of_types(translation)["full_attention"]
        first = translation.attention_counts_from
        return {key: [i + first for i in range(a.n_layer) if words[i % len(words)] == full]}
    match key:
        case "sliding_window":
            names_windows = names_layers and not rotates_all(translation, a)
            return {key: a.window or (default if names_windows else None)}
        case "no_rope_layers":
            return {key: [int(word not in HAS_ROPE) for word in islice(cycle(words), a.n_layer)]}
        case "no_rope_layer_interval":
            return {key: default}
        case "layer_types" if names_layers or {*words} != {*translation.mixers.split()}:
            is_repeated = "layer_types" not in translation.requires
            is_repeated = is_repeated and "nope_attention" in translation.mixers.split()
            is_own = is_repeated and a.mixers == translation.mixers
            return {key: default if is_own else types_of_layers(translation, a)}
        case "mlp_layer_types":
            n_sparse = a.n_layer - a.n_dense_layer
            return {key: ["dense"] * a.n_dense_layer + ["sparse"] * n_sparse}
    return {}


def _filled_in(template, values: dict) -> Any:
    """Put values in place of the names of fields in nested lists."""
    if isinstance(template, dict):
        return {key: _filled_in(inner, values) for key, inner in template.items()}
    if isinstance(template, list):
        return [_filled_in(inner, values) for inner in template]
    return values.get(template, template)


def _nested(config: dict) -> dict:
    nested = {}
    for path, value in config.items():
        *outer, last = path.split(".")
        place = nested
        for part in outer:
            place = place.setdefault(part, {})
        place[last] = value
    return nested
