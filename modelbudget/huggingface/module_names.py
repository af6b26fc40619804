"""Names of the linear layers of a class, which a quantization_config chooses among."""

import re
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from itertools import cycle, islice
from typing import Any, NamedTuple

from modelbudget.common.strict import Strict, shipped
from modelbudget.components.attention.attention_fields import PLAIN
from modelbudget.components.weight_formats import MTP
from modelbudget.huggingface.classes import FOLDER

LINEAR = "Linear"
"""The target that means every linear layer."""
EMBEDDING = "model.embed_tokens"
HEAD = "lm_head"
PATTERN = "re:"
EXCLUDED = "-:"
"""Begin of the patterns of GPTQModel's `dynamic` that name what is not converted."""
CACHED = ("attention", "mla")
"""Parts that all model types may have."""
PREFIXES = "model.", "model.language_model.", "language_model.model."
"""What comes before `layers` in a class, and in those that read pictures, too."""
ROUTED = ("moe.gate", "moe.up", "moe.down")
NOT_CONVERTED = re.compile(
    r"(re:)?((.*\.)?(mlp|block_sparse_moe)\.)?gate(\.e_score_correction_bias)?|"
    r"(re:)?(.*\.|\.\*)?(lm_head|embed_\w+|e_score_correction_bias|\w*router|\w*norm|"
    r"linear_attn\.(conv1d|A_log|dt_bias)|mtp\.(fc|pre_fc_norm_\w+)|"
    r"embedding|(visual|vision_\w+|audio_\w+|multi_modal_projector|modality_projection|merger|"
    r"mlp1|mtp)(\..*)?)(\.(weight|bias))?\$?"
)
"""Modules that have the dtype in every format, or that are not of the language model.

Naming them among the exceptions changes nothing."""
GATE = re.compile(
    r"(re:)?(.*\.)?(mlp\\?\.shared_expert_gate|linear_attn\\?\.(in_proj_(ba|b|a)|b_proj|a_proj))"
    r"(\.weight)?\$?"
)
"""Gates of layers, which most formats leave in the dtype."""
OF_LAYER = re.compile(r"(re:)?\^?([\w.\\]*\.)?layers\\?\.(?P<number>\d+)(?!\d).*")
"""Modules of one layer, by its number."""
MAX_NAMES = 200_000
MAX_MATCHES = 2_000_000
WORDS = r"\((\?:)?\w+(\|\w+)*\)"
SIMPLE = re.compile(
    rf"(?!.*({WORDS}.*){{3}})\^?(\.[*+]|\\d\+|\[0-9\]\+|\[\w+\]|\\?\.|\w|{WORDS})*\$?"
)
"""Patterns that take a short time: words, any letters between them, and choices of words."""
MAX_REPEATED, MANY_NAMES = 3, 5000
"""Parts of a pattern that may be repeated, one less for more names than these."""

Paths = tuple[str, ...]
"""Our matrices, as part.matrix, of which a linear layer of a class consists."""


class LinearLayers(Strict):
    """Names of linear layers in classes → matrices in our parts, and modules that are none."""

    like_llama: list[str]
    mlp: dict[str, str]
    parts: dict[str, dict[str, str]]
    recurrences: dict[str, dict[str, str]]
    other_modules: list[str]


names_in_classes = shipped(FOLDER / "linear_layers.yaml", LinearLayers)


def linear_layers(
    model_type: str | None, fields: dict[str, Any], texts: Iterable[str] = ()
) -> dict[str, Paths]:
    """Return the linear layers of a class by name, and our matrices; empty if they are not known.

    `fields`: those of the architecture. Of routed experts all are listed if one of `texts` may
    choose among them, else the first.
    """
    parts, n_layer = _parts_of(model_type), fields.get("n_layer")
    mixers = str(fields.get("mixers", "attention")).split()
    words = ["attention" if word in PLAIN else word for word in mixers]
    has_names = parts and {*words} <= parts.keys() and fields.get("gated")
    if not has_names or not isinstance(n_layer, int):
        return {}
    if (mlps := fields.get("mlps", "mlp")) not in ("mlp", "moe"):
        return {}
    n_expert = int(mlps == "moe")
    if n_expert and any(map(_chooses_among_experts, texts)):
        n_expert = fields.get("n_expert") or 1  # a file without is refused
    if n_layer * (10 + 3 * n_expert) > MAX_NAMES:
        return {}
    names: dict[str, Paths] = {}
    for layer, part in enumerate(islice(cycle(words), n_layer)):
        names |= _of_mixer(f"layers.{layer}", part, parts[part], fields)
        if n_expert and layer >= fields.get("n_dense_layer", 0):
            names |= _of_experts(f"layers.{layer}.mlp", n_expert, fields)
        else:
            names |= _of_mlp(f"layers.{layer}.mlp", "mlp")
    return names if fields.get("tied", True) else names | {HEAD: ("head",)}


def _parts_of(model_type: str | None) -> dict[str, dict[str, str]]:
    """Return the linear layers of each mixer of a class → our matrices; empty if not known."""
    known = names_in_classes()
    if model_type == "kimi_linear":
        return known.parts
    of_recurrence = known.recurrences.get(model_type or "")
    if model_type not in known.like_llama and of_recurrence is None:
        return {}
    cached = {name: known.parts[name] for name in CACHED}
    return cached | {"gated_deltanet": of_recurrence} if of_recurrence else cached


def _of_mixer(
    begin: str, part: str, of_part: dict[str, str], fields: dict[str, Any]
) -> dict[str, Paths]:
    where = "linear_attn" if part == "gated_deltanet" else "self_attn"
    absent = ["query"] if fields.get("q_lora_rank") else ["query_down", "query_up"]
    return {
        f"{begin}.{where}.{name}": _paths(part, ours, fields)
        for name, ours in of_part.items()
        if part != "mla" or ours not in absent  # latent attention has one or two for queries
    }


def _paths(part: str, ours: str, fields: dict[str, Any]) -> Paths:
    names = ours.split()
    if part == "attention" and not fields.get("attention_gate"):
        names = names[:1]
    return tuple(f"{part}.{name}" for name in names)


def _of_experts(begin: str, n_expert: int, fields: dict[str, Any]) -> dict[str, Paths]:
    shared = "shared_expert" if fields.get("shared_gate") else "shared_experts"
    names: dict[str, Paths] = {}
    for n in range(n_expert):
        names |= _of_mlp(f"{begin}.experts.{n}", "moe")
    if fields.get("d_shared"):
        names |= _of_mlp(f"{begin}.{shared}", "moe.shared")
    if fields.get("shared_gate"):
        names[f"{begin}.shared_expert_gate"] = ("moe.shared_gate",)
    return names


def _of_mlp(begin: str, part: str) -> dict[str, Paths]:
    return {f"{begin}.{name}": (f"{part}.{ours}",) for name, ours in names_in_classes().mlp.items()}


def _chooses_among_experts(text: str) -> bool:
    """Whether a name or a pattern may mean some experts and not others."""
    rest = re.sub(r"layers\\?\.(\d+|\((\?:)?\d+(\|\d+)*\)|\[0-9\]\+|\\d\+)", "", text)
    return bool(re.search(r"experts\W*[\d\[\\]|\*.*\d|\d.*\*", rest))


def layers_ahead(texts: Iterable[str], n_layer: Any) -> dict[str, int]:
    """Return the texts that name a layer after the last, with its number: it predicts tokens."""
    numbers = {text: int(layer["number"]) for text in texts if (layer := OF_LAYER.fullmatch(text))}
    return {t: n for t, n in numbers.items() if isinstance(n_layer, int) and n >= n_layer}


def copies_of_last(
    layers: dict[str, Paths], n_layer: Any, numbers: Iterable[int]
) -> dict[str, Paths]:
    """Return the linear layers of layers that predict further tokens, which are as the last."""
    last = f"layers.{n_layer - 1}." if layers else ""
    return {
        name.replace(last, f"layers.{number}."): tuple(f"{MTP}.{path}" for path in paths)
        for number in {*numbers}
        for name, paths in layers.items()
        if name.startswith(last)
    }


def names_of(name: str) -> Iterator[str]:
    """Yield the names that a layer has in files of a class and of larger ones with it."""
    yield from (name,) if name == HEAD else (f"{prefix}{name}" for prefix in PREFIXES)


class Choice(NamedTuple):
    """What a text chooses: `matches` says it of a name, `text` is as the file has it."""

    text: str
    matches: Callable[[str], bool]


def choices(method: str, texts: list[str], n_name: int) -> list[Choice] | None:
    """Return what each text of a file chooses, as the library matches it that reads the file.

    AutoAWQ: part of a name. ModelOpt and Quark: a name with *. GPTQModel (`dynamic_get`): a pattern
    at its begin. transformers (`should_convert_module`): the same up to a dot, or the end of one.
    compressed-tensors (utils/match.py): a name or a pattern. None if a pattern is not a simple one.
    """
    if len(texts) * n_name > MAX_MATCHES:
        return None
    all_choices = [_choice(method, text, n_name) for text in texts]
    simple = [choice for choice in all_choices if choice is not None]
    return simple if len(simple) == len(texts) else None


def _choice(method: str, text: str, n_name: int) -> Choice | None:
    pattern = text.removeprefix(EXCLUDED if method == "gptq" else PATTERN)
    match method:
        case "awq":
            return Choice(text, lambda name: text in name)
        case "modelopt" | "quark" if pattern == text:
            return Choice(text, lambda name: fnmatchcase(name, text))
        case "compressed-tensors" if pattern == text:
            return Choice(text, lambda name: name == text)
    if not is_simple(pattern, n_name):
        return None
    if method in ("gptq", "modelopt", "compressed-tensors"):
        begin = re.compile(pattern).match
        return Choice(text, lambda name: bool(begin(name)))
    begin = re.compile(rf"(?:{text})(?:(?<=\.)|(?=\.|$))").match
    return Choice(text, lambda name: bool(begin(name)) or name.endswith(text))


def is_simple(pattern: str, n_name: int) -> bool:
    """Whether a pattern takes a short time for so many names, and is one."""
    repeated = MAX_REPEATED - (n_name > MANY_NAMES)
    if len(pattern) > 200 or pattern.count("*") + pattern.count("+") > repeated:
        return False
    try:
        return bool(SIMPLE.fullmatch(pattern) and re.compile(pattern))
    except re.error:
        return False
