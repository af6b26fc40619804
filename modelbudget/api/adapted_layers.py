"""What a LoRA adapter of PEFT has tensors for, by the keys of its configuration.

Rules: peft 0.21.2, `check_target_module_exists` of tuners/tuners_utils.py and `get_pattern_key` of
utils/other.py.
"""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from modelbudget.api.model import Model
from modelbudget.architecture.run_adapter import ALL_LINEAR, NAMES_OF_LLAMA
from modelbudget.common.errors import InputError
from modelbudget.common.validation_messages import show
from modelbudget.huggingface.classes import translations
from modelbudget.huggingface.module_names import Paths, is_simple, linear_layers
from modelbudget.predict.engine_weights import adapted_channels, matrices_of

STACKS = {"gate_up_proj": 2, "down_proj": 1, "gate.weight": 0}
"""Parameters of a layer with experts → matrices of d_expert in each expert; none in the router."""
OF_VOCABULARY = ("embed_tokens", "lm_head")
OF_NAMES = (
    "exclude_modules", "layers_to_transform", "lora_bias", "modules_to_save", "rank_pattern",
    "target_parameters", "trainable_token_indices", "use_dora",
)  # fmt: skip
"""Keys of a configuration that are about modules of a class by their names."""


class Layer(NamedTuple):
    """A layer with an adapter."""

    rank: int
    d_in: int
    d_out: int

    @property
    def parameters(self) -> int:
        """Those of both matrices."""
        return self.rank * (self.d_in + self.d_out)


class Adapted(NamedTuple):
    """The layers that an adapter is around, and numbers of its file that are of no rank."""

    names: list[str]
    layers: list[Layer]
    others: dict[str, int]

    @property
    def parameters(self) -> int:
        """All numbers in the file."""
        return sum(layer.parameters for layer in self.layers) + sum(self.others.values())


def adapted(base_model: Model, targets: list[str], config: Mapping[str, Any]) -> Adapted:
    """Return what an adapter is around: layers of the class, or ours if it has no known names.

    `targets`: names of ours or of PEFT's, which may name the module of a layer, or one pattern;
    `config` has the rank, `r`. Raises InputError if the model has no such layers.
    """
    of_peft = {ours: name for name, ours in NAMES_OF_LLAMA.items()}
    if layers := layers_of(base_model, [of_peft.get(name, name) for name in targets], config):
        names = [t if _is_pattern(t, config) else t.rpartition(".")[2] for t in targets]
        return Adapted(names, layers, _others(base_model.architecture, layers, targets, config))
    if unknown := [key for key in OF_NAMES if config.get(key)]:
        layers_are = f"{unknown[0]} = {show(config[unknown[0]])}: names of its layers are not known"
        raise InputError([f"{base_model.name}: {layers_are}; allowed: classes with Llama's names"])
    last = {target: target.rpartition(".")[2] for target in targets}
    ours = {target: NAMES_OF_LLAMA.get(name, name) for target, name in last.items()}
    names = [*dict.fromkeys(ours.values())]
    n_layers = Counter(name for target, name in ours.items() if "." in target)
    channels = adapted_channels(base_model.architecture, names, n_layers)
    if not channels:
        no_such = f"adapter_targets = {' '.join(names)}: no such layers"
        raise InputError([f"{base_model.name}: {no_such}"])
    return Adapted(names, [Layer(config["r"], channels, 0)], {})


def layers_of(
    base_model: Model, targets: list[str], config: Mapping[str, Any]
) -> list[Layer] | None:
    """Return each layer of the class that an adapter is around.

    PEFT adapts the stack of a layer's experts with the rank times their number, and names it, the
    router and other ranks in `target_parameters` and `rank_pattern`. None if the class's names are
    not known.
    """
    a: Any = base_model.architecture
    translation = translations().get(base_model.base.transformers or "")
    names = linear_layers(translation.model_type, vars(a)) if translation else {}
    chosen = [name for name, paths in names.items() if _is_adapted(name, paths, targets, config)]
    widths = _widths(a, names, chosen)
    layers = [Layer(_rank(name, config), *widths[name]) for name in chosen]
    if names:
        of_vocabulary = [name for name in OF_VOCABULARY if name in targets]
        layers += [Layer(_rank(name, config), a.d_model, a.n_vocab) for name in of_vocabulary]
    n_moe = sum(name.endswith(".experts.0.up_proj") for name in names)
    for target in config.get("target_parameters") or ():
        of_target = _of_experts(a, target, config) if n_moe else None
        if of_target is None:
            return None
        layers += n_moe * [of_target]
    return layers or None


def _is_adapted(name: str, paths: Paths, targets: list[str], config: Mapping[str, Any]) -> bool:
    """Whether keys of a configuration mean a linear layer; the head is asked for by its name."""
    if ".experts." in name or paths == ("head",):
        return False
    excluded = config.get("exclude_modules") or []
    if _names(name, excluded, "exclude_modules"):
        return False
    if targets == [ALL_LINEAR]:
        return True
    if _is_pattern(targets[0], config):
        return _names(name, targets[0], "target_modules")
    numbers = config.get("layers_to_transform")
    if numbers not in (None, []):
        chosen = numbers if isinstance(numbers, list) else [numbers]
        if int(name.split(".")[1]) not in chosen:
            return False
    return _names(name, [target.removeprefix("model.") for target in targets], "target_modules")


def _is_pattern(target: str, config: Mapping[str, Any]) -> bool:
    """Whether a target is the one pattern of a configuration, and no name."""
    return config.get("target_modules") == target and bool(re.search(r"[^\w.-]", target))


def _names(name: str, texts: list[str] | str, key: str) -> bool:
    """Whether texts are the end of a layer's name, or one pattern is the whole of it."""
    if isinstance(texts, list):
        return f".{name}".endswith(tuple(f".{text}" for text in texts))
    return bool(re.fullmatch(_simple(texts, key), f"model.{name}"))


def _simple(pattern: str, key: str) -> str:
    """Return a pattern that takes a short time. Raises InputError."""
    if not is_simple(pattern, 0):
        raise InputError([f"{key}: {show(pattern)}: allowed: names of layers, or words with .*"])
    return pattern


def _rank(name: str, config: Mapping[str, Any]) -> int:
    """Return the rank of a layer: that of the first pattern at the end of its name, or `r`."""
    for pattern, rank in (config.get("rank_pattern") or {}).items():
        if re.match(rf"(.*\.)?({_simple(pattern, 'rank_pattern')})$", f"model.{name}"):
            return rank
    return config["r"]


def _widths(a: Any, layers: dict[str, Paths], names: list[str]) -> dict[str, tuple[int, int]]:
    """Return inputs and outputs of each named layer of the class."""
    of_ours = {m.path: m for m, _ in matrices_of(a)}
    in_one: dict[tuple, list[str]] = {}  # layers of the class that are one matrix of ours
    for name, paths in layers.items():
        in_one.setdefault((name.rpartition(".")[0], paths), []).append(name)
    widths = {}
    for name in names:
        paths = layers[name]
        parts = in_one[name.rpartition(".")[0], paths]
        packed = of_ours[paths[0]].widths if len(parts) > 1 else ()
        d_out = packed[parts.index(name)] if packed else sum(of_ours[path].d_out for path in paths)
        widths[name] = of_ours[paths[0]].d_in, d_out
    return widths


def _of_experts(a: Any, target: str, config: Mapping[str, Any]) -> Layer | None:
    """Return the adapter of a stack of experts, or of their router; None if it is neither."""
    n_up = STACKS.get(target.removeprefix("mlp.").removeprefix("experts."))
    if n_up is None:
        return None
    ranks = config.get("rank_pattern") or {}
    rank = next((n for text, n in ranks.items() if text.endswith(target)), config["r"])
    if n_up == 0:
        return Layer(rank, a.d_model, a.n_expert)
    return Layer(rank * a.n_expert, a.d_model, n_up * a.d_expert)


def _others(
    a: Any, layers: list[Layer], targets: list[str], config: Mapping[str, Any]
) -> dict[str, int]:
    """Return the numbers that are of no rank: of DoRA, biases, trained rows and whole matrices.

    PEFT saves a matrix of the vocabulary that has an adapter, too, unless rows of it are trained
    (utils/save_and_load.py).
    """
    of_outputs = sum(layer.d_out for layer in layers)
    rows = config.get("trainable_token_indices") or []
    rows = rows if isinstance(rows, list) else [i for of in rows.values() for i in of]
    whole = [name for name in OF_VOCABULARY if name in (config.get("modules_to_save") or [])]
    copied = [name for name in OF_VOCABULARY if name in targets and not rows]
    numbers = {
        "magnitudes": of_outputs if config.get("use_dora") else 0,
        "biases": of_outputs if config.get("lora_bias") else 0,
        "in rows of tokens": len(rows) * a.d_model,
        f"of {', '.join(whole)}": len(whole) * a.n_vocab * a.d_model,
        f"of {', '.join(copied)} unchanged": len(copied) * a.n_vocab * a.d_model,
    }
    return {what: number for what, number in numbers.items() if number}
