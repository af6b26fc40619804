"""The pattern of layers that a config.json lists, and that of a family, in both directions."""

from itertools import cycle, islice

from modelbudget.architecture.record import MAX_DEPTH
from modelbudget.common.expressions import expression_of
from modelbudget.common.validation_messages import show
from modelbudget.huggingface.classes import (
    LAYER,
    NO_ROPE,
    NO_ROPE_INTERVAL,
    Case,
    Translation,
    shared_keys,
)
from modelbudget.huggingface.value_meanings import (
    Mistakes,
    of_cases,
    of_expressions,
    of_size,
)

WITHOUT_ROPE = {"attention": "nope_attention"}
HAS_ROPE = {"nope_attention": "attention"}


def pattern_of_layers(translation: Translation, values: dict, mistakes: Mistakes) -> dict:
    """Return the pattern of mixers, unless all are attention, and the window if any.

    It is the shortest that, repeated, gives the mixers of all layers.
    """
    has_windows = values.get("sliding_window", 1)
    rotated = _rotated_layers(translation, values, mistakes)
    types = values.get("layer_types")
    if isinstance(types, str) and translation.layer_mlps:
        types = [*types]
    if types and not isinstance(types, list):
        mistakes.wrong.append(f"layer_types = {show(types)}: must be a list")
        types = None
    if types:
        words = _shortest(_mixers_of(types, translation, rotated, mistakes))
        if not has_windows:  # then full attention has RoPE
            words = [HAS_ROPE.get(word, word) for word in words]
        if translation.layer_mlps and not mistakes.lines():
            parts = {"mixers": translation.layer_types, "mlps": translation.layer_mlps}
            names = {field: [of[word] for word in _shortest(types)] for field, of in parts.items()}
            patterns = {field: " ".join(of_field) for field, of_field in names.items()}
            return patterns | {"n_layer": len(types)}  # each layer has one part
    elif indices := _layers_by_number(translation, values):
        words = _shortest(indices)
    elif translation.attention_where and has_windows:
        has_attention = _layers_where(translation.attention_where, values, mistakes)
        full = mixers_of_types(translation)["full_attention"]
        words = _shortest([full if has else translation.mixers for has in has_attention])
    elif rotated:
        words = _shortest([translation.rope_layers[has_rope] for has_rope in rotated])
    else:
        words = translation.mixers.split() if has_windows else ["attention"]
        words = _shortest(words[: len(_layers(values)) or None])
    if set(words) <= {"attention"}:
        return {}
    fields = {"mixers": " ".join(words)}
    if "sliding_attention" in words:
        fields |= of_size("window", "sliding_window", values.get("sliding_window"), mistakes)
        if fields.get("window") == 1:  # and the layers of DynamicCache then cut off nothing
            mistakes.unsupported.append("sliding_window = 1: not supported (allowed: 2 or more)")
        if "chunked_attention" in translation.layer_types:
            fields["window_in_chunks"] = True
    return fields


def _mixers_of(
    types: list, translation: Translation, rotated: list[int], mistakes: Mistakes
) -> list[str]:
    """Return the mixer of each entry of layer_types; `rotated`: whether each layer has RoPE."""
    cases = [Case(value=v, fields={"mixer": m}) for v, m in mixers_of_types(translation).items()]
    by_type = {
        name: of_cases(cases, "layer_types", name, mistakes) for name in dict.fromkeys(types)
    }
    words = [by_type[name].get("mixer", "") for name in types]
    if len(rotated) != len(types):
        return words
    of_layers = [*zip(words, rotated, strict=True)]
    if wrong := [word for word, has_rope in of_layers if not has_rope and word not in WITHOUT_ROPE]:
        line = f"{NO_ROPE}: 0 in a layer of {wrong[0]}: not supported (allowed: in full_attention)"
        mistakes.unsupported.append(line)
    return [word if has_rope else WITHOUT_ROPE.get(word, word) for word, has_rope in of_layers]


def _layers_by_number(translation: Translation, values: dict) -> list[str]:
    """Return the mixer of each layer where a key lists the numbers of those with attention."""
    first, full = translation.attention_counts_from, mixers_of_types(translation)["full_attention"]
    for key, mixer in translation.attention_at.items():
        if isinstance(indices := values[key], list):
            return [full if i + first in indices else mixer for i in _layers(values)]
    return []


def _layers_where(text: str, values: dict, mistakes: Mistakes) -> list[bool]:
    """Return for each layer whether an expression of keys and its number holds."""
    of_keys = of_expressions(values)
    try:
        return [bool(expression_of(text)(of_keys | {LAYER: i})) for i in _layers(values)]
    except ValueError as error:
        mistakes.wrong.append(str(error))
        return []


def _layers(values: dict) -> range:
    """Return the numbers of the layers; none if a file has no number of them, which is refused."""
    n_layer = values.get("num_hidden_layers")
    return range(n_layer if isinstance(n_layer, int) and n_layer <= MAX_DEPTH else 0)


def _rotated_layers(translation: Translation, values: dict, mistakes: Mistakes) -> list[int]:
    """Return 1 for each layer with RoPE and 0 for the others; nothing if all of them have it."""
    if not translation.rope_layers:
        return []
    given, n_layer = values[NO_ROPE], _layers(values)
    interval = values[NO_ROPE_INTERVAL]
    if not given and isinstance(interval, int) and interval > 0:
        return [int((i + 1) % interval != 0) for i in n_layer]
    if not isinstance(given, list) or len(given) < len(n_layer) or not {*given} <= {0, 1}:
        mistakes.wrong.append(
            f"{NO_ROPE} = {show(given)}, {NO_ROPE_INTERVAL} = {show(interval)}: must be 1 "
            "or 0 for each layer, or an interval"
        )
        return []
    return [int(has_rope) for has_rope in given[: len(n_layer)]]


def layers_with_experts(translation: Translation, values: dict, mistakes: Mistakes) -> dict:
    """Return the pattern of feed-forward parts, or how many layers come before those with experts.

    Where `experts_where` says which these are.
    """
    has_experts = _layers_where(translation.experts_where, values, mistakes)
    n_dense = [*has_experts, True].index(True)
    if all(has_experts[n_dense:]):
        return {"mlps": "moe", "n_dense_layer": n_dense}
    return {"mlps": " ".join(_shortest(["moe" if has else "mlp" for has in has_experts]))}


def dense_layers(translation: Translation, values: dict, mistakes: Mistakes) -> dict:
    """Return how many layers come before those with experts."""
    types = values["mlp_layer_types"]
    if types is None:
        known = "first_k_dense_replace" in translation.defaults
        return {} if known else {"n_dense_layer": translation.dense_layers}
    n = types.count("dense") if isinstance(types, list) else 0
    if not isinstance(types, list) or types != ["dense"] * n + ["sparse"] * (len(types) - n):
        mistakes.unsupported.append(
            f"mlp_layer_types = {show(types)}: not supported (allowed: dense, then sparse)"
        )
    return {"n_dense_layer": n}


def types_of_layers(translation: Translation, a) -> list[str]:
    names = translation.layer_types if translation.layer_mlps else mixers_of_types(translation)
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


def rotates_all(translation: Translation, a) -> bool:
    """Whether full attention of a class, which is without RoPE next to windows, has it."""
    has_windows = {*HAS_ROPE, "sliding_attention"} & {*a.mixers.split()}
    return mixers_of_types(translation)["full_attention"] in HAS_ROPE and not has_windows


def mixers_of_types(translation: Translation) -> dict[str, str]:
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
