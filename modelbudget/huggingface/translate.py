"""Translation between a config.json and the fields of a family, in both directions.

Does not import transformers. Remote code is never run: `auto_map` is not read.
"""

import math
from fractions import Fraction
from itertools import cycle, islice
from typing import Any, NamedTuple

from modelbudget.common.expressions import expression_of
from modelbudget.common.suggestions import offered, other_spelling
from modelbudget.common.validation_messages import show
from modelbudget.components.attention.attention_fields import ATTEND, SWITCHES
from modelbudget.components.feed_forward import feed_forward
from modelbudget.components.mixers import mixers
from modelbudget.huggingface.classes import (
    CLASSES,
    NO_ROPE,
    NO_ROPE_INTERVAL,
    Case,
    Meaning,
    Translation,
    shared_keys,
    translations,
)

ABSENT = object()
BASIC_SIZES = {"n_vocab", "d_model", "n_layer"}
WITHOUT_ROPE = {"attention": "nope_attention"}
HAS_ROPE = {"nope_attention": "attention"}
PADDED = "vocab_multiple * ceil(n_vocab / vocab_multiple)"
"""Size of the padded vocabulary, which configs give."""


class NoFormulaError(ValueError):
    """Values of a config.json that its class may have, but no formula covers."""


class Mistakes(NamedTuple):
    """Messages about a config: what is wrong in it, and what no formula covers."""

    wrong: list[str]
    unsupported: list[str]

    def lines(self) -> list[str]:
        return [*self.wrong, *self.unsupported]


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
    values that the class may have.
    """
    translation = translations()[name]
    mistakes = Mistakes(_refused_keys(name, config), [])
    sizes = _keys_set(translation, config, mistakes)
    values = dict(translation.defaults) | sizes
    fields = translation.fixed | translation.classes[name]
    for key, value in values.items():
        meaning = translation.meaning(key)
        if isinstance(meaning, str):
            fields |= _size(meaning, key, value, mistakes)
        elif meaning is not None:
            fields |= _chosen(meaning, key, value, mistakes)
    if translation.mixers:
        fields |= _layers(translation, values, mistakes)
    if "mlp_layer_types" in values:
        fields |= _dense_layers(translation, values, mistakes)
    if not mistakes.lines():
        fields |= _computed(translation, values, mistakes)
    if mistakes.lines():
        error_class = ValueError if mistakes.wrong else NoFormulaError
        raise error_class("\n".join(mistakes.lines()))
    has_parts = translation.mixers and translation.family == "decoder"
    return _without_absent(fields) if has_parts else fields


def config_of(name: str, a) -> dict[str, Any]:
    """Return the config with which the class is the architecture `a`.

    What the class cannot express is left out: compare `fields_of` the result with `a`.
    """
    translation = translations()[name]
    config = {}
    inverse = {"vocab_size": PADDED} | dict(translation.inverse)
    values = {"vocab_multiple": 1} | a.model_dump()
    names_layers = translation.layer_types or "layer_types" in translation.requires
    for key, default in translation.defaults.items():
        meaning = translation.meaning(key)
        if key in inverse:
            config[key] = _plain(expression_of(inverse[key])(values))
        elif isinstance(meaning, str):
            config[key] = values[meaning]
        elif meaning is not None:
            fits = [case.value for case in meaning if case.fields.items() <= values.items()]
            config[key] = default if default in fits else next(iter(fits), default)
        elif key == "sliding_window":
            names_windows = names_layers and not _rotates_all(translation, a)
            config[key] = a.window or (default if names_windows else None)
        elif key == NO_ROPE:
            words = islice(cycle(a.mixers.split()), a.n_layer)
            config[key] = [int(word not in HAS_ROPE) for word in words]
        elif key == NO_ROPE_INTERVAL:
            config[key] = default
        elif key == "layer_types" and names_layers:
            repeats = "layer_types" not in translation.requires
            repeats = repeats and "nope_attention" in translation.mixers.split()
            is_own = repeats and a.mixers == translation.mixers
            config[key] = default if is_own else _types_of_layers(translation, a)
        elif key in translation.attention_at:
            words, full = a.mixers.split(), _mixers(translation)["full_attention"]
            first = translation.attention_counts_from
            config[key] = [i + first for i in range(a.n_layer) if words[i % len(words)] == full]
        elif key == "mlp_layer_types":
            config[key] = ["dense"] * a.n_dense_layer + ["sparse"] * (a.n_layer - a.n_dense_layer)
    # Default padding tokens of classes lie outside of a small vocabulary, and are then rejected.
    return _nested(config | {"pad_token_id": 0} | _filled_in(translation.also, config | values))


def _rotates_all(translation: Translation, a) -> bool:
    """Whether full attention of a class, which is without RoPE next to windows, has it."""
    has_windows = {*HAS_ROPE, "sliding_attention"} & {*a.mixers.split()}
    return _mixers(translation)["full_attention"] in HAS_ROPE and not has_windows


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
    sizes = _keys_set(translation, config, Mistakes([], []))
    missing = {
        key: (meaning, value)
        for key, value in translation.defaults.items()
        if key not in sizes and isinstance(meaning := translation.meaning(key), str)
    }
    if not BASIC_SIZES & {meaning for meaning, _ in missing.values()}:
        return {}
    return {
        key: value for key, (_, value) in sorted(missing.items()) if value not in (None, "auto")
    }


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
    known = translations()[name].defaults
    return [
        key
        for key in unknown_keys(name, config)
        if config[key] is None or not other_spelling(key, known)
    ]


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
    sizes = _of_full_layers(translation, config, mistakes)
    spelled = dict.fromkeys(sizes, "per_layer_config")
    for spelling, key in spellings.items():
        value = _look_up(config, spelling)
        if value is ABSENT:
            continue
        value = _of_all_layers(translation.meaning(key), value)
        if key in sizes and sizes[key] != value:
            mistakes.wrong.append(
                f"{spelled[key]} = {show(sizes[key])} and {spelling} = {show(value)} "
                "contradict each other; keep one"
            )
        sizes[key], spelled[key] = value, spelling
    return sizes


def _of_full_layers(translation: Translation, config: dict, mistakes: Mistakes) -> dict[str, Any]:
    """Return the keys of layers of full attention that a file overrides layer by layer."""
    of_file = config.get("per_layer_config") if translation.full_layers else None
    if not of_file:
        return {}
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
    return {translation.full_layers[key]: value for key, value in first.items()}


def _look_up(config: dict, path: str):
    value = config
    for part in path.split("."):
        if not isinstance(value, dict) or part not in value:
            return ABSENT
        value = value[part]
    return value


def _of_all_layers(meaning: Meaning | None, value):
    """Return the entry of a list that repeats it for each layer, of a key that has no lists."""
    if not isinstance(value, list) or not value or any(item != value[0] for item in value):
        return value
    cases = meaning if isinstance(meaning, list) else []
    has_lists = meaning is None or any(isinstance(case.value, list) for case in cases)
    return value if has_lists else value[0]


def _size(field: str, key: str, value, mistakes: Mistakes) -> dict[str, int]:
    if value in (None, "auto"):
        return {}
    of_layers: list[Any] = value if isinstance(value, list) and value else [value]
    size = of_layers[0]
    if any(isinstance(item, bool) or not isinstance(item, int) for item in of_layers):
        mistakes.wrong.append(f"{key} = {show(value)}: must be a whole number")
    elif any(item < 0 for item in of_layers):
        mistakes.wrong.append(f"{key} = {show(value)}: must not be negative")
    elif any(item != size for item in of_layers):
        message = f"{key} = {show(value)}: not supported (allowed: the same for all layers)"
        mistakes.unsupported.append(message)
    return {field: size}


def _chosen(cases: list[Case], key: str, value, mistakes: Mistakes) -> dict:
    for case in cases:
        if type(case.value) is type(value) and case.value == value:
            return case.fields
    allowed = ", ".join(_as_json(case.value) for case in cases)
    # Without fields the cases are those of `supported`; the class may have others of their type.
    may_be = any(not case.fields and type(case.value) is type(value) for case in cases)
    messages = mistakes.unsupported if may_be else mistakes.wrong
    messages.append(f"{key} = {_as_json(value)}: not supported (allowed: {allowed})")
    return {}


def _layers(translation: Translation, values: dict, mistakes: Mistakes) -> dict:
    """Return the pattern of mixers, unless all are attention, and the window if any.

    The class's own pattern is repeated as it is; that of a list of all layers is the shortest.
    """
    has_windows = values.get("sliding_window", 1)
    words = translation.mixers.split() if has_windows else ["attention"]
    types = values.get("layer_types")
    rotated = _rotated_layers(translation, values, mistakes)
    if rotated:
        words = _shortest([translation.rope_layers[has_rope] for has_rope in rotated])
    if isinstance(types, str) and translation.layer_mlps:
        types = [*types]
    for key, mixer in translation.attention_at.items():
        if not types and isinstance(indices := values[key], list):
            n_layer = range(values["num_hidden_layers"])
            first, full = translation.attention_counts_from, _mixers(translation)["full_attention"]
            words = _shortest([full if i + first in indices else mixer for i in n_layer])
    if types and not isinstance(types, list):
        mistakes.wrong.append(f"layer_types = {_as_json(types)}: must be a list")
    elif types:
        cases = [Case(value=v, fields={"mixer": m}) for v, m in _mixers(translation).items()]
        by_type = {
            name: _chosen(cases, "layer_types", name, mistakes) for name in dict.fromkeys(types)
        }
        words = _shortest([by_type[name].get("mixer", "") for name in types])
        if rotated and len(rotated) == len(types):
            layers = zip(types, rotated, strict=True)
            words = _shortest(
                [_with_rope(by_type[name].get("mixer", ""), has, mistakes) for name, has in layers]
            )
        if not has_windows:  # then full attention has RoPE
            words = [HAS_ROPE.get(word, word) for word in words]
        if translation.layer_mlps and not mistakes.lines():
            parts = {"mixers": translation.layer_types, "mlps": translation.layer_mlps}
            names = {field: [of[word] for word in _shortest(types)] for field, of in parts.items()}
            patterns = {field: " ".join(of_field) for field, of_field in names.items()}
            return patterns | {"n_layer": len(types)}  # each layer has one part
    if set(words) <= {"attention"}:
        return {}
    fields = {"mixers": " ".join(words)}
    if "sliding_attention" in words:
        fields |= _size("window", "sliding_window", values.get("sliding_window"), mistakes)
    return fields


def _rotated_layers(translation: Translation, values: dict, mistakes: Mistakes) -> list[int]:
    """Return 1 for each layer with RoPE and 0 for the others; nothing if all of them have it."""
    if not translation.rope_layers:
        return []
    given, n_layer = values[NO_ROPE], range(values["num_hidden_layers"])
    interval = values[NO_ROPE_INTERVAL]
    if not given and isinstance(interval, int) and interval > 0:
        return [int((i + 1) % interval != 0) for i in n_layer]
    if not isinstance(given, list) or len(given) < len(n_layer) or not {*given} <= {0, 1}:
        mistakes.wrong.append(
            f"{NO_ROPE} = {_as_json(given)}, {NO_ROPE_INTERVAL} = {_as_json(interval)}: must be 1 "
            "or 0 for each layer, or an interval"
        )
        return []
    return [int(has_rope) for has_rope in given[: len(n_layer)]]


def _with_rope(mixer: str, has_rope: int, mistakes: Mistakes) -> str:
    if has_rope or mixer not in WITHOUT_ROPE:
        if not has_rope:
            line = f"{NO_ROPE}: 0 in a layer of {mixer}: not supported (allowed: in full_attention)"
            mistakes.unsupported.extend({line} - {*mistakes.unsupported})
        return mixer
    return WITHOUT_ROPE[mixer]


def _types_of_layers(translation: Translation, a) -> list[str]:
    """Return layer_types of a record."""
    names = translation.layer_types if translation.layer_mlps else _mixers(translation)
    mlps = a.mlps.split() if translation.layer_mlps else [None]
    by_parts = {
        (mixer, translation.layer_mlps.get(name)): name for name, mixer in reversed(names.items())
    }
    of_full, plain = names.get("full_attention"), ("nope_attention", "attention")
    words = a.mixers.split()
    if of_full in plain:  # whether these have RoPE is said elsewhere
        words = [of_full if word in plain else word for word in words]
    parts = islice(zip(cycle(words), cycle(mlps), strict=False), a.n_layer)
    return [by_parts.get(pair, "") for pair in parts]


def _mixers(translation: Translation) -> dict[str, str]:
    """Return entry of layer_types → mixer."""
    shared = shared_keys().layer_types
    return translation.layer_types | {
        k: v for k, v in shared.items() if k not in translation.layer_types
    }


def _shortest(words: list[str]) -> list[str]:
    """Return the shortest pattern that, repeated, gives these words."""
    periods = range(1, len(words) + 1)
    fits = (p for p in periods if all(word == words[i % p] for i, word in enumerate(words)))
    return words[: next(fits, 0)]


def _dense_layers(translation: Translation, values: dict, mistakes: Mistakes) -> dict:
    """Return how many layers come before those with experts."""
    types = values["mlp_layer_types"]
    if types is None:
        known = "first_k_dense_replace" in translation.defaults
        return {} if known else {"n_dense_layer": translation.dense_layers}
    n = types.count("dense") if isinstance(types, list) else 0
    if not isinstance(types, list) or types != ["dense"] * n + ["sparse"] * (len(types) - n):
        mistakes.unsupported.append(
            f"mlp_layer_types = {_as_json(types)}: not supported (allowed: dense, then sparse)"
        )
    return {"n_dense_layer": n}


def _without_absent(fields: dict[str, Any]) -> dict[str, Any]:
    """Remove the sizes of parts that no layer has, and the options of attention without any."""
    present = fields.get("mixers", "attention").split() + fields.get("mlps", "mlp").split()
    parts = mixers() | feed_forward()
    sizes = {size for part in parts.values() for size in part.SIZES}
    absent = sizes - {size for word in present if word in parts for size in parts[word].SIZES}
    if not {*ATTEND} & {*present}:
        absent |= {*SWITCHES, "qk_norm", "qk_norm_bias", "d_rotary"}
    return {name: value for name, value in fields.items() if name not in absent}


def _as_json(value) -> str:
    return "null" if value is None else show(value)


def _computed(translation: Translation, values: dict, mistakes: Mistakes) -> dict:
    exact = {"head_dim": None} | values  # not all classes have this key
    for key, value in values.items():
        if isinstance(value, float) and math.isfinite(value):
            exact[key] = Fraction(repr(value))
    for text in translation.requires:
        if not expression_of(text)(exact):
            equations = ", ".join(f"{n} = {_as_json(values[n])}" for n in _names(text, values))
            mistakes.unsupported.append(f"{equations}: not supported (allowed: {text})")
    fields = {}
    for field, text in translation.computed.items():
        try:
            fields[field] = _plain(expression_of(text)(exact))
        except ValueError as error:
            mistakes.wrong.append(f"{field}: {error}")
    return fields


def _names(text: str, values: dict) -> list[str]:
    return [name for name in values if name in expression_of(text).names]


def _plain(value):
    if not isinstance(value, Fraction):
        return value
    return int(value) if value.denominator == 1 else float(value)


def _filled_in(template, values: dict):
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
