"""What a LoRA adapter of PEFT has tensors for, by the keys of its configuration.

Rules: peft 0.21.2, `check_target_module_exists` of tuners/tuners_utils.py and `get_pattern_key` of
utils/other.py.
"""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from modelbudget.api.model import Model
from modelbudget.architecture.run_adapter import ALL_LINEAR, NAMES_OF_LLAMA, is_part
from modelbudget.common.errors import InputError
from modelbudget.common.validation_messages import show
from modelbudget.huggingface.classes import translations
from modelbudget.huggingface.module_names import EMBEDDING, HEAD, is_simple, linear_layers
from modelbudget.predict.engine_weights import adapted_channels, matrices_of

STACKS = {"gate_up_proj": 2, "down_proj": 1, "gate.weight": 0}
"""Parameters of a layer with experts → matrices of d_expert in each expert; none in the router."""
OF_VOCABULARY = {name.rpartition(".")[2]: name for name in (EMBEDDING, HEAD)}
EXPERTS = ".experts."
OF_NAMES = (
    "bias", "exclude_modules", "layers_to_transform", "lora_bias", "modules_to_save",
    "rank_pattern", "target_parameters", "trainable_token_indices", "use_dora",
)  # fmt: skip
"""Keys of a configuration that are about modules of a class by their names."""
UNSET = ("None", "False", "none", "[]", "{}")


class Layer(NamedTuple):
    """A linear layer, or an embedding; `bias`: numbers in its bias, `rank`: of its adapter."""

    d_in: int
    d_out: int
    bias: int = 0
    rank: int = 0

    @property
    def parameters(self) -> int:
        """Those of both matrices of the adapter."""
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
    of_class = _layers_of_class(base_model)
    in_class = [of_peft.get(name, name) for name in targets]
    if around := _around(of_class, base_model.architecture, in_class, config):
        names = [t if _is_pattern(t, config) else t.rpartition(".")[2] for t in targets]
        others = _others(base_model, of_class, around, in_class, config)
        return Adapted(names, [*around.values()], others)
    if unknown := [key for key in OF_NAMES if f"{config.get(key)}" not in UNSET]:
        layers_are = f"{unknown[0]} = {show(config[unknown[0]])}: names of its layers are not known"
        raise InputError([f"{base_model.name}: {layers_are}; allowed: classes with Llama's names"])
    last = {target: target.rpartition(".")[2] for target in targets}
    ours = {target: NAMES_OF_LLAMA.get(name, name) for target, name in last.items()}
    names = [*dict.fromkeys(ours.values())]
    n_layers = Counter(name for target, name in ours.items() if "." in target)
    channels = adapted_channels(base_model.architecture, names, n_layers)
    if not channels:
        why = "no such layers" if matrices_of(base_model.architecture) else "layers are not known"
        raise InputError([f"{base_model.name}: adapter_targets = {' '.join(names)}: {why}"])
    return Adapted(names, [Layer(channels, 0, rank=config["r"])], {})


def _layers_of_class(base_model: Model) -> dict[str, Layer]:
    """Return what the class has as layers, by name; nothing if its names are not known."""
    a: Any = base_model.architecture
    translation = translations().get(base_model.base.transformers or "")
    names = linear_layers(translation.model_type, vars(a)) if translation else {}
    of_ours = {m.path: m for m, _ in matrices_of(a)}
    in_one: dict[tuple, list[str]] = {}  # layers of the class that are one matrix of ours
    for name, paths in names.items():
        in_one.setdefault((name.rpartition(".")[0], paths), []).append(name)
    layers = {}
    for name, paths in names.items():
        if name == HEAD:
            continue
        first, parts = of_ours[paths[0]], in_one[name.rpartition(".")[0], paths]
        packed = first.widths if len(parts) > 1 else ()
        d_out = packed[parts.index(name)] if packed else sum(of_ours[path].d_out for path in paths)
        layers[f"model.{name}"] = Layer(first.d_in, d_out, first.bias * d_out)
    if layers:
        layers |= {EMBEDDING: Layer(a.n_vocab, a.d_model), HEAD: Layer(a.d_model, a.n_vocab)}
    return layers


def _around(
    of_class: dict[str, Layer], a: Any, targets: list[str], config: Mapping[str, Any]
) -> dict[str, Layer]:
    """Return each layer of the class that an adapter is around, with its rank.

    PEFT adapts the stack of a layer's experts with the rank times their number, and names it, the
    router and other ranks in `target_parameters` and `rank_pattern`. Nothing if one has another
    name.
    """
    around = {
        name: layer._replace(rank=_rank(name, config))
        for name, layer in of_class.items()
        if EXPERTS not in name and _is_adapted(name, targets, config)
    }
    mlps = [name.removesuffix(f"{EXPERTS}0.up_proj") for name in of_class if "0.up_proj" in name]
    for target in config.get("target_parameters") or ():
        parameter = target.removeprefix("mlp.").removeprefix("experts.")
        if not mlps or parameter not in STACKS:
            return {}
        for mlp in mlps:
            path, n_up = f"{mlp}{EXPERTS}{parameter}", STACKS[parameter]
            d_out, n = (n_up * a.d_expert, a.n_expert) if n_up else (a.n_expert, 1)
            around[path] = Layer(a.d_model, d_out, rank=n * _rank(path, config))
    return around


def _is_adapted(name: str, targets: list[str], config: Mapping[str, Any]) -> bool:
    """Whether keys of a configuration mean a layer; all-linear leaves out the vocabulary's."""
    excluded, saved = (config.get(key) or [] for key in ("exclude_modules", "modules_to_save"))
    if _names(name, excluded, "exclude_modules") or _names(name, saved, "modules_to_save"):
        return False
    if targets == [ALL_LINEAR]:
        return name not in OF_VOCABULARY.values()
    if targets and _is_pattern(targets[0], config):
        return _names(name, targets[0], "target_modules")
    numbers = config.get("layers_to_transform")
    if numbers not in (None, []) and name not in targets:
        chosen = numbers if isinstance(numbers, list) else [numbers]
        number = re.search(r"\.layers\.(\d+)\.", name)
        if number is None or int(number[1]) not in chosen:
            return False
    return _names(name, targets, "target_modules")


def _is_pattern(target: str, config: Mapping[str, Any]) -> bool:
    """Whether a target is the one pattern of a configuration, and no name."""
    return config.get("target_modules") == target and bool(re.search(r"[^\w.-]", target))


def _names(name: str, texts: list[str] | str, key: str) -> bool:
    """Whether texts are the end of a layer's name, or one pattern is the whole of it."""
    if isinstance(texts, list):
        return f".{name}".endswith(tuple(f".{text}" for text in texts))
    return bool(re.fullmatch(_simple(texts, key), name))


def _simple(pattern: str, key: str) -> str:
    """Return a pattern that takes a short time. Raises InputError."""
    if not is_simple(pattern, 0):
        raise InputError([f"{key}: {show(pattern)}: allowed: names of layers, or words with .*"])
    return pattern


def _rank(name: str, config: Mapping[str, Any]) -> int:
    """Return the rank of a layer: that of the first pattern at the end of its name, or `r`."""
    for pattern, rank in (config.get("rank_pattern") or {}).items():
        if re.match(rf"(.*\.)?({_simple(pattern, 'rank_pattern')})$", name):
            return rank
    return config["r"]


def _others(
    base_model: Model,
    of_class: dict[str, Layer],
    around: dict[str, Layer],
    targets: list[str],
    config: Mapping[str, Any],
) -> dict[str, int]:
    """Return the numbers that are of no rank: of DoRA, biases, trained rows and whole modules.

    PEFT saves a matrix of the vocabulary that has an adapter, too, unless rows of it are trained
    (utils/save_and_load.py).
    """
    a: Any = base_model.architecture
    of_outputs = sum(layer.d_out for layer in around.values())
    rows = config.get("trainable_token_indices") or []
    rows = rows if isinstance(rows, list) else [i for of in rows.values() for i in of]
    saved = config.get("modules_to_save") or []
    whole = {name: n for name, n in of_class.items() if _names(name, saved, "modules_to_save")}
    is_listed = OF_VOCABULARY.keys() & {*targets} or (targets and _is_pattern(targets[0], config))
    copied = {
        short: of_class[name]
        for short, name in OF_VOCABULARY.items()
        if name in around and is_listed and not rows
    }
    biased = {"lora_only": around, "all": of_class}.get(config.get("bias") or "", {})
    # "norm" is the end of the names of all norms.
    norms = base_model.parameters().components if "norm" in saved else ()
    numbers = {
        "magnitudes": of_outputs if config.get("use_dora") else 0,
        "biases": of_outputs if config.get("lora_bias") else 0,
        "of the layers' biases": sum(n.bias for name, n in biased.items() if EXPERTS not in name),
        "in rows of tokens": len(rows) * a.d_model,
        f"of {', '.join(saved)}": sum(n.d_in * n.d_out + n.bias for n in whole.values())
        + sum(each.value for each in norms if is_part("norms", each.name)),
        f"of {', '.join(copied)} unchanged": sum(n.d_in * n.d_out for n in copied.values()),
    }
    return {what: number for what, number in numbers.items() if number}
