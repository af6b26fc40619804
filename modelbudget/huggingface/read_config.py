"""Translation of a config.json to the fields of a family.

Does not import transformers. Remote code is never run: `auto_map` is not read.
"""

from typing import Any

from modelbudget.common.expressions import expression_of
from modelbudget.common.suggestions import offered, other_spelling
from modelbudget.common.validation_messages import show
from modelbudget.components.attention.attention_fields import ATTEND, SWITCHES
from modelbudget.components.feed_forward import feed_forward
from modelbudget.components.mixers import mixers
from modelbudget.huggingface.classes import CLASSES, Meaning, Translation, shared_keys, translations
from modelbudget.huggingface.layer_types import dense_layers, layers_with_experts, pattern_of_layers
from modelbudget.huggingface.value_meanings import (
    ABSENT,
    Mistakes,
    look_up,
    of_all_layers,
    of_cases,
    of_expressions,
    of_size,
    plain,
)

BASIC_SIZES = {"n_vocab", "d_model", "n_layer"}


def known_class(config: dict) -> str | None:
    """Return the class of a config.json if there is a formula for it, else None.

    That is the class in `architectures`, or without it the first class of its model_type.
    """
    wanted = config.get("architectures") or [None]
    for name, translation in translations().items():
        if translation.model_type == config["model_type"] and wanted[0] in (name, None):
            return name
    return None


def fields_of(name: str, config: dict) -> dict[str, Any]:
    """Translate a config to fields of the class's family.

    Missing keys have the default of the class's config; fields that are not returned are derived by
    the family. Raises ValueError with one line for each mistake, which is NoFormulaError if all are
    values that the class may have, and NoSizeError if one is none that any class has.
    """
    translation = translations()[name]
    mistakes = Mistakes(_refused_keys(name, config), [], [])
    sizes = _keys_set(translation, config, mistakes)
    values = dict(translation.defaults) | sizes
    fields = dict(translation.fixed)
    for key, value in values.items():
        meaning = translation.meaning(key)
        if isinstance(meaning, str):
            fields |= of_size(meaning, key, value, mistakes)
        elif meaning is not None:
            fields |= of_cases(meaning, key, value, mistakes)
    fields |= translation.classes[name]
    if translation.mixers:
        fields |= pattern_of_layers(translation, values, mistakes)
    if translation.experts_where:
        fields |= layers_with_experts(translation, values, mistakes)
    if "mlp_layer_types" in values:
        fields |= dense_layers(translation, values, mistakes)
    if not mistakes.lines():
        fields |= _computed(translation, values, mistakes)
    if mistakes.lines():
        raise mistakes.error()
    has_parts = translation.mixers and translation.family == "decoder"
    return _without_absent(fields) if has_parts else fields


def keys_by_field(name: str) -> dict[str, str]:
    """Return field → key, for messages about a config.json."""
    translation = translations()[name]
    meanings = {key: translation.meaning(key) for key in translation.defaults}
    return {meaning: key for key, meaning in meanings.items() if isinstance(meaning, str)}


def sizes_of_class(name: str, config: dict) -> dict[str, int]:
    """Return the sizes that a file leaves to the defaults of its class, by key.

    None if it has vocabulary, hidden size and depth: files leave out some of the others.
    """
    translation = translations()[name]
    sizes = _keys_set(translation, config, Mistakes([], [], []))
    meanings = {key: translation.meaning(key) for key in translation.defaults if key not in sizes}
    missing = {key: field for key, field in meanings.items() if isinstance(field, str)}
    if not BASIC_SIZES & {*missing.values()}:
        return {}
    defaults = {key: translation.defaults[key] for key in sorted(missing)}
    return {key: value for key, value in defaults.items() if value not in (None, "auto")}


def unknown_keys(name: str, config: dict) -> list[str]:
    """Return the keys whose meaning in a class is not known."""
    translation = translations()[name]
    known = {*translation.defaults, *translation.aliases, "architectures", "model_type"}
    known |= {"per_layer_config"} if translation.full_layers else set()
    with_line = (line.keys for line in shared_keys().not_used)
    ignored = (*shared_keys().ignored, *translation.ignored, *with_line)
    return [
        key
        for key in config
        if key not in known and not any(pattern.fullmatch(key) for pattern in ignored)
    ]


def unrelated_keys(name: str, config: dict) -> list[str]:
    """Return the unknown keys that are no other spelling of a known one, or that set nothing."""
    translation = translations()[name]
    known = translation.defaults
    values = known | config
    spelled = {key: other_spelling(key, known) for key in unknown_keys(name, config)}
    return [
        key
        for key, other in spelled.items()
        if config[key] in (None, values.get(other, config[key]))
        or not _is_spelling(key, translation.meaning(other or key))
    ]


def _is_spelling(key: str, meaning: Meaning | None) -> bool:
    """Whether a key may stand for one with this meaning: not if it has another in all classes."""
    classes = {id(of): of for of in translations().values() if key in of.defaults}
    return not classes or any(of.meaning(key) == meaning for of in classes.values())


def _refused_keys(name: str, config: dict) -> list[str]:
    translation = translations()[name]
    class_file = f"{CLASSES}/{translation.model_type}.yaml"
    return [
        f"{key} = {show(config[key])}: unknown key of model_type {translation.model_type!r}, which "
        f"might change the count{offered(key, translation.defaults, class_file)}"
        for key in unknown_keys(name, config)
    ]


def _keys_set(translation: Translation, config: dict, mistakes: Mistakes) -> dict[str, Any]:
    """Return the keys that a file sets, under their canonical names."""
    spellings = {key: key for key in translation.defaults} | dict(translation.aliases)
    for path in dict.fromkeys(spelling.rpartition(".")[0] for spelling in spellings):
        value = look_up(config, path) if path else None
        if not (value in (ABSENT, None) or isinstance(value, dict)):
            mistakes.wrong.append(f"{path} = {show(value)}: must be keys with values")
    sizes = _of_full_layers(translation, config, mistakes)
    spelled = dict.fromkeys(sizes, "per_layer_config")
    for spelling, key in spellings.items():
        value = look_up(config, spelling)
        if value is ABSENT:
            continue
        value = of_all_layers(translation.meaning(key), value)
        if key in sizes and sizes[key] != value:
            mistakes.wrong.append(
                f"{spelled[key]} = {show(sizes[key])} and {spelling} = {show(value)} "
                "contradict each other; keep one"
            )
        sizes[key], spelled[key] = value, spelling
    return sizes


def _of_full_layers(translation: Translation, config: dict, mistakes: Mistakes) -> dict[str, Any]:
    """Return the keys of layers of full attention that a file overrides layer by layer.

    One that it leaves out is that of the other layers.
    """
    if not translation.full_layers or "per_layer_config" not in config:
        return {}
    of_file = config["per_layer_config"]
    unchanged = {
        older: config.get(key, translation.defaults[key])
        for key, older in translation.full_layers.items()
    }
    if not of_file:
        return unchanged
    types = config.get("layer_types") or []
    full = {i for i, name in enumerate(types) if name == "full_attention"}
    overrides = of_file if isinstance(of_file, dict) else {}
    places = {int(key) for key in overrides if str(key).isdecimal()}
    first, *more = [*overrides.values()] or [None]
    is_known = isinstance(first, dict) and first.keys() <= translation.full_layers.keys()
    if not is_known or places != full or any(override != first for override in more):
        names = ", ".join(translation.full_layers)
        mistakes.unsupported.append(
            f"per_layer_config = {show(of_file)}: not supported (allowed: {names}, the same in all "
            "layers of full_attention and in no other)"
        )
        return {}
    return unchanged | {translation.full_layers[key]: value for key, value in first.items()}


def _without_absent(fields: dict[str, Any]) -> dict[str, Any]:
    """Remove the sizes of parts that no layer has, and the options of attention without any."""
    present = fields.get("mixers", "attention").split() + fields.get("mlps", "mlp").split()
    parts = mixers() | feed_forward()
    sizes = {size for part in parts.values() for size in part.SIZES}
    absent = sizes - {size for word in present if word in parts for size in parts[word].SIZES}
    if not {*ATTEND} & {*present}:
        absent |= {*SWITCHES, "qk_norm", "qk_norm_bias", "d_rotary"}
    return {name: value for name, value in fields.items() if name not in absent}


def _computed(translation: Translation, values: dict, mistakes: Mistakes) -> dict:
    exact = {"head_dim": None} | of_expressions(values)  # not all classes have this key
    for text in translation.requires:
        if not expression_of(text)(exact):
            names = [name for name in values if name in expression_of(text).names]
            equations = ", ".join(f"{name} = {show(values[name])}" for name in names)
            mistakes.unsupported.append(f"{equations}: not supported (allowed: {text})")
    fields = {}
    for field, text in translation.computed.items():
        try:
            fields[field] = plain(expression_of(text)(exact))
        except ValueError as error:
            mistakes.wrong.append(f"{field}: {error}")
    return fields
